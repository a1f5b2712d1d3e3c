//go:build e2e && linux

package network

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// foreign is the Node of the third machine. Its runtime is containerd.
const foreign = "d-0"

// Containers of the real containerd are on the same network as pods of our own agents.
func TestContainerd_ContainersHaveTheSameNetwork(t *testing.T) {
	t.Parallel()
	need(t)
	needContainerd(t)
	c, err := startClusterOf(nodes[:2], nil, "--network-mode", "vxlan")
	require.NoError(t, err)
	t.Cleanup(c.close)
	s := c.space(t)
	s.foreignNode()
	e := s.startContainerd(`disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.internal.v1.opt"]`)
	e.startDaemon()
	e.waitForConfiguration()
	container := e.start("web")
	s.foreignPod("web", container.address)

	client := s.pause("client")
	s.run("api", "api", on("b-0", program("serve")))
	host, err := os.Hostname()
	require.NoError(t, err)
	s.service("web", "web", nil)
	api := s.service("api", "api", nil)
	s.answers("client", fmt.Sprintf("http://%s:8080/clientip", container.address), client.Status.PodIP)
	s.answers("client", "http://web/hostname", host)
	container.answers("http://"+s.ready("api").Status.PodIP+":8080/hostname", "api")
	container.answers("http://"+api.Spec.ClusterIP+"/clientip", container.address)
	s.answersOn(s.machines[2], fmt.Sprintf("http://%s/hostname", api.Spec.ClusterIP), "api")

	s.surviveDaemon(e, container)
	s.onlyFrom("web", "api")
	s.silent("client", "http://web/hostname")
	s.answers("api", "http://web/hostname", host)
	container.stop()
	require.Empty(t, e.addresses(), "the address of a deleted container is free")
}

func needContainerd(t *testing.T) {
	t.Helper()
	for _, program := range []string{"containerd", "ctr", "runc", "unshare"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("SKIPPED: containers of containerd are not tested here: %v", err)
		}
	}
}

// surviveDaemon kills the daemon with kill -9 and restarts it, while a pod has a stream from the container.
func (s *space) surviveDaemon(e *containerd, of *foreignContainer) {
	s.Helper()
	until := make(chan struct{})
	stream := s.untilClosed(until, "hold", fmt.Sprintf("http://%s:8080/stream", of.address))
	connections := s.untilClosed(until, "get", "-until-eof", "-every", "2ms", "-timeout", "5s",
		fmt.Sprintf("http://%s:8080/hostname", of.address))
	for range 3 {
		s.processes["cni"].kill()
		e.startDaemon()
		e.waitForDaemon()
	}
	close(until)
	require.NoError(s, <-stream.ended, "the stream has broken")
	require.Contains(s, stream.out.String(), "held")
	require.NoError(s, <-connections.ended)
	total, failures := outcomes(connections.out.String())
	s.Logf("%d new connections, %d failed", total, len(failures))
	require.Greater(s, total, 10)
	require.Empty(s, failures)
}

// foreignNode creates the Node, like a kubelet, and renews its Lease.
func (s *space) foreignNode() {
	s.Helper()
	client, now := s.client, metav1.NewMicroTime(time.Now())
	n, err := client.CoreV1().Nodes().Create(s.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: foreign},
		Spec: corev1.NodeSpec{Unschedulable: true, PodCIDRs: []string{"10.244.13.0/24"}}}, metav1.CreateOptions{})
	require.NoError(s, err)
	n.ResourceVersion = "" // controllers have updated it meanwhile
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: s.machines[2].address}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue,
		Reason: "KubeletReady"}}
	_, err = client.CoreV1().Nodes().UpdateStatus(s.Context(), n, metav1.UpdateOptions{})
	require.NoError(s, err)
	leases := client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	lease, err := leases.Create(s.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: foreign},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: ptr.To(foreign), RenewTime: &now}}, metav1.CreateOptions{})
	require.NoError(s, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(5 * time.Second)
		defer tick.Stop()
		for ctx.Err() == nil {
			lease.Spec.RenewTime = ptr.To(metav1.NewMicroTime(time.Now()))
			if renewed, err := leases.Update(ctx, lease, metav1.UpdateOptions{}); err == nil {
				lease = renewed
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
	}()
	s.Cleanup(func() { cancel(); <-ended })
}

// foreignPod creates the pod of a container, like a kubelet.
func (s *space) foreignPod(name, address string) {
	s.Helper()
	s.create(name, name, on(foreign, corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "netexec",
		Ports: []corev1.ContainerPort{{ContainerPort: 8080}}}}}))
	pods := s.client.CoreV1().Pods(s.name)
	s.Cleanup(func() { // no kubelet does
		_ = pods.Delete(context.Background(), name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)})
	})
	s.eventually("the pod has a status", func() error {
		p, err := pods.Get(s.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		p.Status.Phase, p.Status.PodIP, p.Status.PodIPs = corev1.PodRunning, address, []corev1.PodIP{{IP: address}}
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		_, err = pods.UpdateStatus(s.Context(), p, metav1.UpdateOptions{})
		return err
	})
}

// onlyFrom creates a policy: pods with a label answer only pods with another label.
func (s *space) onlyFrom(label, from string) {
	s.Helper()
	_, err := s.client.NetworkingV1().NetworkPolicies(s.name).Create(s.Context(), &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: label},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": label}},
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
			Ingress: []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{
				{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": from}}}}}},
		}}, metav1.CreateOptions{})
	require.NoError(s, err)
}

