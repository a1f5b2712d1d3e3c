//go:build e2e

package e2e

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// auditTurn is the number of objects that are created on one server before the next server's turn, auditClients the
// number of concurrent clients.
const (
	auditTurn    = 1000
	auditClients = 16
)

// BenchmarkAudit creates ConfigMaps of 1 kB on servers with different audit policies, in turns. Each server is a
// process of its own with an embedded etcd. An operation is one create on each of them. For each server it reports the
// CPU time of its process per create, and the difference from the first server. The second server has the same policy
// as the first: its difference shows the noise in the figures, since not only the machine but also each process varies.
func BenchmarkAudit(b *testing.B) {
	const once = "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\n"
	servers := []*audited{
		startAudited(b, "off", ""), startAudited(b, "off-too", ""),
		startAudited(b, "none", once+"rules: [{level: None}]\n"),
		startAudited(b, "metadata", once+"rules: [{level: Metadata}]\n"),
		startAudited(b, "batch", once+"rules: [{level: Metadata}]\n", "--audit-log-mode", "batch"),
	}
	for _, s := range servers { // a young process grows its stacks and heap
		s.create(b, 0, auditTurn)
	}
	b.ResetTimer()
	for n := 0; n < b.N; n += auditTurn {
		for _, i := range rand.Perm(len(servers)) {
			s := servers[i]
			began := s.cpu(b)
			s.create(b, auditTurn+n, auditTurn)
			s.took += s.cpu(b) - began
		}
	}
	turns := (b.N + auditTurn - 1) / auditTurn
	for _, s := range servers {
		b.ReportMetric(s.took.Seconds()*1e6/float64(turns*auditTurn), s.name+"-µs")
		if s != servers[0] {
			b.ReportMetric(100*(s.took.Seconds()/servers[0].took.Seconds()-1), s.name+"-more-%")
		}
	}
}

// audited is an API server whose costs are measured.
type audited struct {
	name   string
	pid    int
	url    string
	client *http.Client
	took   time.Duration
}

func startAudited(b *testing.B, name, policy string, more ...string) *audited {
	dir := b.TempDir()
	args := append([]string{"apiserver", "--data-dir", filepath.Join(dir, "data"), "--secure-port", "0"}, more...)
	if policy != "" {
		file := filepath.Join(dir, "policy.yaml")
		require.NoError(b, os.WriteFile(file, []byte(policy), 0o600))
		args = append(args, "--audit-policy-file", file, "--audit-log-path", filepath.Join(dir, "audit.log"))
	}
	cmd := exec.Command(coxswain, args...)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	require.NoError(b, cmd.Start())
	b.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
	})
	s := &audited{name: name, pid: cmd.Process.Pid}
	require.Eventually(b, func() bool { return s.connect(filepath.Join(dir, "data", "admin.kubeconfig")) == nil },
		time.Minute, 50*time.Millisecond)
	return s
}

func (s *audited) connect(kubeconfig string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	if s.client, err = rest.HTTPClientFor(config); err != nil {
		return err
	}
	s.url = config.Host + "/api/v1/namespaces/default/configmaps"
	answer, err := s.client.Get(s.url)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s", answer.Status)
	}
	return nil
}

// create creates n objects, numbered from the given number on.
func (s *audited) create(b *testing.B, first, n int) {
	var running sync.WaitGroup
	for client := range auditClients {
		running.Go(func() {
			for i := first + client; i < first+n; i += auditClients {
				body := fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c%d"},"data":{"a":%q}}`, i,
					strings.Repeat("x", 900))
				answer, err := s.client.Post(s.url, "application/json", strings.NewReader(body))
				if err != nil {
					b.Error(err)
					return
				}
				_, _ = io.Copy(io.Discard, answer.Body)
				_ = answer.Body.Close()
				if answer.StatusCode != http.StatusCreated {
					b.Error(answer.Status)
				}
			}
		})
	}
	running.Wait()
}

// cpu returns the CPU time of the process's threads in nanoseconds; getrusage is less precise for a child.
func (s *audited) cpu(b *testing.B) (sum time.Duration) {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", s.pid))
	require.NoError(b, err)
	for _, file := range threads {
		text, err := os.ReadFile(file)
		require.NoError(b, err)
		ran, err := strconv.ParseInt(strings.Fields(string(text))[0], 10, 64)
		require.NoError(b, err)
		sum += time.Duration(ran)
	}
	return sum
}
