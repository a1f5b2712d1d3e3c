package node_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/node"
)

// Such a pod must not run with less isolation than it asks for, because Pod Security permits it more in return.
func TestPrograms_WithUnsupportedFieldsAreRejected(t *testing.T) {
	t.Parallel()
	p := startPrograms(t, node.Options{})
	p.run("p", "node-0", "sleep 1000", func(pod *corev1.Pod) { pod.Spec.HostUsers = ptr.To(false) })
	p.eventually("the pod is refused", func() bool { return p.pod("p").Status.Phase == corev1.PodFailed })
	status := p.pod("p").Status
	require.Equal(t, "PodFeatureUnsupported", status.Reason)
	require.Contains(t, status.Message, "spec.hostUsers: the process runtime makes no user namespaces")
	p.eventually("there is an Event", func() bool {
		list, err := p.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{
			FieldSelector: "involvedObject.name=p,reason=PodFeatureUnsupported"})
		return err == nil && len(list.Items) == 1 && list.Items[0].Type == corev1.EventTypeWarning &&
			strings.Contains(list.Items[0].Message, "spec.hostUsers")
	})

	p.run("ephemeral", "node-0", "sleep 1000")
	p.eventually("the pod runs", func() bool { return p.pod("ephemeral").Status.Phase == corev1.PodRunning })
	added := corev1.EphemeralContainerCommon{Name: "e", Image: "any", SecurityContext: &corev1.SecurityContext{
		SELinuxOptions: &corev1.SELinuxOptions{Level: "s0"}}}
	require.NoError(t, retry.RetryOnConflict(retry.DefaultRetry, func() error { // the agent writes the status meanwhile
		pod := p.pod("ephemeral")
		pod.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: added}}
		_, err := p.CoreV1().Pods("default").UpdateEphemeralContainers(t.Context(), "ephemeral", pod,
			metav1.UpdateOptions{})
		return err
	}))
	p.eventually("a container that comes later is refused", func() bool {
		s := p.pod("ephemeral").Status.EphemeralContainerStatuses
		return len(s) == 1 && s[0].State.Waiting != nil && s[0].State.Waiting.Reason == "CreateContainerConfigError" &&
			strings.Contains(s[0].State.Waiting.Message, "seLinuxOptions")
	})
}

func TestPrograms_FollowTheirSpec(t *testing.T) {
	t.Parallel()
	p := startPrograms(t, node.Options{})
	machine, err := os.ReadFile("/proc/self/mountinfo")
	require.NoError(t, err)
	require.NotEmpty(t, machine)
	ns := func(kind string) string {
		link, err := os.Readlink("/proc/self/ns/" + kind)
		require.NoError(t, err)
		return link
	}
	const look = `pwd; echo "args $1 HOME $HOME"; for n in net ipc pid; do echo $n $(readlink /proc/self/ns/$n); done
		echo x > /ro/f || echo ro; echo y > /rw/g && ls /rw; echo said > /message; cat /etc/hosts; echo done`
	change := func(pod *corev1.Pod) {
		pod.Spec.RestartPolicy = corev1.RestartPolicyNever
		pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
			EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
		c := &pod.Spec.Containers[0]
		c.Args = []string{"name", "first"}
		c.WorkingDir, c.TerminationMessagePath = "/usr", "/message"
		c.VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/rw", SubPath: "sub"},
			{Name: "v", MountPath: "/ro", ReadOnly: true}}
	}
	own := p.run("own", "node-0", look, change)
	p.logs(own, "done")
	log := p.log(own)
	for _, want := range []string{" /usr\n", "args first HOME /root\n", " ro\n", " g\n"} {
		require.Contains(t, log, want)
	}
	for _, kind := range []string{"net", "ipc", "pid"} {
		require.NotContains(t, log, ns(kind))
	}
	p.eventually("the message is there", func() bool {
		s := p.pod("own").Status.ContainerStatuses
		return len(s) == 1 && s[0].State.Terminated != nil && s[0].State.Terminated.Message == "said\n"
	})
	shared := p.run("shared", "node-0", look, change, func(pod *corev1.Pod) {
		pod.Spec.HostNetwork, pod.Spec.HostIPC, pod.Spec.HostPID = true, true, true
		pod.Spec.HostAliases = []corev1.HostAlias{{IP: "192.0.2.7", Hostnames: []string{"alias"}}}
	})
	p.logs(shared, "done")
	for _, kind := range []string{"net", "ipc", "pid"} {
		require.Contains(t, p.log(shared), ns(kind))
	}
	require.Contains(t, p.log(shared), "192.0.2.7\talias")
}

