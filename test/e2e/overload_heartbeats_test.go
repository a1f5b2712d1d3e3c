//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	heartbeatNodes  = 1_000
	heartbeatPeriod = 10 * time.Second
	listingClients  = 200
	nodeLeases      = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
)

// heartbeats renews the Leases of 1,000 nodes once, as kubelets do every ten seconds, while 200 clients list all
// objects. Every renewal must be answered within the period.
func (c *confined) heartbeats(t *testing.T) {
	code, answer := c.do("POST", "/api/v1/namespaces", asJSON, []byte(`{"metadata":{"name":"kube-node-lease"}}`))
	require.Contains(t, []int{201, 409}, code, answer)
	c.beats(t, 0, func(node string) (string, string, string) {
		return "POST", nodeLeases, `{"metadata":{"name":"` + node + `"},"spec":{"holderIdentity":"` + node + `"}}`
	})
	ctx, cancel := context.WithCancel(t.Context())
	var listing sync.WaitGroup
	var lists atomic.Int64
	for range listingClients {
		client := c.client()
		listing.Go(func() {
			for ctx.Err() == nil {
				code, _, _ := c.as(ctx, client, "attacker", "GET", many, asTable, "", "")
				if code == http.StatusOK {
					lists.Add(1)
				} else if code == http.StatusTooManyRequests {
					time.Sleep(time.Second)
				}
			}
		})
	}
	slowest := c.beats(t, heartbeatPeriod/heartbeatNodes, func(node string) (string, string, string) {
		return "PATCH", nodeLeases + "/" + node, `{"spec":{"renewTime":"` +
			time.Now().UTC().Format("2006-01-02T15:04:05.000000Z") + `"}}`
	})
	cancel()
	listing.Wait()
	t.Logf("%d heartbeats while %d clients list everything (%d lists): %.1f ms at most", heartbeatNodes, listingClients,
		lists.Load(), milliseconds(slowest))
	require.Less(t, slowest, heartbeatPeriod)
}

// beats makes a request for each node, one per pause, and returns the longest time of a request.
func (c *confined) beats(t *testing.T, pause time.Duration, request func(node string) (method, path, body string)) (
	slowest time.Duration) {
	var mu sync.Mutex
	var running sync.WaitGroup
	clients := make(chan *http.Client, 20)
	for range cap(clients) {
		clients <- c.client()
	}
	for i := range heartbeatNodes {
		time.Sleep(pause)
		due := time.Now()
		client := <-clients
		running.Go(func() {
			defer func() { clients <- client }()
			node := fmt.Sprintf("beating-%d", i)
			code, answer := c.asNode(t.Context(), client, node, request)
			mu.Lock()
			defer mu.Unlock()
			slowest = max(slowest, time.Since(due))
			if code/100 != 2 {
				t.Errorf("%s: %d %s", node, code, answer)
			}
		})
	}
	running.Wait()
	return slowest
}

func (c *confined) asNode(ctx context.Context, client *http.Client, node string,
	of func(node string) (method, path, body string)) (code int, answer string) {
	method, path, body := of(node)
	req, err := http.NewRequestWithContext(ctx, method, c.config.Host+path, strings.NewReader(body))
	if err != nil {
		return 0, err.Error()
	}
	req.Header["Impersonate-User"] = []string{"system:node:" + node}
	req.Header["Impersonate-Group"] = []string{"system:nodes", "system:authenticated"}
	req.Header.Set("Content-Type", asJSON)
	if method == http.MethodPatch {
		req.Header.Set("Content-Type", "application/merge-patch+json")
	}
	response, err := client.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err.Error()
	}
	return response.StatusCode, string(text)
}
