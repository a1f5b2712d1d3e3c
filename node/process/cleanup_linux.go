package process

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/coxswain-dev/coxswain/network/router"
	"github.com/coxswain-dev/coxswain/node/process/sandbox"
)

// Cleanup removes everything that agents with the folder dir (Options.DataDir) have left on this machine: their pods
// with all files and mounts, the pods' router and its changes to the machine's network, cgroups, and the agent's file
// in the folder agents (Options.Agents). The folder dir itself stays, with any files that are not the runtime's.
// Cleanup fails if an agent still uses the folder. It continues after errors, and may be repeated.
func Cleanup(dir, agents string) error {
	if err := sandbox.Supported(); err != nil {
		return err
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return fmt.Errorf("resolve folder of an agent: %w", err)
	}
	lockFile, err := lock(dir)
	if err != nil {
		return err
	}
	defer func() { _ = lockFile.Close() }()
	pods, group := shims(dir), cgroupOf(dir)
	namespace := sandbox.RouterOf(slices.Collect(maps.Values(pods)))
	if namespace != nil {
		defer func() { _ = namespace.Close() }()
	}
	var problems []error
	for uid, p := range pods {
		if err := p.Stop(context.Background()); err != nil {
			problems = append(problems, fmt.Errorf("pod %s: %w", uid, err))
		}
	}
	if err := removeGroup(group); err != nil { // includes processes of a killed shim
		problems = append(problems, fmt.Errorf("cgroup %s: %w", group, err))
	}
	for uid, p := range pods {
		if err := p.Remove(context.Background()); err != nil {
			problems = append(problems, fmt.Errorf("pod %s: %w", uid, err))
		}
	}
	if err := router.Remove(namespace); err != nil {
		problems = append(problems, fmt.Errorf("network: %w", err))
	}
	for _, path := range []string{filepath.Join(dir, "netns"), memoryDir(dir), maskedFile(agents, dir)} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			problems = append(problems, err)
		}
	}
	return errors.Join(problems...)
}

// removeGroup kills all processes in a cgroup, and removes the cgroup once they have ended.
func removeGroup(name string) (err error) {
	_ = wait.PollUntilContextTimeout(context.Background(), 10*time.Millisecond, 10*time.Second, true,
		func(context.Context) (bool, error) {
			err = sandbox.RemoveGroup(name)
			return err == nil, nil
		})
	return err
}

// lock reserves a folder for one agent, until the file is closed or the process ends. Two agents would mistake each
// other's pods for those of an earlier agent.
func lock(dir string) (*os.File, error) {
	file, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = file.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("%s is in use by another agent", dir)
		}
		return nil, fmt.Errorf("lock %s: %w", file.Name(), err)
	}
	return file, nil
}