func TestContainers_EndBySignalWithinTheirGracePeriod(t *testing.T) {
	t.Parallel()
	p := startPrograms(t, node.Options{})
	stop := p.run("stop", "node-0", `trap "echo got; exit 0" USR1; trap "" TERM; echo up; while :; do sleep 0.02; done`,
		func(pod *corev1.Pod) {
			pod.Spec.OS = &corev1.PodOS{Name: corev1.Linux}
			pod.Spec.TerminationGracePeriodSeconds = ptr.To(int64(1000))
			pod.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{StopSignal: ptr.To(corev1.Signal("SIGUSR1"))}
			pod.Finalizers = []string{"example.com/hold"}
		})
	p.logs(stop, "up")
	require.NoError(t, p.CoreV1().Pods("default").Delete(t.Context(), "stop", metav1.DeleteOptions{}))
	p.logs(stop, "got")
	_, err := p.CoreV1().Pods("default").Patch(t.Context(), "stop", "application/merge-patch+json",
		[]byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	require.NoError(t, err)

	p.run("startup", "node-0", `trap "" TERM; while :; do sleep 0.02; done`, func(pod *corev1.Pod) {
		pod.Spec.TerminationGracePeriodSeconds = ptr.To(int64(1000))
		pod.Spec.Containers[0].StartupProbe = &corev1.Probe{FailureThreshold: 1,
			TerminationGracePeriodSeconds: ptr.To(int64(1)),
			ProbeHandler:                  corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"false"}}}}
	})
	p.eventually("the container is killed within the probe's grace period", func() bool {
		s := p.pod("startup").Status.ContainerStatuses
		return len(s) == 1 && s[0].RestartCount > 0
	})
}

func TestPrograms_HaveSecretsInMemoryAndConfigMapsOnDisk(t *testing.T) {
	t.Parallel()
	p := startPrograms(t, node.Options{})
	_, err := p.CoreV1().Secrets("default").Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"},
		StringData: map[string]string{"k": "secret-value"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	pod := p.run("p", "node-0", "cat /s/k /d/n; echo; echo done; sleep 1000", func(pod *corev1.Pod) {
		fields := []corev1.DownwardAPIVolumeFile{{Path: "n", FieldRef: &corev1.ObjectFieldSelector{
			FieldPath: "metadata.name"}}}
		pod.Spec.Volumes = []corev1.Volume{
			{Name: "s", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}},
			{Name: "d", VolumeSource: corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: fields}}},
			{Name: "p", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
				Sources: []corev1.VolumeProjection{{DownwardAPI: &corev1.DownwardAPIProjection{Items: fields}}}}}},
			{Name: "c", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
				LocalObjectReference: corev1.LocalObjectReference{Name: "no"}, Optional: ptr.To(true)}}},
		}
		pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "s", MountPath: "/s"}, {Name: "d", MountPath: "/d"}}
	})
	p.logs(pod, "done")
	require.Contains(t, p.log(pod), "secret-value")
	const tmpfs = 0x01021994
	for name, memory := range map[string]bool{"s": true, "d": true, "p": true, "c": false} {
		var st syscall.Statfs_t
		folders := []string{filepath.Join(p.dir, "pods", string(pod.UID), "volumes", name)}
		if memory {
			var err error
			folders, err = filepath.Glob(filepath.Join("/run/coxswain-volumes/*", string(pod.UID), name))
			require.NoError(t, err)
			require.Len(t, folders, 1, name)
		}
		require.NoError(t, syscall.Statfs(folders[0], &st))
		require.Equal(t, memory, st.Type == tmpfs, name)
	}
	// another pod must not see it, although it is not on the hidden disk
	volumes, err := filepath.Glob(filepath.Join("/run/coxswain-volumes/*", string(pod.UID), "s"))
	require.NoError(t, err)
	volume := volumes[0]
	p.run("thief", "node-0", "cat /v/k", func(pod *corev1.Pod) {
		pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
			HostPath: &corev1.HostPathVolumeSource{Path: volume}}}}
		pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
	})
	p.eventually("a volume of it is refused", func() bool {
		list, err := p.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{
			FieldSelector: "involvedObject.name=thief,reason=FailedMount"})
		return err == nil && len(list.Items) == 1 && strings.Contains(list.Items[0].Message, "containers do not see")
	})
	above := p.run("above", "node-0", "cat /host"+volume+"/k /host"+volume+"/..data/k; echo done",
		func(pod *corev1.Pod) {
			pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
				HostPath: &corev1.HostPathVolumeSource{Path: "/"}}}}
			pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/host"}}
		})
	p.logs(above, "done")
	require.NotContains(t, p.log(above), "secret-value")
}

