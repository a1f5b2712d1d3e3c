//go:build e2e

package e2e

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/test/podnetwork"
)

// withAccount waits until pods can be created.
func (c *cluster) withAccount() *cluster {
	c.t.Helper()
	eventually(c.t, time.Minute, "the account of the pods exists", func() bool {
		out, err := c.kubectlWith("", "get", "serviceaccount", "default", "-o", "name")
		return err == nil && out != ""
	})
	return c
}

// prints waits until kubectl prints this.
func (c *cluster) prints(want string, args ...string) {
	c.t.Helper()
	eventually(c.t, 60*time.Second, fmt.Sprintf("kubectl %v prints %q", args, want), func() bool {
		out, err := c.kubectlWith("", args...)
		return err == nil && strings.Contains(out, want)
	})
}

// podDevices returns the devices of pod networks on this machine.
func podDevices(t *testing.T) map[string]bool {
	t.Helper()
	devices, err := net.Interfaces()
	require.NoError(t, err)
	all := map[string]bool{}
	for _, d := range devices {
		if strings.HasPrefix(d.Name, "cox") {
			all[d.Name] = true
		}
	}
	return all
}

// TestPrograms_ReachEachOther checks the network of a node's pods. It kills the agent in the middle.
func TestPrograms_ReachEachOther(t *testing.T) {
	needNamespaces(t)
	if err := podnetwork.Unsupported(); err != nil {
		t.Skipf("SKIPPED: the network of pods takes network namespaces and nftables, and is not tested here: %v", err)
	}
	before := podDevices(t)
	dir := dataDir(t)
	c := up(t, dir, "--runtime", "process").withAccount()
	c.kubectl("apply", "-f", "testdata/network.yaml")
	c.kubectl("wait", "--for=condition=ready", "pod/server", "pod/client", "--timeout=50s")
	ip := c.kubectl("get", "pod", "server", "-o", "jsonpath={.status.podIP}")
	own := c.kubectl("get", "pod", "client", "-o", "jsonpath={.status.podIP}")
	gateway := ip[:strings.LastIndex(ip, ".")] + ".1"
	reach := func(name string) {
		t.Helper()
		eventually(t, time.Minute, "the node reaches the pod", func() bool {
			r, err := http.Get("http://" + ip + ":8080/")
			if err != nil {
				return false
			}
			defer r.Body.Close()
			body, err := io.ReadAll(r.Body)
			return err == nil && string(body) == "hello "+gateway+"\n"
		})
		require.Equal(t, "hello "+own+"\n", c.kubectl("exec", "client", "--", "perl", "-MIO::Socket::INET", "-e",
			`$s = IO::Socket::INET->new(PeerAddr => "`+ip+
				`:8080", Timeout => 20) or die $!; print $s "GET / HTTP/1.0\r\n\r\n"; local $/; <$s> =~ /\r\n\r\n(.*)/s; print $1`), name)
		require.Contains(t, c.kubectl("get", "--raw", "/api/v1/namespaces/default/pods/server:8080/proxy/"), "hello ")
		c.prints("hello ", "get", "--raw", "/api/v1/namespaces/default/services/server:80/proxy/")
		require.Contains(t, c.forwarded("pod/server", "8080"), "hello 127.0.0.1")
	}
	reach("before the agent is killed")
	require.Len(t, podDevices(t), len(before)+1)
	c.server.kill()
	c = up(t, dir, "--runtime", "process")
	c.agentAnswers()
	c.kubectl("apply", "-f", "testdata/network.yaml")
	reach("after the agent is killed")
	require.Len(t, podDevices(t), len(before)+1, "the network is still the same")
	c.kubectl("delete", "pod", "client", "--wait=true")
	c.kubectl("apply", "-f", "testdata/network.yaml")
	c.kubectl("wait", "--for=condition=ready", "pod/client", "--timeout=50s")
	own = c.kubectl("get", "pod", "client", "-o", "jsonpath={.status.podIP}")
	reach("with a new pod")
	c.kubectl("delete", "-f", "testdata/network.yaml", "--wait=true")
	c.server.interrupt()
	eventually(t, time.Minute, "the network is removed", func() bool {
		return len(podDevices(t)) == len(before)
	})
}

