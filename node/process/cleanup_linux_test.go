package process_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/network/netns"
	"github.com/coxswain-dev/coxswain/network/nft"
	"github.com/coxswain-dev/coxswain/network/router"
	"github.com/coxswain-dev/coxswain/node/process"
	"github.com/coxswain-dev/coxswain/node/process/sandbox"
	"github.com/coxswain-dev/coxswain/node/runtime"
)

// host has one Node with a subnet, and an empty API.
type host struct{}

func (host) Event(*corev1.Pod, string, string, string) {}
func (host) NodeEvent(string, string, string, string)  {}
func (host) Wake(runtime.PodKey)                       {}
func (host) Refresh(runtime.PodKey)                    {}
func (host) NodeChanged(string)                        {}
func (host) Client(string) kubernetes.Interface        { return fake.NewClientset() }
func (host) Subnet(string) netip.Prefix                { return netip.MustParsePrefix("10.7.0.0/24") }

// open is a router without NetworkPolicies that makes all changes to the machine that a router can make.
type open struct{ *router.Router }

func (open) Protect(context.Context, *corev1.Pod, ...netip.Addr) error { return nil }
func (open) Problem() error                                            { return nil }
func (open) Conditions() []corev1.NodeCondition                        { return nil }

func openAll(namespace *os.File, _ func()) (runtime.Router, error) {
	r, err := router.Open(namespace, router.Options{})
	if err != nil {
		return nil, err
	}
	if err := r.Masquerade(); err != nil {
		return nil, err
	}
	if err := r.ReachServices([]netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}); err != nil {
		return nil, err
	}
	return open{r}, r.ServeNodePorts(router.Ports{First: 30000, Last: 32767})
}

// machine is a network namespace with the folder of an agent.
type machine struct {
	*os.File
	t           *testing.T
	dir, agents string
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	if err := sandbox.Supported(); err != nil {
		t.Skipf("SKIPPED: cleaning up after an agent needs root, namespaces and cgroups: %v", err)
	}
	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	namespace, err := netns.New()
	require.NoError(t, err)
	t.Cleanup(func() { _ = namespace.Close() })
	return &machine{namespace, t, dir, filepath.Join(t.TempDir(), "agents")}
}

func (m *machine) do(what func() error) {
	m.t.Helper()
	require.NoError(m.t, netns.Do(m.File, what))
}

// start starts the runtime of an agent.
func (m *machine) start() runtime.Runtime {
	m.t.Helper()
	r, err := process.New(host{}, process.Options{DataDir: m.dir, Agents: m.agents, Address: "127.0.0.1",
		Clock: clock.RealClock{}, OpenRouter: openAll, Log: slog.New(slog.DiscardHandler)})
	require.NoError(m.t, err)
	return r
}

// memory returns the folder of the agent's volumes in memory.
func (m *machine) memory() string { return "/run/coxswain-volumes/" + runtime.Digest(m.dir)[:12] }

func (m *machine) cleanup() error { return process.Cleanup(m.dir, m.agents) }

// left lists the kinds of things that agents have left on the machine.
func (m *machine) left() (all []string) {
	m.t.Helper()
	mounts, err := os.ReadFile("/proc/self/mounts")
	require.NoError(m.t, err)
	for line := range strings.Lines(string(mounts)) {
		if target := strings.Fields(line)[1]; strings.HasPrefix(target, m.dir) {
			all = append(all, "mount in the data folder")
		} else if strings.HasPrefix(target, m.memory()) {
			all = append(all, "mount")
		}
	}
	group := "coxswain/" + runtime.Digest(m.dir)[:12]
	for what, patterns := range map[string][]string{
		"cgroup": {"/sys/fs/cgroup/" + group, "/sys/fs/cgroup/*/" + group},
		"pod":    {m.dir + "/pods/*"}, "memory": {m.memory()}, "note": {m.agents + "/*"},
	} {
		for _, p := range patterns {
			found, err := filepath.Glob(p)
			require.NoError(m.t, err)
			for range found {
				all = append(all, what)
			}
		}
	}
	m.do(func() error {
		devices, err := netlink.LinkList()
		for _, d := range devices {
			all = append(all, "device "+d.Attrs().Name)
		}
		routes, failed := netlink.RouteList(nil, netlink.FAMILY_V4)
		for range routes {
			all = append(all, "route")
		}
		if err != nil || failed != nil {
			return fmt.Errorf("%w, %w", err, failed)
		}
		return nft.Once(nil, func(t *nft.Transaction) error {
			tables, err := t.ListTablesOfFamily(nftables.TableFamilyIPv4)
			for _, table := range tables {
				all = append(all, "table "+table.Name)
			}
			return err
		})
	})
	slices.Sort(all)
	return slices.Compact(all)
}

