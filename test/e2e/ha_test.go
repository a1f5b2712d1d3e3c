//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// The goals are documented in docs/operations.md; a busy test machine gets haSlack times as long.
const (
	haWrites  = 2 * time.Second
	haLeaders = 5 * time.Second
	haSlack   = 4
)

// haSoak returns COXSWAIN_SOAK, a duration in which every fault is repeated on each container; 0 injects each fault
// once.
func haSoak(t *testing.T) time.Duration {
	text := os.Getenv("COXSWAIN_SOAK")
	if text == "" {
		return 0
	}
	d, err := time.ParseDuration(text)
	require.NoError(t, err, "COXSWAIN_SOAK")
	return d
}

// TestHA injects faults in the containers of deploy/compose-ha.yaml under load, one after the other and all at once. It
// must not run beside other tests, because it measures.
func TestHA(t *testing.T) {
	h := startHA(t)
	l := startLoad(h)
	figures := &strings.Builder{}
	table := tabwriter.NewWriter(figures, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "container\tfault\tno write for\tone client waited\tacts again after")
	for until := time.Now().Add(haSoak(t)); ; {
		for _, fault := range []string{"kill", "pause", "cut off"} {
			for _, service := range haServices {
				l.fail(service, fault, table)
			}
		}
		if time.Now().After(until) {
			break
		}
	}
	pause, wait := l.measure(2*time.Minute, l.losePower)
	fmt.Fprintf(table, "all\tpower\t%d ms\t%d ms\t\n", pause.Milliseconds(), wait.Milliseconds())
	require.NoError(t, table.Flush())
	t.Logf("failover as clients see it:\n%s", figures)
	l.replaceServers()
	l.check()
	h.restore()
}

// fail injects one fault, measures its effect on clients, and repairs it.
func (l *haLoad) fail(service, fault string, table *tabwriter.Writer) {
	l.t.Helper()
	pause, wait := l.measure(time.Minute, func() {
		// On a busy machine a container may not freeze at once, and a leader may lose its lease at this moment and
		// exit.
		eventually(l.t, time.Minute, service+" to "+fault, func() bool { return l.take(service, fault) == nil })
	})
	var again time.Duration
	switch {
	case strings.HasPrefix(service, "controllers"):
		again = l.awaitControllers()
	case strings.HasPrefix(service, "scheduler"):
		again = l.awaitScheduler()
	}
	l.giveBack(service, fault)
	acts := ""
	if service == "nodes" {
		again = l.awaitNodes()
	}
	if again > 0 {
		acts = fmt.Sprintf("%d ms", again.Milliseconds())
	}
	fmt.Fprintf(table, "%s\t%s\t%d ms\t%d ms\t%s\n", service, fault, pause.Milliseconds(), wait.Milliseconds(), acts)
	if fault == "kill" {
		require.Less(l.t, pause, haSlack*haWrites, "%s, killed: writes", service)
	}
	require.Less(l.t, again, haSlack*haLeaders, "%s, %s: acts again", service, fault)
}

// networks returns the networks of a service, with the names that it has there.
func (h *haCluster) networks(service string) map[string][]string {
	all := map[string][]string{}
	switch {
	case strings.HasPrefix(service, "etcd"):
		all["etcd"] = []string{service}
	case strings.HasPrefix(service, "apiserver"):
		all["etcd"], all["cluster"] = []string{service}, []string{service, "apiserver"}
	default:
		all["cluster"] = []string{service}
	}
	return all
}

// take injects a fault. The error is docker's for a container that does not run.
func (h *haCluster) take(service, fault string) error {
	h.t.Helper()
	if fault != "cut off" {
		_, err := h.try(h.t.Context(), "docker", fault, h.ids[service])
		return err
	}
	for network := range h.networks(service) {
		h.docker("network", "disconnect", h.project+"_"+network, h.ids[service])
	}
	return nil
}

// giveBack repairs the fault and waits until the part has recovered.
func (h *haCluster) giveBack(service, fault string) {
	h.t.Helper()
	switch fault {
	case "kill":
		h.docker("start", h.ids[service])
	case "pause":
		h.docker("unpause", h.ids[service])
	default:
		for network, names := range h.networks(service) {
			args := []string{"network", "connect"}
			for _, name := range names {
				args = append(args, "--alias", name)
			}
			h.docker(append(args, h.project+"_"+network, h.ids[service])...)
		}
	}
	h.awaitHealthy(service)
}

