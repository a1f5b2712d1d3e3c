//go:build !linux

package node

import (
	"errors"

	corev1 "k8s.io/api/core/v1"
)

type processRuntime struct {
	containerRuntime
	agent *agent
}

func newProcessRuntime(*Options) (*processRuntime, error) {
	return nil, errors.New("the process runtime is made of Linux' namespaces and cgroups")
}

func (*processRuntime) close() {}

func machineCapacity() corev1.ResourceList { return DefaultCapacity() }
