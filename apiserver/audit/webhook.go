package audit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/coxswain-dev/coxswain/apiserver/reload"
	"github.com/coxswain-dev/coxswain/apiserver/webhook"
	"github.com/coxswain-dev/coxswain/internal/backoff"
)

const (
	// webhookTries is how often a batch is sent before it is lost; the pause between two grows by webhookFactor, as in
	// kube-apiserver.
	webhookTries  = 5
	webhookFactor = 1.5
	// webhookWriters is how many batches may be under way at once.
	webhookWriters = 4
	// blockedFor is how long a request waits for its event to be recorded in the blocking modes.
	blockedFor = 30 * time.Second
	// maxAnswer is how much of an answer is read. Nothing depends on it.
	maxAnswer = 64 << 10
)

// poster posts batches to another server as an EventList.
type poster struct {
	server *reload.Files[*server]
	pause  time.Duration
	within time.Duration // for a call and its repetitions; 0 for any time
}

// server is another server, as a kubeconfig describes it.
type server struct {
	client *http.Client
	url    string
}

func openWebhook(o WebhookOptions, log *slog.Logger) (output, error) {
	p := &poster{pause: o.InitialBackoff}
	if o.Batch.Mode != ModeBatch {
		p.within = blockedFor
	}
	var err error
	p.server, err = reload.Open(log, func(contents [][]byte) (*server, error) {
		return readServer(o.ConfigFile, contents[0])
	}, o.ConfigFile)
	if err != nil {
		return nil, fmt.Errorf("--audit-webhook-config-file: %w", err)
	}
	return p, nil
}

// readServer reads a kubeconfig. Files that it names by relative paths lie beside it.
func readServer(path string, text []byte) (*server, error) {
	kubeconfig, err := clientcmd.Load(text)
	if err != nil {
		return nil, err
	}
	for _, c := range kubeconfig.Clusters {
		c.LocationOfOrigin = path
	}
	for _, u := range kubeconfig.AuthInfos {
		u.LocationOfOrigin = path
	}
	if err := clientcmd.ResolveLocalPaths(kubeconfig); err != nil {
		return nil, fmt.Errorf("in %s: %w", filepath.Dir(path), err)
	}
	config, err := clientcmd.NewDefaultClientConfig(*kubeconfig, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return nil, err
	}
	config.Timeout = webhook.Timeout
	config.UserAgent = "coxswain-audit"
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &server{client: client, url: config.Host}, nil
}

func (p *poster) writers() int { return webhookWriters }

// write implements output: it sends a batch, and again after any failure. Audit events are lost otherwise.
func (p *poster) write(ctx context.Context, lines []byte) error {
	if p.within > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, p.within)
		defer cancel()
	}
	body := append([]byte(`{"kind":"EventList","apiVersion":"`+apiVersion+`","metadata":{},"items":[`),
		items(lines)...)
	body = append(body, "]}"...)
	pause := wait.Backoff{Duration: p.pause, Factor: webhookFactor, Jitter: backoff.Jitter, Steps: webhookTries}
	for try := 1; ; try++ {
		err := p.post(ctx, body)
		if err == nil || try == webhookTries {
			return err
		}
		timer := time.NewTimer(pause.Step())
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return errors.Join(err, ctx.Err())
		}
	}
}

func (p *poster) post(ctx context.Context, body []byte) error {
	to := p.server.Current()
	_, err := webhook.Post(ctx, to.client, to.url, "", body, maxAnswer)
	return err
}

func (p *poster) close() error {
	p.server.Current().client.CloseIdleConnections()
	return nil
}
