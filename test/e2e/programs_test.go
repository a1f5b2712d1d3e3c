//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/test/podnetwork"
)

// needNamespaces skips the test if programs cannot run as containers. Until the test ends, no other test runs pods in
// the machine's network.
func needNamespaces(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: --runtime process needs root: it makes namespaces, mounts and cgroups")
	}
	if err := exec.Command("unshare", "--mount", "--pid", "--net", "--uts", "--fork", "true").Run(); err != nil {
		t.Skipf("SKIPPED: --runtime process needs namespaces, which this machine does not allow: %v", err)
	}
	podnetwork.Lock(t)
}

// tooEarly matches a line that kubectl before 1.34 may log for exec and attach: it reads the server's first message,
// which is empty, before it has created the streams.
var tooEarly = regexp.MustCompile(`(?m)^E\d{4} .*websocket\.go:\d+\] Unknown stream id \d+, discarding message\n`)

func (c *cluster) kubectlWith(stdin string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, kubectl, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.kubeconfig, "HOME="+c.home)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	return tooEarly.ReplaceAllString(string(out), ""), err
}

func (c *cluster) kubectl(args ...string) string {
	c.t.Helper()
	out, err := c.kubectlWith("", args...)
	require.NoError(c.t, err, "kubectl %v: %s", args, out)
	return out
}

// agentAnswers waits until the current agent serves node-0. After a kill, the Node shows the previous agent's address
// and readiness for a moment.
func (c *cluster) agentAnswers() {
	c.t.Helper()
	eventually(c.t, time.Minute, "the node's agent answers", func() bool {
		out, err := c.kubectlWith("", "get", "--raw", "/api/v1/nodes/node-0/proxy/healthz")
		return err == nil && out == "ok"
	})
}

// leftOf returns the remains of a node's runtime with its data in dir on this machine: shims, mounts, folders, and the
// cgroups of pods.
func leftOf(t *testing.T, dir string, uids []string) (left []string) {
	t.Helper()
	cmdlines, err := filepath.Glob("/proc/[0-9]*/environ")
	require.NoError(t, err)
	for _, path := range cmdlines {
		if text, err := os.ReadFile(path); err == nil && strings.Contains(string(text), `SANDBOX={"dir":"`+dir) {
			left = append(left, path)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	require.NoError(t, err)
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, dir) {
			left = append(left, line)
		}
	}
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return fs.SkipDir
		}
		if uid, ok := strings.CutPrefix(filepath.Base(path), "pod"); ok && d.IsDir() && slices.Contains(uids, uid) {
			left = append(left, path)
		}
		return nil
	})
	pods, err := os.ReadDir(filepath.Join(dir, "node", "pods"))
	require.NoError(t, err)
	for _, e := range pods {
		left = append(left, e.Name())
	}
	return left
}

// TestPrograms_OnSeveralNodes runs one machine as three Nodes. Their pods reach each other, even after the agent was
// killed, and move when a Node is drained.
func TestPrograms_OnSeveralNodes(t *testing.T) {
	needNamespaces(t)
	dir := dataDir(t)
	c := up(t, dir, "--runtime", "process", "--nodes", "3").withAccount()
	c.kubectl("apply", "-f", "testdata/nodes.yaml")
	c.kubectl("rollout", "status", "daemonset/each", "--timeout=50s")
	c.kubectl("rollout", "status", "deployment/spread", "--timeout=50s")
	nodesOf := func(app string) []string {
		nodes := strings.Fields(c.kubectl("get", "pods", "-l", "app="+app, "-o", "jsonpath={.items[*].spec.nodeName}"))
		slices.Sort(nodes)
		return slices.Compact(nodes)
	}
	all := []string{"node-0", "node-1", "node-2"}
	require.Equal(t, all, nodesOf("each"))
	require.Equal(t, all, nodesOf("spread"))

	c.server.kill()
	c = up(t, dir, "--runtime", "process", "--nodes", "3")
	c.agentAnswers()
	pods := strings.Fields(c.kubectl("get", "pods", "-l", "app=each", "-o", "jsonpath={.items[*].metadata.name}"))
	addresses := strings.Fields(c.kubectl("get", "pods", "-l", "app=each", "-o", "jsonpath={.items[*].status.podIP}"))
	require.Len(t, addresses, 3)
	for _, pod := range pods {
		var found []string
		for _, address := range addresses {
			found = append(found, strings.TrimSpace(c.kubectl("exec", pod, "--", "perl", "-MIO::Socket::INET", "-e",
				`print IO::Socket::INET->new(PeerAddr => $ARGV[0], Timeout => 20)->getline`, address+":8080")))
		}
		slices.Sort(found)
		require.Equal(t, all, found, "from %s", pod)
	}

	c.kubectl("drain", "node-1", "--ignore-daemonsets", "--timeout=50s")
	c.kubectl("rollout", "status", "deployment/spread", "--timeout=50s")
	require.Equal(t, []string{"node-0", "node-2"}, nodesOf("spread"))

	uids := strings.Fields(c.kubectl("get", "pods", "-o", "jsonpath={.items[*].metadata.uid}"))
	c.kubectl("delete", "-f", "testdata/nodes.yaml", "--wait=true")
	eventually(t, time.Minute, "all remains are removed", func() bool { return len(leftOf(t, dir, uids)) == 0 })
	c.server.interrupt()
}

