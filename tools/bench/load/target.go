package load

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Target is a server to measure.
type Target struct {
	Name string
	// Processes has the IDs of the server's processes: the API server and its etcd. Without them, results have no CPU
	// and memory.
	Processes []int

	config *rest.Config
	url    *url.URL
	tls    *tls.Config
	dialer net.Dialer
}

// Open reads a kubeconfig with a client certificate or a token.
func Open(name, kubeconfig string, processes ...int) (*Target, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", kubeconfig, err)
	}
	config.QPS, config.Burst = -1, -1 // without client-go's rate limit
	t := &Target{Name: name, Processes: processes, config: config}
	if t.url, err = url.Parse(config.Host); err != nil {
		return nil, fmt.Errorf("%s: %w", kubeconfig, err)
	}
	if t.url.Scheme != "https" {
		return nil, fmt.Errorf("%s: %s is not served over TLS: the figures would not be comparable", kubeconfig, t.url)
	}
	if t.tls, err = rest.TLSConfigFor(config); err != nil {
		return nil, fmt.Errorf("%s: %w", kubeconfig, err)
	}
	if t.tls.ServerName == "" {
		t.tls.ServerName = t.url.Hostname()
	}
	t.tls.NextProtos = []string{"http/1.1"}
	for _, pid := range processes {
		if _, err := processCost(pid); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// Port returns the server's port.
func (t *Target) Port() string { return t.url.Port() }

// AwaitReady waits until /readyz returns 200, or ctx ends.
func (t *Target) AwaitReady(ctx context.Context) error {
	for {
		err := t.ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w", t.url, err)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func (t *Target) ready(ctx context.Context) error {
	c, err := t.dial(ctx)
	if err != nil {
		return err
	}
	defer c.close()
	_, err = c.do(http.MethodGet, "/readyz", "", nil, http.StatusOK)
	return err
}
