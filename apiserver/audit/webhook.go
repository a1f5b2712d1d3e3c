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
	// A batch is lost after webhookTries attempts. The pause between them grows by webhookFactor, as in kube-apiserver.
	webhookTries  = 5
	webhookFactor = 1.5
	// webhookWriters limits the batches that are sent in parallel.
	webhookWriters = 4
	// blockedFor limits how long a request waits for its event in the blocking modes.
	blockedFor = 30 * time.Second
	// maxAnswer limits how much of a response is read. The content is ignored.
	maxAnswer = 64 << 10
)

// poster posts batches to another server, as an EventList.
type poster struct {
	server *reload.Files[*server]
	pause  time.Duration
	within time.Duration // for a call with its retries; 0 for no limit
}

// server is another server as described by a kubeconfig.
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

// readServer parses a kubeconfig. Relative paths in it are resolved against the directory of path.
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

// write implements output. It retries after any failure, since the events would be lost otherwise.
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
	target := p.server.Current()
	_, err := webhook.Post(ctx, target.client, target.url, "", body, maxAnswer)
	return err
}

func (p *poster) close() error {
	p.server.Current().client.CloseIdleConnections()
	return nil
}