// runPod runs a pod with a volume in memory, until it is ready.
func (m *machine) runPod(r runtime.Runtime) {
	m.t.Helper()
	no, grace := false, int64(0)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default", UID: "uid-p"},
		Spec: corev1.PodSpec{NodeName: "node-0", EnableServiceLinks: &no, TerminationGracePeriodSeconds: &grace,
			Volumes: []corev1.Volume{{Name: "m", VolumeSource: corev1.VolumeSource{
				EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}}},
			Containers: []corev1.Container{{Name: "c", Image: "any", TerminationMessagePath: "/dev/termination-log",
				Command:      []string{"sleep", "1000"},
				VolumeMounts: []corev1.VolumeMount{{Name: "m", MountPath: "/m"}},
				Ports:        []corev1.ContainerPort{{HostPort: 8000, ContainerPort: 80}}}}}}
	var c runtime.Container
	m.do(func() error {
		if _, err := r.SetUp(m.t.Context(), pod, []string{"10.7.0.5"}); err != nil {
			return err
		}
		var err error
		c, err = r.Start(m.t.Context(), pod, &pod.Spec.Containers[0], 0, time.Now())
		return err
	})
	require.Eventually(m.t, func() bool { return c.State(time.Now()).Ready }, time.Minute, time.Millisecond)
}

func TestCleanup_RemovesAllTracesOfAnAgent(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	r := m.start()
	m.runPod(r)
	require.Equal(t, corev1.ConditionFalse, r.(runtime.Machine).Conditions("node-0")[0].Status, "the network is available")
	require.NoError(t, os.Symlink("anywhere", filepath.Join(m.dir, "netns")))
	require.ErrorContains(t, netns.Do(m.File, m.cleanup), "in use by another agent")
	_, err := process.New(host{}, process.Options{DataDir: m.dir, Clock: clock.RealClock{}})
	require.ErrorContains(t, err, "in use by another agent")

	m.do(func() error {
		r.Close()
		return nil
	})
	shim := sandbox.Adopt(sandbox.Config{Dir: filepath.Join(m.dir, "pods", "uid-p")})
	require.True(t, shim.Alive(), "pods outlive their agent")
	before := m.left()
	require.NotContains(t, before, "mount in the data folder")
	for _, what := range []string{"mount", "memory", "cgroup", "pod", "note", "route", "table coxswain"} {
		require.Contains(t, before, what)
	}

	m.do(m.cleanup)
	require.Equal(t, []string{"device lo"}, m.left())
	require.False(t, shim.Alive())
	_, err = os.Lstat(filepath.Join(m.dir, "netns"))
	require.ErrorIs(t, err, os.ErrNotExist)
	m.do(m.cleanup) // again
	m.start().Close()
}

// TestDataFolder_CanBeRemovedWhilePodsRun removes the folder of an agent that has ended. No mount is in it, and the
// pods end with all they have.
func TestDataFolder_CanBeRemovedWhilePodsRun(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	r := m.start()
	m.runPod(r)
	m.do(func() error {
		r.Close()
		return nil
	})
	require.NoError(t, os.RemoveAll(m.dir))
	require.Eventually(t, func() bool {
		left := m.left()
		return !slices.Contains(left, "mount") && !slices.Contains(left, "memory")
	}, time.Minute, 100*time.Millisecond)
}

// TestVolumesInMemory_GoWithoutTheirPod starts an agent after its data folder was removed and made again, while no shim
// ran.
func TestVolumesInMemory_GoWithoutTheirPod(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	left := filepath.Join(m.memory(), "uid-gone", "m")
	require.NoError(t, os.MkdirAll(left, 0o700))
	require.NoError(t, sandbox.MountMemory(left, 1<<20))
	r := m.start()
	require.NotContains(t, m.left(), "mount")
	require.NoDirExists(t, left)
	r.Close()
	require.NotContains(t, m.left(), "memory")
}

func TestCleanup_KillsProcessesOfAKilledShim(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	group := "coxswain/" + runtime.Digest(m.dir)[:12] + "/burstable/poduid-p"
	require.NoError(t, sandbox.Group(group, sandbox.Limits{CPUShares: 2}))
	left := exec.Command("sleep", "1000")
	require.NoError(t, left.Start())
	for _, pattern := range []string{"/sys/fs/cgroup/", "/sys/fs/cgroup/*/"} {
		files, err := filepath.Glob(pattern + group + "/cgroup.procs")
		require.NoError(t, err)
		for _, f := range files {
			require.NoError(t, os.WriteFile(f, []byte(fmt.Sprint(left.Process.Pid)), 0o600))
		}
	}
	require.Contains(t, m.left(), "cgroup")
	m.do(m.cleanup)
	require.ErrorContains(t, left.Wait(), "killed")
	require.NotContains(t, m.left(), "cgroup")
}

func TestCleanup_FailsWithoutTheFolder(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	require.ErrorIs(t, process.Cleanup(filepath.Join(m.dir, "none"), m.agents), os.ErrNotExist)
}