func TestStorage_PodsThatExceedTheirLimitsAreEvicted(t *testing.T) {
	t.Parallel()
	p := startPrograms(t, node.Options{Eviction: node.EvictionOptions{StorageEvery: 50 * time.Millisecond}})
	limit := resource.MustParse("1Mi")
	p.run("volume", "node-0", "head -c 3000000 /dev/zero > /v/f; sleep 1000", func(pod *corev1.Pod) {
		pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
			EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: &limit}}}}
		pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
	})
	p.run("root", "node-0", "head -c 3000000 /dev/zero > /tmp/f; sleep 1000", func(pod *corev1.Pod) {
		pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceEphemeralStorage: limit}
	})
	p.run("small", "node-0", "sleep 1000", func(pod *corev1.Pod) {
		pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceEphemeralStorage: limit}
	})
	for name, want := range map[string]string{"volume": `Usage of EmptyDir volume "v" exceeds the limit "1Mi". `,
		"root": "Pod ephemeral local storage usage exceeds the total limit of containers 1Mi. "} {
		p.eventually("it is evicted", func() bool {
			s := p.pod(name).Status
			return s.Phase == corev1.PodFailed && s.Reason == "Evicted" && s.Message == want
		})
	}
	require.Equal(t, corev1.PodRunning, p.pod("small").Status.Phase)
}

func TestPrograms_AreInTheCgroupOfTheirQoSClass(t *testing.T) {
	t.Parallel()
	reserved := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("256Mi"),
		corev1.ResourceCPU: resource.MustParse("100m")}
	p := startPrograms(t, node.Options{Reserved: reserved})
	pod := p.run("p", "node-0", "echo up; sleep 1000", func(pod *corev1.Pod) {
		pod.Spec.Resources = &corev1.ResourceRequirements{Limits: corev1.ResourceList{
			corev1.ResourceMemory: resource.MustParse("64Mi")}}
	})
	p.logs(pod, "up")
	seen, err := p.CoreV1().Nodes().Get(t.Context(), "node-0", metav1.GetOptions{})
	require.NoError(t, err)
	for name, amount := range reserved {
		left := seen.Status.Capacity[name]
		left.Sub(amount)
		require.Zero(t, left.Cmp(seen.Status.Allocatable[name]), name)
	}
	value := func(pattern, v1, v2 string) string {
		t.Helper()
		for _, file := range []string{"/sys/fs/cgroup/memory/coxswain/*" + pattern + "/" + v1,
			"/sys/fs/cgroup/coxswain/*" + pattern + "/" + v2} {
			if found, _ := filepath.Glob(file); len(found) == 1 {
				text, err := os.ReadFile(found[0])
				require.NoError(t, err)
				return strings.TrimSpace(string(text))
			}
		}
		t.Fatalf("no cgroup %s", pattern)
		return ""
	}
	group := "/burstable/pod" + string(pod.UID)
	require.Equal(t, "67108864", value(group, "memory.limit_in_bytes", "memory.max"))
	value(group+"/c", "memory.limit_in_bytes", "memory.max")
}
