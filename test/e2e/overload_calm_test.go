//go:build e2e

package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/clientcmd"
)

// calm is the process of the normal clients, which run during all attacks. It is separate because the attackers keep
// the test's own process busy: clients there would wait for them, and not only for the server.
type calm struct {
	ask     *os.File
	answers *json.Decoder
}

// calmNumber is the number of clients, besides one that watches.
const calmNumber = 4

// calmKubeconfig makes this program such a process.
const calmKubeconfig = "COXSWAIN_E2E_CALM"

// calmFigures are the clients' measurements since the last report, with the total number of created objects and of
// watch events.
type calmFigures struct {
	Requests      int
	P50, P99      time.Duration
	Failed        []string
	Created, Seen int64
}

func startCalm(t *testing.T, c *confined) *calm {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), calmKubeconfig+"="+c.kubeconfig)
	cmd.Stderr = os.Stderr
	requests, ask, err := os.Pipe()
	require.NoError(t, err)
	cmd.Stdin = requests
	answers, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	require.NoError(t, requests.Close())
	t.Cleanup(func() {
		_ = ask.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the normal clients: %v", err)
		}
	})
	return &calm{ask, json.NewDecoder(answers)}
}

// since waits for requests in progress, and returns the measurements since the last call.
func (n *calm) since(t *testing.T) (figures calmFigures) {
	t.Helper()
	_, err := fmt.Fprintln(n.ask)
	require.NoError(t, err)
	require.NoError(t, n.answers.Decode(&figures))
	return figures
}

// beCalm runs in the other process.
func beCalm(kubeconfig string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	var clients []*http.Client
	for range calmNumber + 1 {
		client, err := freshClient(config)
		if err != nil {
			return err
		}
		client.Transport.(*http.Transport).DisableKeepAlives = false
		clients = append(clients, client)
	}
	n := &calmClients{c: &confined{cluster: &cluster{config: config}}}
	clients[0].Timeout = 0 // it watches
	ctx, cancel := context.WithCancel(context.Background())
	var going sync.WaitGroup
	defer going.Wait()
	defer cancel()
	going.Go(func() { n.run(ctx, clients[0], clients[1:]) })
	answers := json.NewEncoder(os.Stdout)
	for requests := bufio.NewScanner(os.Stdin); requests.Scan() && err == nil; {
		err = answers.Encode(n.since())
	}
	return err
}

// calmClients create, read, list, patch and delete objects, and one client watches.
type calmClients struct {
	c *confined
	// between is read-locked during a request.
	between sync.RWMutex
	mu      sync.Mutex
	took    []time.Duration
	failed  []string
	seen    atomic.Int64
	created atomic.Int64
}

func (n *calmClients) run(ctx context.Context, watching *http.Client, clients []*http.Client) {
	var running sync.WaitGroup
	running.Go(func() { n.watch(ctx, watching) })
	for i, client := range clients {
		running.Go(func() {
			for round := 0; ctx.Err() == nil; round++ {
				n.round(ctx, client, fmt.Sprintf("calm-%d-%d", i, round))
			}
		})
	}
	running.Wait()
}

// round makes one client's requests for one object.
func (n *calmClients) round(ctx context.Context, client *http.Client, name string) {
	const calm = "/api/v1/namespaces/calm/configmaps"
	for _, step := range []struct {
		method, path, contentType, body string
		code                            int
	}{
		{"POST", calm, asJSON, `{"metadata":{"name":"` + name + `"},"data":{"a":"b"}}`, 201},
		{"GET", calm + "/" + name, "", "", 200},
		{"PATCH", calm + "/" + name, "application/merge-patch+json", `{"data":{"a":"c"}}`, 200},
		{"GET", calm + "?limit=50", "", "", 200},
		{"DELETE", calm + "/" + name, "", "", 200},
	} {
		n.between.RLock()
		began := time.Now()
		code, answer, err := n.c.as(ctx, client, "calm", step.method, step.path, asJSON, step.contentType, step.body)
		n.note(ctx, time.Since(began), code == step.code, fmt.Sprintf("%s %s: %d %v %s", step.method, step.path, code, err,
			answer))
		n.between.RUnlock()
		if code == http.StatusCreated {
			n.created.Add(1)
		}
		select {
		case <-ctx.Done():
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// note records a request, unless the test has ended it.
func (n *calmClients) note(ctx context.Context, took time.Duration, expected bool, what string) {
	if ctx.Err() != nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.took = append(n.took, took)
	if !expected {
		n.failed = append(n.failed, what)
	}
}

func (n *calmClients) watch(ctx context.Context, client *http.Client) {
	req, _ := http.NewRequestWithContext(ctx, "GET", n.c.config.Host+"/api/v1/namespaces/calm/configmaps?watch=1", nil)
	response, err := client.Do(req)
	if err != nil {
		return
	}
	defer response.Body.Close()
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), `{"type":"ADDED"`) {
			n.seen.Add(1)
		}
	}
}

// since waits for requests in progress, returns the measurements and resets them.
func (n *calmClients) since() calmFigures {
	n.between.Lock()
	defer n.between.Unlock()
	n.mu.Lock()
	defer n.mu.Unlock()
	slices.Sort(n.took)
	figures := calmFigures{Requests: len(n.took), Failed: n.failed, Created: n.created.Load(), Seen: n.seen.Load()}
	if len(n.took) > 0 {
		figures.P50, figures.P99 = n.took[len(n.took)/2], n.took[len(n.took)*99/100]
	}
	n.took, n.failed = nil, nil
	return figures
}