// awaitHealthy waits until a part serves.
func (h *haCluster) awaitHealthy(service string) {
	h.t.Helper()
	url := map[string]string{"etcd": "http://127.0.0.1:2381/health", "apiserver": "https://127.0.0.1:6443/readyz",
		"controllers": "https://127.0.0.1:10257/healthz", "scheduler": "https://127.0.0.1:10259/healthz",
		"nodes": "https://127.0.0.1:10248/healthz"}[strings.TrimRight(service, "-123")]
	eventually(h.t, time.Minute, service+" is healthy", func() bool {
		ctx, cancel := context.WithTimeout(h.t.Context(), 10*time.Second)
		defer cancel()
		_, err := h.try(ctx, "docker", "exec", h.ids[service], "/coxswain", "health", url)
		return err == nil
	})
	if number, ok := strings.CutPrefix(service, "apiserver-"); ok { // and is reachable from here
		eventually(h.t, time.Minute, service+" is reached", func() bool {
			return ready(h.t.Context(), h.each[number[0]-'1'])
		})
	}
}

func ready(ctx context.Context, c kubernetes.Interface) bool {
	code := 0
	_ = c.CoreV1().RESTClient().Get().AbsPath("/readyz").Do(ctx).StatusCode(&code) // 0 without an answer
	return code == http.StatusOK
}

// awaitControllers measures the time until the controllers process a new Deployment.
func (h *haCluster) awaitControllers() time.Duration {
	h.t.Helper()
	selector, template := podsOf("probe", "one", nil)
	from, deployments := time.Now(), h.client.AppsV1().Deployments("default")
	d, err := deployments.Create(h.t.Context(), &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{GenerateName: "probe-"},
		Spec: appsv1.DeploymentSpec{Replicas: new(int32(0)), Selector: selector, Template: template}},
		metav1.CreateOptions{})
	require.NoError(h.t, err)
	eventually(h.t, time.Minute, "the controllers act", func() bool {
		have, err := deployments.Get(h.t.Context(), d.Name, metav1.GetOptions{})
		return err == nil && have.Status.ObservedGeneration == have.Generation
	})
	took := time.Since(from)
	require.NoError(h.t, deployments.Delete(h.t.Context(), d.Name, metav1.DeleteOptions{}))
	return took
}

// awaitScheduler measures the time until a new pod is scheduled.
func (h *haCluster) awaitScheduler() time.Duration {
	h.t.Helper()
	return h.awaitPod("the scheduler acts", func(p *corev1.Pod) bool { return p.Spec.NodeName != "" })
}

// awaitNodes measures the time until a new pod runs.
func (h *haCluster) awaitNodes() time.Duration {
	h.t.Helper()
	return h.awaitPod("the nodes act", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning })
}

func (h *haCluster) awaitPod(what string, done func(*corev1.Pod) bool) time.Duration {
	h.t.Helper()
	_, template := podsOf("probe", "one", nil)
	from, pods := time.Now(), h.client.CoreV1().Pods("default")
	p, err := pods.Create(h.t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "probe-"},
		Spec: template.Spec}, metav1.CreateOptions{})
	require.NoError(h.t, err)
	eventually(h.t, time.Minute, what, func() bool {
		have, err := pods.Get(h.t.Context(), p.Name, metav1.GetOptions{})
		return err == nil && done(have)
	})
	took := time.Since(from)
	require.NoError(h.t, pods.Delete(h.t.Context(), p.Name, metav1.DeleteOptions{}))
	return took
}

// losePower kills all containers at once and starts them again.
func (l *haLoad) losePower() {
	l.t.Helper()
	var all []string
	for _, service := range haServices {
		all = append(all, l.ids[service])
	}
	l.docker(append([]string{"kill"}, all...)...)
	l.docker(append([]string{"start"}, all...)...)
}

