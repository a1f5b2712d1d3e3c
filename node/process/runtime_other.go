//go:build !linux

package process

import (
	"errors"

	corev1 "k8s.io/api/core/v1"

	"github.com/coxswain-dev/coxswain/node/runtime"
)

var errLinux = errors.New("the process runtime is made of Linux' namespaces and cgroups")

// New fails: the runtime is made of what only Linux has.
func New(runtime.Host, Options) (runtime.Runtime, error) {
	return nil, errLinux
}

// Cleanup fails: no runtime has run here.
func Cleanup(string, string) error { return errLinux }

// Capacity is empty: what the machine has is not known here. It can be written to.
func Capacity() corev1.ResourceList { return corev1.ResourceList{} }
