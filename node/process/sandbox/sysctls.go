//go:build linux

package sandbox

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/component-helpers/node/util/sysctl"
)

// Sysctl is a kernel parameter that each namespace has of its own.
type Sysctl struct {
	Name  string `json:"name"` // with dots, or with slashes
	Value string `json:"value"`
}

// SetSysctls sets kernel parameters of the pod's namespaces. The caller must make sure that they are namespaced, and
// that the namespace is the pod's own.
func (p *Pod) SetSysctls(ctx context.Context, list []Sysctl) error {
	if len(list) == 0 {
		return nil
	}
	return call(ctx, p.Dir, &request{Op: opSysctls, Sysctls: list})
}

// setSysctls runs in the shim, which is in the pod's namespaces.
func setSysctls(list []Sysctl) error {
	root, err := os.OpenRoot("/proc/sys")
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	for _, s := range list {
		if err := setSysctl(root, s); err != nil {
			return fmt.Errorf("sysctl %q: %w", s.Name, err)
		}
	}
	return nil
}

func setSysctl(root *os.Root, s Sysctl) error {
	// In a name with dots, a slash is an escaped dot: net.ipv4.conf.eth0/1.forwarding.
	path := strings.NewReplacer(".", "/", "/", ".").Replace(sysctl.NormalizeName(s.Name))
	if !filepath.IsLocal(path) || filepath.Clean(path) != path {
		return os.ErrInvalid
	}
	f, err := root.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(s.Value)
	if closed := f.Close(); err == nil {
		err = closed
	}
	return err
}
