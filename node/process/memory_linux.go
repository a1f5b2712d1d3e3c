package process

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/types"

	"github.com/coxswain-dev/coxswain/node/process/sandbox"
	"github.com/coxswain-dev/coxswain/node/runtime"
)

// memoryRoot is the folder of volumes in memory. They are mounts, and would make it impossible to remove the data
// folder while their pods run. The folder belongs to root, and each agent has a folder of its own in it.
const memoryRoot = "/run/coxswain-volumes"

// memoryDir returns the folder with the in-memory volumes of the agent with the folder dir.
func memoryDir(dir string) string { return filepath.Join(memoryRoot, runtime.Digest(dir)[:12]) }

// podMemory returns the folder with the in-memory volumes of a pod. Its shim removes it if the pod's own folder is
// gone.
func podMemory(dir string, uid types.UID) string { return filepath.Join(memoryDir(dir), string(uid)) }

// makeMemoryDir makes the agent's folder of in-memory volumes, and removes volumes without a pod: the agent's data may
// have been removed, while the shims of the pods did not run.
func makeMemoryDir(dir string) error {
	own := memoryDir(dir)
	if err := os.MkdirAll(own, 0o700); err != nil {
		return err
	}
	if err := ownFolder(memoryRoot); err != nil {
		return err
	}
	entries, err := os.ReadDir(own)
	if err != nil {
		return err
	}
	for _, e := range entries {
		uid := types.UID(e.Name())
		if _, err := os.Stat(podDir(dir, uid)); errors.Is(err, fs.ErrNotExist) {
			if err := sandbox.RemoveMemory(podMemory(dir, uid)); err != nil {
				return err
			}
		}
	}
	return nil
}