// TestPrograms_SeeEachOthersProcesses checks shareProcessNamespace, and kubectl debug with a target.
func TestPrograms_SeeEachOthersProcesses(t *testing.T) {
	needNamespaces(t)
	dir := dataDir(t)
	c := up(t, dir, "--runtime", "process").withAccount()
	c.kubectl("apply", "-f", "testdata/processes.yaml")
	c.kubectl("wait", "--for=condition=ready", "pod/shared", "pod/apart", "--timeout=50s")
	ps := []string{"--", "ps", "-e", "-o", "args="}
	require.Contains(t, c.kubectl(append([]string{"exec", "shared", "-c", "other"}, ps...)...), "sleep 2345")
	require.NotContains(t, c.kubectl(append([]string{"exec", "apart", "-c", "other"}, ps...)...), "sleep 3456")
	c.kubectl("debug", "apart", "--image=any", "--target=work", "--container=debugger", "--profile=general", "--", "sh",
		"-c", "ps -p 1 -o args=; echo done")
	c.prints("done", "logs", "apart", "-c", "debugger")
	require.Equal(t, "sleep 3456\ndone\n", c.kubectl("logs", "apart", "-c", "debugger"))
	require.Contains(t, c.kubectl("exec", "apart", "-c", "work", "--", "cat", "/etc/hosts"), "10.9.8.7\tdb.example.com")
	require.Contains(t, c.kubectl("exec", "apart", "-c", "work", "--", "cat", "/etc/resolv.conf"),
		" cluster.local example.com\nnameserver 10.96.0.10\n")
	c.prints("DeadlineExceeded", "get", "pod", "brief", "-o", "jsonpath={.status.phase} {.status.reason}")
	uids := strings.Fields(c.kubectl("get", "pods", "-o", "jsonpath={.items[*].metadata.uid}"))
	c.kubectl("delete", "-f", "testdata/processes.yaml", "--wait=true")
	eventually(t, time.Minute, "all remains are removed", func() bool { return len(leftOf(t, dir, uids)) == 0 })
	c.server.interrupt()
}

// TestPrograms_AreEvicted restarts an agent with an eviction threshold that every machine exceeds.
func TestPrograms_AreEvicted(t *testing.T) {
	needNamespaces(t)
	dir := dataDir(t)
	c := up(t, dir, "--runtime", "process").withAccount()
	c.kubectl("run", "p", "--image=any", "--restart=Never", "--command", "--", "sleep", "1000")
	c.kubectl("wait", "--for=condition=ready", "pod/p", "--timeout=50s")
	c.server.kill()
	c = up(t, dir, "--runtime", "process", "--eviction-hard", "nodefs.available<99.9999%")
	c.prints("Failed Evicted", "get", "pod", "p", "-o", "jsonpath={.status.phase} {.status.reason}")
	c.prints("The node was low on resource: ephemeral-storage.", "describe", "pod", "p")
	c.prints("True KubeletHasDiskPressure", "get", "node", "node-0", "-o",
		`jsonpath={.status.conditions[?(@.type=="DiskPressure")]['status','reason']}`)
	c.prints("node.kubernetes.io/disk-pressure:NoSchedule", "describe", "node", "node-0")
	uids := strings.Fields(c.kubectl("get", "pods", "-o", "jsonpath={.items[*].metadata.uid}"))
	c.kubectl("delete", "pod", "p")
	eventually(t, time.Minute, "all remains are removed", func() bool { return len(leftOf(t, dir, uids)) == 0 })
	c.server.interrupt()
}

// TestSimulated_NodeUnderPressure shows how users test their pods on a node under pressure.
func TestSimulated_NodeUnderPressure(t *testing.T) {
	c := up(t, dataDir(t), "--nodes", "1", "--eviction-pressure-transition-period", "15s").withAccount()
	c.kubectl("run", "greedy", "--image=any", "--annotations=sim.coxswain.dev/memory=1Gi")
	c.kubectl("wait", "--for=condition=ready", "pod/greedy", "--timeout=50s")
	c.kubectl("annotate", "node", "node-0", "sim.coxswain.dev/memory=127.5Gi")
	c.prints("Failed Evicted", "get", "pod", "greedy", "-o", "jsonpath={.status.phase} {.status.reason}")
	c.prints("The node was low on resource: memory.", "describe", "pod", "greedy")
	c.prints("True", "get", "node", "node-0", "-o", `jsonpath={.status.conditions[?(@.type=="MemoryPressure")].status}`)
	c.prints("False", "get", "node", "node-0", "-o",
		`jsonpath={.status.conditions[?(@.type=="MemoryPressure")].status}`)
	c.server.interrupt()
}

