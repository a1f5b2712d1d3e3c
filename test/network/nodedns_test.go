//go:build e2e && linux

package network

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// enoughQuestions is the number of questions that each pod asks in one state of the cluster.
const enoughQuestions = 100

// Each node's server answers the node's pods while the API server is down, and while the node is disconnected from all
// others.
func TestNodeDNS_AnswersWithoutAPIServerAndWithoutOtherNodes(t *testing.T) {
	t.Parallel()
	need(t)
	c, err := startClusterOf(nodes[1:], nil, "--network-mode", "vxlan")
	require.NoError(t, err)
	t.Cleanup(c.close)
	s := c.space(t)
	both := map[string]string{"b-0": s.firstAddress("b-0"), "c-0": s.firstAddress("c-0")}
	s.publishes(both)
	web := s.service("web", "", nil)
	for _, node := range c.agents {
		s.run("idle-"+node, "idle", on(node, idle()))
		s.digs("idle-"+node, "a", "web", web.Spec.ClusterIP)
	}
	logs := map[string]*answerLog{}
	for _, node := range c.agents {
		logs[node] = s.resolves(node, "web", web.Spec.ClusterIP)
	}
	all := func(when string) {
		t.Helper()
		for node, a := range logs {
			a.more(when + ", on " + node)
		}
	}
	all("at first")

	require.NoError(t, c.machines[1].unplug())
	all("without a way to others")
	require.NoError(t, c.machines[1].do(func() error { return setUp("uplink") }))

	c.processes["control plane"].kill()
	all("without API server")
	require.NoError(t, c.startControlPlane())
	s.eventually("the API server answers", func() error {
		_, err := s.client.CoreV1().Services(s.name).Get(t.Context(), "web", metav1.GetOptions{})
		return err
	})
	late := s.service("late", "", nil)
	for _, node := range c.agents {
		s.digs("idle-"+node, "a", "late", late.Spec.ClusterIP)
	}
	all("in the end")
	s.publishes(both)

	c.processes["b-0"].kill()
	s.publishes(map[string]string{"c-0": both["c-0"]})
	logs["c-0"].more("without the other node's agent")
	require.NoError(t, c.startAgent("b-0", "--network-mode", "vxlan"))
	s.publishes(both)
	s.digs("idle-b-0", "a", "late", late.Spec.ClusterIP)

	c.processes["c-0"].kill()
	require.NoError(t, c.startAgent("c-0", "--network-mode", "vxlan"))
	logs["c-0"].recovers()
}

// publishes waits until the Service kube-dns has these endpoints: addresses by the names of Nodes.
func (s *space) publishes(want map[string]string) {
	s.Helper()
	s.eventually(fmt.Sprintf("kube-dns has the endpoints %v", want), func() error {
		list, err := s.client.DiscoveryV1().EndpointSlices("kube-system").List(s.Context(),
			metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=kube-dns"})
		if err != nil {
			return err
		}
		found := map[string]string{}
		for _, slice := range list.Items {
			for _, e := range slice.Endpoints {
				found[*e.NodeName] = e.Addresses[0]
			}
		}
		if !maps.Equal(found, want) {
			return fmt.Errorf("it has %v", found)
		}
		return nil
	})
}

// answerLog reads the answers that a pod writes to a file of the machine, without the API server.
type answerLog struct {
	*space
	file, want string
	seen       int
}

// resolves runs a pod on a Node that continuously resolves the name of a Service.
func (s *space) resolves(node, service, want string) *answerLog {
	s.Helper()
	dir := filepath.Join(s.dir, "answers-"+node)
	require.NoError(s, os.Mkdir(dir, 0o755))
	spec := program("resolve", "/answers/all", service+"."+s.name+".svc.cluster.local.")
	spec.Containers[0].VolumeMounts = append(spec.Containers[0].VolumeMounts,
		corev1.VolumeMount{Name: "answers", MountPath: "/answers"})
	spec.Volumes = append(spec.Volumes, corev1.Volume{Name: "answers", VolumeSource: corev1.VolumeSource{
		HostPath: &corev1.HostPathVolumeSource{Path: dir}}})
	s.run("resolves-"+node, "resolves", on(node, spec))
	return &answerLog{space: s, file: filepath.Join(dir, "all"), want: want}
}

// recovers waits until the latest answers are right again, and logs the number of unanswered questions before.
func (a *answerLog) recovers() {
	a.Helper()
	failed, all := 0, []string(nil)
	a.eventually("the latest answers are right", func() error {
		content, err := os.ReadFile(a.file)
		if err != nil {
			return err
		}
		all = strings.Split(string(content), "\n")
		all = all[a.seen : len(all)-1]
		failed = 0
		for i, line := range all {
			if line != a.want {
				failed = i + 1
			}
		}
		if len(all) < failed+enoughQuestions {
			return fmt.Errorf("only %d right answers at last", len(all)-failed)
		}
		return nil
	})
	wrong := slices.DeleteFunc(slices.Clone(all), func(line string) bool { return line == a.want })
	a.Logf("%d of %d questions had no answer: %v", len(wrong), len(all), slices.Compact(wrong))
	a.seen += len(all)
}

// more waits for enough further answers, and fails if any is wrong.
func (a *answerLog) more(when string) {
	a.Helper()
	var lines []string
	a.eventually(fmt.Sprintf("%d more questions %s", enoughQuestions, when), func() error {
		content, err := os.ReadFile(a.file)
		if err != nil {
			return err
		}
		lines = strings.Split(string(content), "\n")
		lines = lines[:len(lines)-1] // the text after the last newline may be half a line
		if len(lines) < a.seen+enoughQuestions {
			return fmt.Errorf("%d so far", len(lines)-a.seen)
		}
		return nil
	})
	for i, line := range lines[a.seen:] {
		require.Equal(a, a.want, line, "question %d, %s", a.seen+i, when)
	}
	a.seen = len(lines)
}
