package process

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/node/process/sandbox"
	"github.com/coxswain-dev/coxswain/node/runtime"
)

func TestSetRights_PrefersTheContainersSettings(t *testing.T) {
	t.Parallel()
	pod := &corev1.Pod{Spec: corev1.PodSpec{SecurityContext: &corev1.PodSecurityContext{
		RunAsUser: ptr.To(int64(60_001)), RunAsGroup: ptr.To(int64(60_002)), FSGroup: ptr.To(int64(60_003)),
		SupplementalGroups: []int64{60_004}, SeccompProfile: &corev1.SeccompProfile{
			Type: corev1.SeccompProfileTypeRuntimeDefault}}}}
	rights := func(c *corev1.SecurityContext) (*sandbox.Container, *account) {
		t.Helper()
		pc := &sandbox.Container{}
		user, err := setRights(pc, pod, &corev1.Container{SecurityContext: c})
		require.NoError(t, err)
		return pc, user
	}
	pc, user := rights(nil)
	require.Equal(t, []uint32{60_001, 60_002}, []uint32{pc.UID, pc.GID})
	require.Equal(t, []uint32{60_002, 60_004, 60_003}, pc.Groups)
	require.True(t, pc.Seccomp)
	require.Equal(t, "/", user.home, "a user without an entry")

	pc, _ = rights(&corev1.SecurityContext{RunAsUser: ptr.To(int64(0)), RunAsGroup: ptr.To(int64(7)),
		AllowPrivilegeEscalation: ptr.To(false), ReadOnlyRootFilesystem: ptr.To(true), Privileged: ptr.To(true),
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeUnconfined},
		Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"CAP_CHOWN"}}})
	require.Equal(t, []uint32{0, 7}, []uint32{pc.UID, pc.GID})
	require.True(t, pc.NoNewPrivileges && pc.ReadOnlyRoot && pc.Privileged && !pc.Seccomp)
	require.Equal(t, []int{sandbox.CapabilityNumbers["CHOWN"]}, pc.Capabilities)

	_, err := setRights(&sandbox.Container{}, &corev1.Pod{}, &corev1.Container{SecurityContext: &corev1.SecurityContext{
		RunAsNonRoot: ptr.To(true)}})
	require.ErrorAs(t, err, &runtime.ConfigError{})
}

func TestSetRights_UsesTheUsersHomeAndGroups(t *testing.T) {
	t.Parallel()
	pc := &sandbox.Container{}
	user, err := setRights(pc, &corev1.Pod{}, &corev1.Container{})
	require.NoError(t, err)
	require.Equal(t, lookUp(0).home, user.home)
	require.Contains(t, withPath(nil, "name", "/var/lib/it"), "HOME=/var/lib/it")
	require.NotContains(t, withPath([]string{"HOME=/else"}, "name", "/var/lib/it"), "HOME=/var/lib/it")

	// nobody has a group of its own on every machine, but not the same one
	nobody := lookUp(65534)
	if nobody.gid == 0 {
		t.Skip("SKIPPED: the machine has no user nobody")
	}
	context := &corev1.PodSecurityContext{RunAsUser: ptr.To(int64(65534))}
	pod := &corev1.Pod{Spec: corev1.PodSpec{SecurityContext: context}}
	_, err = setRights(pc, pod, &corev1.Container{})
	require.NoError(t, err)
	require.Equal(t, nobody.gid, pc.GID)
	pod.Spec.SecurityContext.RunAsGroup = ptr.To(int64(60_000))
	merged := &sandbox.Container{}
	_, err = setRights(merged, pod, &corev1.Container{})
	require.NoError(t, err)
	require.Contains(t, merged.Groups, nobody.gid, "the policy Merge adds the user's groups")
	pod.Spec.SecurityContext.SupplementalGroupsPolicy = ptr.To(corev1.SupplementalGroupsPolicyStrict)
	strict := &sandbox.Container{}
	_, err = setRights(strict, pod, &corev1.Container{})
	require.NoError(t, err)
	require.Equal(t, []uint32{60_000}, strict.Groups)
}

func amounts(cpu, memory string) corev1.ResourceList {
	list := corev1.ResourceList{}
	if cpu != "" {
		list[corev1.ResourceCPU] = resource.MustParse(cpu)
	}
	if memory != "" {
		list[corev1.ResourceMemory] = resource.MustParse(memory)
	}
	return list
}