// TestNode_ShutsDownGracefully shuts down an agent, which must end its pods.
func TestNode_ShutsDownGracefully(t *testing.T) {
	needNamespaces(t)
	dir := dataDir(t)
	c := serving(t, start(t, "apiserver", "--data-dir", dir, "--secure-port", "0", "--nodes", "1"), dir)
	// The controllers sign the agent's serving certificate; without it the API server does not connect to the agent for
	// logs. The certificate is for an address of the API server's machine, which requires an administrator's approval.
	c.component("controllers", "--cluster-signing-kubelet-serving-cert-file",
		filepath.Join(dir, "pki", "kubelet-serving-ca.crt"), "--cluster-signing-kubelet-serving-key-file",
		filepath.Join(dir, "pki", "kubelet-serving-ca.key"))
	_, err := c.kubectlWith(`{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-0",
		"labels": {"node-role.kubernetes.io/control-plane": ""}}}`, "create", "-f", "-")
	require.NoError(t, err)
	c.component("scheduler")
	root := filepath.Join(dir, "node")
	agent := func() *process {
		return c.component("node", "--nodes", "1", "--runtime", "process", "--root-dir", root,
			"--network-kubeconfig", filepath.Join(dir, "network.kubeconfig"),
			"--shutdown-grace-period", "30s", "--shutdown-grace-period-critical-pods", "10s")
	}
	node := agent()
	c.withAccount()
	c.kubectl("run", "p", "--image=any", "--restart=Never", "--command", "--", "sh", "-c",
		`trap "echo bye; exit 0" TERM; echo up; while :; do sleep 0.1; done`)
	c.prints("up", "logs", "p")
	uids := strings.Fields(c.kubectl("get", "pods", "-o", "jsonpath={.items[*].metadata.uid}"))
	node.signal(syscall.SIGTERM)
	node.waitExit(60 * time.Second)
	require.NoError(t, node.err)
	require.Equal(t, "Failed Terminated Pod was terminated in response to imminent node shutdown.",
		c.kubectl("get", "pod", "p", "-o", "jsonpath={.status.phase} {.status.reason} {.status.message}"))
	require.Equal(t, "node is shutting down",
		c.kubectl("get", "node", "node-0", "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].message}`))
	for _, left := range leftOf(t, dir, uids) {
		require.NotContains(t, left, "/proc/", "no shim survives a shutdown")
	}
	node = agent()
	c.prints("True", "get", "node", "node-0", "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status}`)
	require.Contains(t, c.kubectl("logs", "p"), "bye")
	c.kubectl("delete", "pod", "p")
	eventually(t, time.Minute, "all remains are removed", func() bool { return len(leftOf(t, dir, uids)) == 0 })
	node.interrupt()
	_ = os.RemoveAll(root)
}

// TestPrograms_KeepTheirVolumes runs a StatefulSet whose pods read the files of their predecessors.
func TestPrograms_KeepTheirVolumes(t *testing.T) {
	needNamespaces(t)
	dir := dataDir(t)
	c := up(t, dir, "--runtime", "process").withAccount()
	c.kubectl("apply", "-f", "testdata/statefulset.yaml")
	c.kubectl("rollout", "status", "statefulset/db", "--timeout=50s")
	starts := []string{"exec", "db-1", "--", "cat", "/data/starts"}
	require.Equal(t, "db-1\n", c.kubectl(starts...))
	uid := c.kubectl("get", "pod", "db-1", "-o", "jsonpath={.metadata.uid}")
	c.kubectl("delete", "pod", "db-1", "--wait=true")
	eventually(t, 60*time.Second, "another is ready", func() bool {
		out, err := c.kubectlWith("", "get", "pod", "db-1", "-o",
			`jsonpath={.metadata.uid} {.status.conditions[?(@.type=="Ready")].status}`)
		return err == nil && strings.HasSuffix(out, " True") && !strings.HasPrefix(out, uid)
	})
	require.Equal(t, "db-1\ndb-1\n", c.kubectl(starts...))
	require.Equal(t, "Bound Bound", c.kubectl("get", "pvc", "-o", "jsonpath={.items[*].status.phase}"))
	uids := strings.Fields(c.kubectl("get", "pods", "-o", "jsonpath={.items[*].metadata.uid}"))
	c.kubectl("delete", "-f", "testdata/statefulset.yaml", "--wait=true")
	eventually(t, time.Minute, "all remains are removed", func() bool { return len(leftOf(t, dir, uids)) == 0 })
	c.server.interrupt()
}

// TestSimulated_ManyNodesShareAnIdentity runs a fleet, which has the rights that its pods need.
func TestSimulated_ManyNodesShareAnIdentity(t *testing.T) {
	const nodes = 120
	c := up(t, dataDir(t), "--nodes", fmt.Sprint(nodes)).withAccount()
	c.nodesReady(nodes)
	c.kubectl("create", "deployment", "web", "--image=any", "--replicas=130")
	c.kubectl("rollout", "status", "deployment/web", "--timeout=60s")
	used := map[string]bool{}
	for name := range strings.FieldsSeq(c.kubectl("get", "pods", "-o", "jsonpath={.items[*].spec.nodeName}")) {
		used[name] = true
	}
	require.Greater(t, len(used), nodes/2)
	c.kubectl("run", "logger", "--image=any", "--annotations=sim.coxswain.dev/log=hello")
	c.kubectl("wait", "--for=condition=ready", "pod/logger", "--timeout=50s")
	require.Equal(t, "hello\n", c.kubectl("logs", "logger"))
	c.kubectl("delete", "pod", "logger", "--wait=true")
	require.Regexp(t, `node-0 +[0-9]+m`, c.kubectl("top", "nodes", "--no-headers"))
	c.server.interrupt()
}
