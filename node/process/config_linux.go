package process

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/node/amount"
	"github.com/coxswain-dev/coxswain/node/environment"
	"github.com/coxswain-dev/coxswain/node/process/sandbox"
	"github.com/coxswain-dev/coxswain/node/runtime"
	"github.com/coxswain-dev/coxswain/node/volumes"
)

// containerConfig returns the sandbox.Container that a container's spec describes.
func (r *Runtime) containerConfig(ctx context.Context, p *livePod, c *corev1.Container, run int32) (
	*sandbox.Container, error) {
	env, argv, err := p.env.Resolve(ctx, c)
	if err != nil {
		return nil, err
	}
	name, err := kernelHostname(p.env.Pod, r.ClusterDomain)
	if err != nil {
		return nil, runtime.ConfigError{Err: err}
	}
	spec := &p.env.Pod.Spec
	pc := &sandbox.Container{
		Name: c.Name, Run: run, Args: argv, Dir: c.WorkingDir,
		TTY: c.TTY, Stdin: c.Stdin, StdinOnce: c.StdinOnce, HostPID: spec.HostPID, Hide: r.maskedPaths(),
		Cgroup: podCgroup(r.cgroup, p.env.Pod) + "/" + c.Name, Limits: limits(&c.Resources),
		OOMScore:   oomScore(p.env.Pod, c, amount.Of(r.Capacity[corev1.ResourceMemory], 0)),
		StopSignal: int(stopSignal(c)),
	}
	user, err := setRights(pc, p.env.Pod, c)
	if err != nil {
		return nil, err
	}
	pc.Env = withPath(env, name, user.home)
	pc.Limits.PodPIDs = r.MaxPodPIDs
	pc.Mounts, err = r.mounts(p, c, run, env)
	return pc, err
}

// targetOf returns the name of the container whose processes an ephemeral container shares; "" if there is none.
func targetOf(pod *corev1.Pod, c *corev1.Container) string {
	for i := range pod.Spec.EphemeralContainers {
		if e := &pod.Spec.EphemeralContainers[i]; e.Name == c.Name {
			return e.TargetContainerName
		}
	}
	return ""
}

func withPath(env []string, hostname, home string) []string {
	for name, value := range map[string]string{
		"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOSTNAME": hostname,
		"HOME": home,
	} {
		if !slices.ContainsFunc(env, func(e string) bool { return strings.HasPrefix(e, name+"=") }) {
			env = append(env, name+"="+value)
		}
	}
	return env
}

// maxMilliShares is the CPU request, in thousandths of a core, that corresponds to maxShares, the limit of cgroups.
const (
	maxShares      = 262_144
	maxMilliShares = 256_000
)

func limits(r *corev1.ResourceRequirements) sandbox.Limits {
	l := sandbox.Limits{CPUShares: leastShares}
	if q, ok := r.Requests[corev1.ResourceCPU]; ok {
		l.CPUShares = max(leastShares, min(amount.Of(q, resource.Milli), maxMilliShares)*1024/1000)
	}
	if q, ok := r.Limits[corev1.ResourceCPU]; ok {
		l.CPUQuota = amount.Of(q, resource.Milli) * 100
	}
	if q, ok := r.Limits[corev1.ResourceMemory]; ok {
		l.MemoryBytes = amount.Of(q, 0)
	}
	if q, ok := r.Requests[corev1.ResourceMemory]; ok {
		l.MemoryMin = amount.Of(q, 0)
	}
	return l
}

// setRights applies the security contexts: the container's settings, and the pod's where the container has none.
func setRights(pc *sandbox.Container, pod *corev1.Pod, c *corev1.Container) (*account, error) {
	ps, cs := pod.Spec.SecurityContext, c.SecurityContext
	if ps == nil {
		ps = &corev1.PodSecurityContext{}
	}
	if cs == nil {
		cs = &corev1.SecurityContext{}
	}
	user, group, nonRoot := first(cs.RunAsUser, ps.RunAsUser), first(cs.RunAsGroup, ps.RunAsGroup),
		first(cs.RunAsNonRoot, ps.RunAsNonRoot)
	if user != nil {
		pc.UID = uint32(*user)
	}
	entry := lookUp(pc.UID)
	pc.GID = entry.gid
	if group != nil {
		pc.GID = uint32(*group)
	}
	if ptr.Deref(nonRoot, false) && pc.UID == 0 {
		return nil, runtime.ConfigError{Err: fmt.Errorf(
			"container has runAsNonRoot and image will run as root (pod: %q, container: %s)",
			pod.Name, c.Name)}
	}
	groups := append([]int64{int64(pc.GID)}, ps.SupplementalGroups...)
	if ps.FSGroup != nil {
		groups = append(groups, *ps.FSGroup)
	}
	if p := ps.SupplementalGroupsPolicy; p == nil || *p == corev1.SupplementalGroupsPolicyMerge {
		groups = append(groups, entry.groups...)
	}
	has := make(map[uint32]bool, len(groups))
	for _, g := range groups {
		if id := uint32(g); !has[id] {
			has[id] = true
			pc.Groups = append(pc.Groups, id)
		}
	}
	pc.Privileged = ptr.Deref(cs.Privileged, false)
	pc.NoNewPrivileges = cs.AllowPrivilegeEscalation != nil && !*cs.AllowPrivilegeEscalation
	pc.ReadOnlyRoot = ptr.Deref(cs.ReadOnlyRootFilesystem, false)
	pc.Capabilities = capabilities(cs.Capabilities)
	profile := first(cs.SeccompProfile, ps.SeccompProfile)
	pc.Seccomp = profile != nil && profile.Type == corev1.SeccompProfileTypeRuntimeDefault
	return entry, nil
}