func TestPodLimits_PreferThePodsResources(t *testing.T) {
	t.Parallel()
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{
		{Name: "a", Resources: corev1.ResourceRequirements{Requests: amounts("1", "1Gi"), Limits: amounts("2", "1Gi")}},
		{Name: "b", Resources: corev1.ResourceRequirements{Requests: amounts("1", ""), Limits: amounts("1", "")}}}}}
	require.Equal(t, sandbox.Limits{CPUShares: 2048, CPUQuota: 300_000}, podLimits(pod),
		"one container may take as much memory as there is")
	pod.Spec.Containers[1].Resources.Limits = amounts("1", "512Mi")
	require.Equal(t, sandbox.Limits{CPUShares: 2048, CPUQuota: 300_000, MemoryBytes: 1536 << 20}, podLimits(pod))
	pod.Spec.Containers[0].Resources.Limits = nil
	pod.Spec.Resources = &corev1.ResourceRequirements{Limits: amounts("", "4Gi"), Requests: amounts("3", "")}
	require.Equal(t, sandbox.Limits{CPUShares: 3072, MemoryBytes: 4 << 30}, podLimits(pod), "the pod's own come first")
	pod.Spec.Resources, pod.Spec.Containers = nil, []corev1.Container{{Name: "a"}}
	require.Equal(t, sandbox.Limits{CPUShares: leastShares}, podLimits(pod))
}

func TestPodCgroup_DependsOnTheQoSClass(t *testing.T) {
	t.Parallel()
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a"}}}}
	pod.UID = "u"
	require.Equal(t, "root/besteffort/podu", podCgroup("root", pod))
	pod.Spec.Containers[0].Resources.Requests = amounts("1", "")
	require.Equal(t, "root/burstable/podu", podCgroup("root", pod))
	pod.Spec.Containers[0].Resources.Requests, pod.Spec.Containers[0].Resources.Limits = nil, amounts("1", "1Gi")
	pod.Spec.Containers[0].Resources.Requests = amounts("1", "1Gi")
	require.Equal(t, "root/podu", podCgroup("root", pod))
	require.ElementsMatch(t, []string{"root/podu", "root/burstable/podu", "root/besteffort/podu"},
		podCgroups("root", "u"))
}

func TestOOMScore_MatchesTheKubelet(t *testing.T) {
	t.Parallel()
	const capacity = 8 << 30
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a"}}}}
	score := func() int32 { return oomScore(pod, &pod.Spec.Containers[0], capacity) }
	require.EqualValues(t, 1000, score())
	pod.Spec.Containers[0].Resources.Requests = amounts("1", "2Gi")
	require.EqualValues(t, 750, score())
	pod.Spec.Containers[0].Resources.Requests = amounts("1", "1Mi")
	require.EqualValues(t, 999, score(), "sooner than none of the class BestEffort")
	pod.Spec.Containers[0].Resources.Requests = amounts("1", "1Pi")
	require.EqualValues(t, 3, score(), "later than all of the class Guaranteed")
	pod.Spec.Containers[0].Resources.Limits = amounts("1", "1Pi")
	require.EqualValues(t, -997, score())
	pod = &corev1.Pod{Spec: corev1.PodSpec{PriorityClassName: systemNodeCritical,
		Containers: []corev1.Container{{Name: "a"}}}}
	require.EqualValues(t, -997, score())
	pod = &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a"}, {Name: "b"}},
		Resources: &corev1.ResourceRequirements{Requests: amounts("", "4Gi")}}}
	require.EqualValues(t, 750, score(), "half of the pod's own request")
}

func TestStopSignal_FollowsTheSpec(t *testing.T) {
	t.Parallel()
	for name, want := range map[corev1.Signal]int{"SIGTERM": 15, "SIGUSR1": 10, "SIGKILL": 9, "SIGRTMIN": 34,
		"SIGRTMIN+3": 37, "SIGRTMAX-1": 63, "SIGRTMAX": 64} {
		c := &corev1.Container{Lifecycle: &corev1.Lifecycle{StopSignal: &name}}
		require.EqualValues(t, want, stopSignal(c), name)
	}
	require.EqualValues(t, 15, stopSignal(&corev1.Container{}))
}

func TestHidden_IncludesPathsOfOtherAgents(t *testing.T) {
	t.Parallel()
	agents, first, second := filepath.Join(t.TempDir(), "agents"), t.TempDir(), t.TempDir()
	agent := func(dir string) *Runtime {
		r := &Runtime{Options: Options{Agents: agents}, dir: dir, hide: []string{dir}}
		require.NoError(t, r.register())
		return r
	}
	a, b := agent(first), agent(second)
	want := []string{agents, first, second, memoryRoot}
	require.ElementsMatch(t, want, a.maskedPaths())
	require.ElementsMatch(t, want, b.maskedPaths())
	require.NoError(t, os.RemoveAll(second))
	agent(first)
	require.ElementsMatch(t, []string{agents, first, memoryRoot}, a.maskedPaths(), "what is gone is forgotten")
	require.NoError(t, os.WriteFile(filepath.Join(agents, "broken.json"), []byte("["), 0o600))
	require.ElementsMatch(t, []string{agents, first, memoryRoot}, a.maskedPaths())
	require.Equal(t, []string{first, memoryRoot}, (&Runtime{hide: []string{first}}).maskedPaths())
	require.NoError(t, os.Chmod(agents, 0o777))
	require.ErrorContains(t, a.register(), "is not a folder that is written by this user alone")
}
