package configfile

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	// every is how often a file is read to see whether it has changed. It is compared by content, because what mounts
	// files from elsewhere replaces folders and links.
	every = time.Second
	// retry is the pause after which a file that could not be used for the time being is tried again.
	retry = 10 * time.Second
)

// ErrNotYet is wrapped by errors of Apply that may pass though the file stays the same.
var ErrNotYet = errors.New("not yet")

// Options describe a file.
type Options struct {
	Path string
	// Name is of the file in metrics and in the log: "authentication" or "authorization".
	Name string
	// Initial is the content that is in force.
	Initial []byte
	// Apply puts a new content in force. If it returns an error, it must have changed nothing.
	Apply func(ctx context.Context, content []byte) error
	Log   *slog.Logger
}

// Follower rereads a file when it changes. Its metrics may be collected at any time.
type Follower struct {
	Options
	metrics
	inForce string // the hash of what is in force
	refused refusal
}

// refusal is a changed file that was not put in force.
type refusal struct {
	hash, text string
	retry      time.Time // when it is tried again; zero: when it changes
}

// New describes a file whose content was read and is in force.
func New(o Options) *Follower {
	f := &Follower{Options: o, metrics: newMetrics(o.Name), inForce: HashOf(o.Initial)}
	f.applied(f.inForce)
	return f
}

// HashOf is how metrics tell of a content which one it is.
func HashOf(content []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(content)) }

// Run follows the file until ctx ends.
func (f *Follower) Run(ctx context.Context) {
	look := time.NewTicker(every)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
			f.look(ctx)
		}
	}
}

// look puts the file in force if it has changed.
func (f *Follower) look(ctx context.Context) {
	content, err := read(f.Path)
	if err != nil {
		f.refuse(refusal{text: err.Error()})
		return
	}
	hash := HashOf(content)
	last := f.refused
	switch {
	case hash == f.inForce: // also after a change that was taken back
		f.refused = refusal{}
		return
	case hash == last.hash && (last.retry.IsZero() || time.Now().Before(last.retry)):
		return
	}
	if err := f.Apply(ctx, content); err != nil {
		if ctx.Err() != nil {
			return
		}
		r := refusal{hash: hash, text: err.Error()}
		if errors.Is(err, ErrNotYet) {
			r.retry = time.Now().Add(retry)
		}
		f.refuse(r)
		return
	}
	f.inForce, f.refused = hash, refusal{}
	f.done("success")
	f.applied(hash)
	f.Log.Info("the "+f.Name+" configuration has changed and is in force", "file", f.Path, "hash", hash)
}

// read reads a file up to a byte more than it may have.
func read(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("opening a configuration: %w", err)
	}
	defer file.Close()
	content, err := io.ReadAll(io.LimitReader(file, maxSize+1))
	if err != nil {
		return nil, fmt.Errorf("reading a configuration: %w", err)
	}
	return content, nil
}

// refuse notes why a file is not put in force. The same reason is logged once, and counted once unless it was tried
// again.
func (f *Follower) refuse(r refusal) {
	if r.text != f.refused.text || r.hash != f.refused.hash {
		f.Log.Error("the "+f.Name+" configuration has changed and cannot be used; what was in force stays",
			"file", f.Path, "error", r.text)
	} else if r.hash == "" {
		return
	}
	f.done("failure")
	f.refused = r
}

// metrics are kube-apiserver's, of the same names. Their label is the hash of the server's host name.
type metrics struct {
	server   string
	reloads  *prometheus.CounterVec
	reloaded *prometheus.GaugeVec
	config   *prometheus.GaugeVec
}

// ServerHash is the value of the label apiserver_id_hash: the hash of the server's host name.
func ServerHash() string {
	host, _ := os.Hostname() // it only tells servers apart
	return HashOf([]byte(host))
}

func newMetrics(name string) metrics {
	prefix := "apiserver_" + name + "_config_controller_"
	return metrics{
		server: ServerHash(),
		reloads: prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "automatic_reloads_total",
			Help: "Total number of automatic reloads of " + name + " configuration split by status and apiserver " +
				"identity."}, []string{"status", "apiserver_id_hash"}),
		reloaded: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: prefix + "automatic_reload_last_timestamp_seconds",
			Help: "Timestamp of the last automatic reload of " + name + " configuration split by status and " +
				"apiserver identity."}, []string{"status", "apiserver_id_hash"}),
		config: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: prefix + "last_config_info",
			Help: "Information about the last applied " + name + " configuration with hash as label, split by " +
				"apiserver identity."}, []string{"apiserver_id_hash", "hash"}),
	}
}

func (m *metrics) done(status string) {
	m.reloads.WithLabelValues(status, m.server).Inc()
	m.reloaded.WithLabelValues(status, m.server).SetToCurrentTime()
}

func (m *metrics) applied(hash string) {
	m.config.Reset()
	m.config.WithLabelValues(m.server, hash).Set(1)
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	m.reloads.Describe(ch)
	m.reloaded.Describe(ch)
	m.config.Describe(ch)
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	m.reloads.Collect(ch)
	m.reloaded.Collect(ch)
	m.config.Collect(ch)
}