func first[T any](values ...*T) *T {
	for _, v := range values {
		if v != nil {
			return v
		}
	}
	return nil
}

// capabilities returns the numbers of a container's capabilities: the default ones, minus dropped, plus added ones.
func capabilities(c *corev1.Capabilities) []int {
	names := map[string]bool{}
	for _, name := range sandbox.DefaultCapabilities {
		names[name] = true
	}
	if c == nil {
		c = &corev1.Capabilities{}
	}
	change := func(list []corev1.Capability, enabled bool) {
		for _, one := range list {
			name := capabilityName(one)
			if name != allCapabilities {
				names[name] = enabled
				continue
			}
			for every := range sandbox.CapabilityNumbers {
				names[every] = enabled
			}
		}
	}
	change(c.Drop, false)
	change(c.Add, true)
	var numbers []int
	for name, has := range names {
		if number, ok := sandbox.CapabilityNumbers[name]; ok && has {
			numbers = append(numbers, number)
		}
	}
	slices.Sort(numbers)
	return numbers
}

// mounts returns a container's mounts: its volumes, and files that the agent makes.
func (r *Runtime) mounts(p *livePod, c *corev1.Container, run int32, env []string) ([]sandbox.Mount, error) {
	var all []sandbox.Mount
	values := map[string]string{}
	for _, e := range env {
		name, value, _ := strings.Cut(e, "=")
		values[name] = value
	}
	for _, m := range c.VolumeMounts {
		source, ok := p.volumes[m.Name]
		if !ok {
			return nil, runtime.ConfigError{Err: fmt.Errorf("volume %q is not there", m.Name)}
		}
		sub := m.SubPath
		var err error
		if m.SubPathExpr != "" {
			sub, err = environment.Expand(m.SubPathExpr, values)
		}
		if err == nil && sub != "" && !source.Own {
			err = r.volumes.Check(filepath.Join(source.Path, sub))
		}
		if err == nil {
			err = makeSubPath(source.Path, sub, volumes.FSGroup(p.env.Pod))
		}
		if err != nil {
			return nil, runtime.ConfigError{Err: fmt.Errorf(
				"failed to prepare subPath for volumeMount %q of container %q: %w",
				m.Name, c.Name, err)}
		}
		all = append(all, sandbox.Mount{
			Source: source.Path, SubPath: sub, Target: m.MountPath, ReadOnly: m.ReadOnly || source.ReadOnly,
			Recursive: ptr.Deref(m.RecursiveReadOnly, corev1.RecursiveReadOnlyDisabled) !=
				corev1.RecursiveReadOnlyDisabled,
			Flags: mountFlags(m.BindMountOptions), Own: source.Own,
		})
	}
	message := r.messagePath(p, c.Name, run)
	if err := os.MkdirAll(filepath.Dir(message), 0o755); err != nil {
		return nil, err
	}
	if err := os.WriteFile(message, nil, 0o666); err != nil {
		return nil, err
	}
	if err := os.Chmod(message, 0o666); err != nil {
		return nil, err
	}
	own := map[string]string{c.TerminationMessagePath: message, "/etc/resolv.conf": filepath.Join(p.Dir, "resolv.conf"),
		"/etc/hosts": filepath.Join(p.Dir, "hosts")}
	if !p.env.Pod.Spec.HostNetwork {
		own["/etc/hostname"] = filepath.Join(p.Dir, "hostname")
	}
	for target, source := range own {
		taken := slices.ContainsFunc(all, func(m sandbox.Mount) bool { return filepath.Clean(m.Target) == target })
		if target != "" && !taken {
			all = append(all, sandbox.Mount{Source: source, Target: target, Own: true})
		}
	}
	return all, nil
}

// mountFlags returns the mount attributes of bind mount options.
func mountFlags(options []string) (flags uint64) {
	for _, o := range options {
		flags |= map[string]uint64{"noexec": unix.MOUNT_ATTR_NOEXEC, "nodev": unix.MOUNT_ATTR_NODEV,
			"nosuid": unix.MOUNT_ATTR_NOSUID}[o]
	}
	return flags
}

// makeSubPath makes the folder of a subPath within a volume, unless the path exists.
func makeSubPath(volume, sub string, gid *int64) error {
	if sub == "" {
		return nil
	}
	root, err := os.OpenRoot(volume)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	if _, err := root.Stat(sub); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := root.MkdirAll(sub, 0o750); err != nil {
		return err
	}
	if err := root.Chmod(sub, 0o777); err != nil {
		return err
	}
	if gid != nil {
		return root.Chown(sub, -1, int(*gid))
	}
	return nil
}

// writeNetworkFiles writes a pod's /etc/hosts, /etc/hostname and /etc/resolv.conf, where they have changed.
func (r *Runtime) writeNetworkFiles(pod *corev1.Pod, ip, dir string) error {
	machine, err := os.ReadFile("/etc/resolv.conf")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	name, err := kernelHostname(pod, r.ClusterDomain)
	if err != nil {
		return err
	}
	machineHosts, err := os.ReadFile("/etc/hosts")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	resolv, warnings := podResolver(pod, parseResolver(string(machine)), r.ClusterDNS, r.ClusterDomain)
	for file, text := range map[string]string{
		"hosts": hosts(pod, ip, r.ClusterDomain, string(machineHosts)), "hostname": name + "\n",
		"resolv.conf": resolv.String()} {
		path := filepath.Join(dir, file)
		if old, err := readContainerFile(path, int64(len(text))+1); err == nil && string(old) == text {
			continue
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return err
		}
		for _, w := range warnings {
			if file == "resolv.conf" { // only after a change, so that a warning is not repeated at each sync
				r.host.Event(pod, corev1.EventTypeWarning, w.reason, w.message)
			}
		}
	}
	return nil
}