// containerd is the test's own containerd, on the third machine.
type containerd struct {
	*space
	dir string
}

// startContainerd starts containerd, with additional configuration. All its folders differ from the machine's own
// containerd.
func (s *space) startContainerd(configuration string) *containerd {
	s.Helper()
	e := &containerd{s, filepath.Join(s.dir, "containerd")}
	require.NoError(s, os.MkdirAll(filepath.Join(e.dir, "rootfs"), 0o755))
	program, err := os.ReadFile(netexec)
	require.NoError(s, err)
	require.NoError(s, os.WriteFile(filepath.Join(e.dir, "rootfs", "netexec"), program, 0o755))
	require.NoError(s, os.WriteFile(filepath.Join(e.dir, "config.toml"), []byte(fmt.Sprintf(`version = 2
root = "%[1]s/root"
state = "%[1]s/run"
%[2]s
[grpc]
address = "%[1]s/grpc"
[ttrpc]
address = "%[1]s/ttrpc"
`, e.dir, strings.ReplaceAll(configuration, "DIR", e.dir))), 0o644))
	p, err := s.machines[2].start("containerd", "--config", filepath.Join(e.dir, "config.toml"))
	require.NoError(s, err)
	s.processes["containerd"] = p
	s.eventually("containerd answers", func() error { _, err := e.ctr("version"); return err })
	return e
}

func (e *containerd) state() string { return filepath.Join(e.dir, "state") }

func (e *containerd) ctr(args ...string) (string, error) {
	return e.machines[2].try("ctr", append([]string{"--address", filepath.Join(e.dir, "grpc")}, args...)...)
}

func (e *containerd) daemon(more ...string) []string {
	return append([]string{"cni", "serve", "--kubeconfig", filepath.Join(e.cluster.dir, "network.kubeconfig"),
		"--node-name", foreign, "--network-mode", "vxlan", "--state-dir", e.state(),
		"--cni-conf-dir", filepath.Join(e.dir, "net.d"), "--cni-bin-dir", filepath.Join(e.dir, "bin")}, more...)
}

func (e *containerd) startDaemon() {
	e.Helper()
	first := e.processes["cni"] == nil
	require.NoError(e, e.cluster.start(e.machines[2], "cni", e.daemon()...))
	if first {
		e.Cleanup(func() {
			e.processes["cni"].kill()
			_, err := e.machines[2].try(coxswain, e.daemon("--cleanup")...)
			require.NoError(e, err)
			require.NoDirExists(e, e.state())
		})
	}
}

func (e *containerd) waitForConfiguration() {
	e.Helper()
	e.eventually("runtimes find the network", func() error {
		_, err := os.Stat(filepath.Join(e.dir, "net.d", "10-coxswain.conflist"))
		return err
	})
}

func (e *containerd) waitForDaemon() {
	e.Helper()
	e.eventually("the daemon is ready", func() error {
		_, err := e.machines[2].try(coxswain, "health", "https://127.0.0.1:10247/readyz")
		return err
	})
}

// addresses returns the allocated addresses, by container.
func (e *containerd) addresses() map[string]string {
	e.Helper()
	links, err := filepath.Glob(filepath.Join(e.state(), "addresses", "*"))
	require.NoError(e, err)
	owners := map[string]string{}
	for _, link := range links {
		if attachment, err := os.Readlink(link); err == nil {
			owners[strings.Split(attachment, "/")[1]] = filepath.Base(link)
		}
	}
	return owners
}

// foreignContainer is a container of containerd.
type foreignContainer struct {
	*containerd
	name, address string
	process       *process
}

// start runs a server in a container. The folders of ctr are a machine's, so they are the daemon's.
func (e *containerd) start(name string) *foreignContainer {
	e.Helper()
	const folders = `mount -t tmpfs none /etc && mkdir -p /etc/cni/net.d && mount --bind "$0/net.d" /etc/cni/net.d &&
		mount -t tmpfs none /opt && mkdir -p /opt/cni/bin && mount --bind "$0/bin" /opt/cni/bin &&
		mount -t tmpfs none /var/lib && exec ctr --address "$0/grpc" run --rm --cni --rootfs "$0/rootfs" "$1" /netexec serve`
	p, err := e.machines[2].start("unshare", "--mount", "sh", "-c", folders, e.dir, name)
	require.NoError(e, err)
	c := &foreignContainer{e, name, "", p}
	e.processes["ctr"] = p
	e.Cleanup(c.stop)
	e.eventually("the container runs", func() error {
		select {
		case <-p.exited:
			return errors.New(p.out.tail())
		default:
		}
		_, err := e.ctr("task", "exec", "--exec-id", fmt.Sprint("start", time.Now().UnixNano()), name, "/netexec", "get",
			"http://127.0.0.1:8080/hostname")
		c.address = e.addresses()["default-"+name]
		return err
	})
	require.NotEmpty(e, c.address)
	return c
}

func (c *foreignContainer) answers(url, want string) {
	c.Helper()
	c.eventually(url+" answers the container", func() error {
		out, err := c.ctr("task", "exec", "--exec-id", fmt.Sprint("get", time.Now().UnixNano()), c.name, "/netexec",
			"get", url)
		if err != nil {
			return err
		}
		return just(strings.Fields(out), nil, []string{want})
	})
}

// stop ends the container, and waits until ctr has removed its network.
func (c *foreignContainer) stop() {
	_, _ = c.ctr("task", "kill", "--signal", "KILL", c.name) // it may have ended
	<-c.process.exited
}