// TestPrograms_Run uses the process runtime like a user. It kills the agent in the middle.
func TestPrograms_Run(t *testing.T) {
	needNamespaces(t)
	dir := dataDir(t)
	c := up(t, dir, "--runtime", "process")
	eventually(t, time.Minute, "the account of the pods exists", func() bool {
		out, err := c.kubectlWith("", "get", "serviceaccount", "default", "-o", "name")
		return err == nil && out != ""
	})
	c.kubectl("apply", "-f", "testdata/programs.yaml")

	c.kubectl("wait", "--for=condition=complete", "job/pi", "--timeout=50s")
	pi := strings.TrimSpace(c.kubectl("logs", "job/pi"))
	require.Regexp(t, regexp.MustCompile(`^3\.14159265358979323846[0-9]+$`), pi)
	require.Len(t, pi, len("3.")+1999)

	c.kubectl("wait", "--for=condition=available", "deployment/web", "--timeout=50s")
	require.Equal(t, "hello\n", c.forwarded("service/web", "80"))
	require.Contains(t, c.kubectl("logs", "deployment/web", "-c", "web"), "GET /")
	require.Equal(t, "blue 10.244 uid=1000 prepared\n", c.kubectl("exec", "deployment/web", "-c", "web", "--",
		"sh", "-c", `echo $COLOR ${IP%.*.*} uid=$(id -u) $(cat /work/state)`))
	out, err := c.kubectlWith("over\n", "exec", "-i", "deployment/web", "-c", "web", "--", "cat")
	require.NoError(t, err)
	require.Equal(t, "over\n", out)
	out, err = c.kubectlWith("", "exec", "deployment/web", "-c", "web", "--", "sh", "-c", "exit 42")
	require.Error(t, err)
	require.Contains(t, out, "exit code 42")
	pod := strings.TrimPrefix(strings.TrimSpace(c.kubectl("get", "pods", "-l", "app=web", "-o", "name")), "pod/")
	terminal := exec.Command("script", "-qec", fmt.Sprintf("%s --kubeconfig %s exec -it %s -c web -- tty", kubectl,
		c.kubeconfig, pod), "/dev/null")
	typed, err := terminal.CombinedOutput()
	require.NoError(t, err, "%s", typed)
	require.Contains(t, string(typed), "/dev/pts/0")
	c.kubectl("cp", "testdata/programs.yaml", pod+":/tmp/copy", "-c", "web")
	c.kubectl("cp", pod+":/tmp/copy", filepath.Join(c.home, "copy"), "-c", "web")
	sent, err := os.ReadFile("testdata/programs.yaml")
	require.NoError(t, err)
	back, err := os.ReadFile(filepath.Join(c.home, "copy"))
	require.NoError(t, err)
	require.Equal(t, sent, back)

	eventually(t, time.Minute, "kubectl top shows its usage", func() bool {
		out, err := c.kubectlWith("", "top", "pods", "-l", "app=web", "--no-headers")
		return err == nil && regexp.MustCompile(`^web-\S+ +[0-9]+m +[1-9][0-9]*Mi`).MatchString(out)
	})
	require.Regexp(t, `node-0 +[0-9]+m +[0-9]+% +[0-9]+Mi`, c.kubectl("top", "nodes", "--no-headers"))

	field := func(pod, path string) string {
		return c.kubectl("get", "pod", pod, "-o", "jsonpath={.status.containerStatuses[0]."+path+"}")
	}
	eventually(t, time.Minute, "the hog is killed", func() bool {
		return field("hog", "state.terminated.reason") == "OOMKilled"
	})
	eventually(t, time.Minute, "the other one crashes in a loop", func() bool {
		return field("crash", "state.waiting.reason") == "CrashLoopBackOff"
	})
	require.Equal(t, "last words\n", field("crash", "lastState.terminated.message"))
	require.Equal(t, "3", field("crash", "lastState.terminated.exitCode"))
	require.Equal(t, "run\n", c.kubectl("logs", "crash", "--previous"))

	id, restarts := field(pod, "containerID"), field(pod, "restartCount")
	c.server.kill()
	c = up(t, dir, "--runtime", "process")
	c.agentAnswers()
	require.Equal(t, "still\n", c.kubectl("exec", pod, "-c", "web", "--", "echo", "still"))
	require.Equal(t, id, field(pod, "containerID"), "the new agent has adopted the running container")
	require.Equal(t, restarts, field(pod, "restartCount"))
	require.Equal(t, "hello\n", c.forwarded("service/web", "80"))

	uids := strings.Fields(c.kubectl("get", "pods", "-o", "jsonpath={.items[*].metadata.uid}"))
	require.NotEmpty(t, leftOf(t, dir, uids), "there are remains")
	c.kubectl("delete", "-f", "testdata/programs.yaml", "--wait=true")
	eventually(t, time.Minute, "all remains are removed", func() bool { return len(leftOf(t, dir, uids)) == 0 })
	c.server.interrupt()
}

// forwarded returns the answer of a port through `kubectl port-forward`.
func (c *cluster) forwarded(to, port string) string {
	c.t.Helper()
	local := freePort(c.t)
	cmd := exec.Command(kubectl, "--kubeconfig", c.kubeconfig, "port-forward", to, local+":"+port)
	require.NoError(c.t, cmd.Start())
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	var body []byte
	eventually(c.t, time.Minute, "the port answers", func() bool {
		r, err := http.Get("http://127.0.0.1:" + local)
		if err != nil {
			return false
		}
		defer r.Body.Close()
		body, err = io.ReadAll(r.Body)
		return err == nil && r.StatusCode == http.StatusOK
	})
	return string(body)
}