// replaceServers replaces one API server after the other while clients that retry once work: no request may fail.
func (l *haLoad) replaceServers() {
	l.t.Helper()
	for _, service := range haServices {
		l.awaitHealthy(service)
	}
	ctx, stop := context.WithCancel(l.t.Context())
	defer stop()
	var working sync.WaitGroup
	var requests, again, failed atomic.Int64
	for range 4 {
		client := l.clientFor(l.ports...).CoreV1().ConfigMaps("kube-public")
		working.Go(func() {
			for ctx.Err() == nil {
				for attempt, done := 1, false; !done && ctx.Err() == nil; attempt++ {
					m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "replaced-"}}
					have, err := client.Create(ctx, m, metav1.CreateOptions{})
					if err == nil {
						_, err = client.Get(ctx, have.Name, metav1.GetOptions{})
					}
					switch done = err == nil || attempt == 2; {
					case ctx.Err() != nil:
					case err != nil && done:
						failed.Add(1)
						l.t.Errorf("a client that tried twice: %v", err)
					case err != nil:
						again.Add(1)
						l.t.Logf("tries again: %v", err)
					default:
						requests.Add(2)
					}
				}
			}
		})
	}
	for _, service := range []string{"apiserver-1", "apiserver-2", "apiserver-3"} {
		l.docker("stop", l.ids[service])
		l.docker("start", l.ids[service])
		l.awaitHealthy(service)
	}
	stop()
	working.Wait()
	l.t.Logf("three API servers replaced: %d requests, %d tried twice, %d failed", requests.Load(), again.Load(),
		failed.Load())
	require.Positive(l.t, requests.Load())
}

// restore saves a snapshot and the CAs, deletes everything, and creates a new control plane from them, as on new
// machines.
func (h *haCluster) restore() {
	h.t.Helper()
	dir := h.t.TempDir()
	backup, pki := filepath.Join(dir, "backup.db"), filepath.Join(dir, "pki")
	const inside = "/var/lib/coxswain/"
	before, err := h.client.CoreV1().ConfigMaps("default").List(h.t.Context(), metav1.ListOptions{})
	require.NoError(h.t, err)
	old := h.config
	h.t.Log(h.docker("exec", h.ids["apiserver-1"], "/coxswain", "etcd", "snapshot", "save", inside+"data/backup.db",
		"--etcd-servers=https://etcd-1:2379,https://etcd-2:2379,https://etcd-3:2379", "--etcd-cafile="+inside+"etcd/ca.crt",
		"--etcd-certfile="+inside+"apiserver-etcd-client.crt", "--etcd-keyfile="+inside+"apiserver-etcd-client.key"))
	h.docker("cp", h.ids["apiserver-1"]+":"+inside+"data/backup.db", backup)
	h.docker("cp", h.ids["certs"]+":/pki", pki)
	h.do("down", "--volumes", "--timeout", "5")

	h.do("up", "--no-start", "certs") // this service has all volumes
	certs := h.do("ps", "--all", "-q", "certs")
	h.docker("cp", pki+"/.", certs+":/pki")
	h.docker("start", "--attach", certs)
	require.NoError(h.t, os.Chmod(backup, 0o644)) // for the user that restores it
	for _, member := range []string{"etcd-1", "etcd-2", "etcd-3"} {
		h.docker("cp", backup, certs+":/for/"+member+"/backup.db")
		h.t.Log(h.docker("run", "--rm", "--user=10001:10001", "--volume="+h.project+"_"+member+":/var/lib/coxswain",
			"coxswain:"+h.project, "etcd", "snapshot", "restore", inside+"backup.db", "--etcd-data-dir="+inside+"data"))
	}
	h.up()
	require.Equal(h.t, old.TLSClientConfig.CAData, h.config.TLSClientConfig.CAData, "old kubeconfigs are still valid")
	for _, c := range h.each {
		var after *corev1.ConfigMapList
		eventually(h.t, time.Minute, "the restored objects", func() bool {
			var err error
			after, err = c.CoreV1().ConfigMaps("default").List(h.t.Context(), metav1.ListOptions{})
			return err == nil
		})
		require.Equal(h.t, before.Items, after.Items)
	}
	h.awaitControllers()
	h.awaitScheduler()
}
