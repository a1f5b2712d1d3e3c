//go:build !linux

package process

import (
	"errors"

	corev1 "k8s.io/api/core/v1"

	"github.com/coxswain-dev/coxswain/node/runtime"
)

var errLinux = errors.New("the process runtime needs Linux namespaces and cgroups")

// New fails: the runtime needs features of Linux.
func New(runtime.Host, Options) (runtime.Runtime, error) {
	return nil, errLinux
}

// Cleanup fails: no runtime can have run here.
func Cleanup(string, string) error { return errLinux }

// Capacity returns an empty list: the machine's resources are not known here. Callers may write to it.
func Capacity() corev1.ResourceList { return corev1.ResourceList{} }
