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
	// checkEvery is the interval for reading a file to see whether it has changed. It is compared by content, because
	// mounted files change by replacing folders and links.
	checkEvery = time.Second
	// retryAfter is the pause before the next attempt with an unchanged file, after an error that wraps ErrNotYet.
	retryAfter = 10 * time.Second
)

// ErrNotYet is wrapped by errors of Apply that may pass though the file stays the same.
var ErrNotYet = errors.New("not yet")

// Options describe a file.
type Options struct {
	Path string
	// Name is the file's name in metrics and in the log: "authentication" or "authorization".
	Name string
	// Initial is the content that is in force.
	Initial []byte
	// Apply puts a new content in force. If it returns an error, the last content must still be in force, unchanged.
	Apply func(ctx context.Context, content []byte) error
	Log   *slog.Logger
}

// Follower rereads a file when it changes. Its metrics may be collected at any time. Only Run's goroutine uses the
// other fields.
type Follower struct {
	Options
	metrics
	inForce  string // the hash of the content in force
	rejected rejection
}

// rejection is a changed file that was not put in force.
type rejection struct {
	hash, text string
	retry      time.Time // the time of the next attempt; zero: when the file changes
}

// New returns a Follower of a file. Its initial content was read and is in force.
func New(o Options) *Follower {
	f := &Follower{Options: o, metrics: newMetrics(o.Name), inForce: HashOf(o.Initial)}
	f.applied(f.inForce)
	return f
}

// HashOf returns the hash that identifies a content in metrics.
func HashOf(content []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(content)) }

// Run follows the file until ctx ends.
func (f *Follower) Run(ctx context.Context) {
	ticker := time.NewTicker(checkEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			f.check(ctx)
		}
	}
}

// check puts the file in force if it has changed.
func (f *Follower) check(ctx context.Context) {
	content, err := read(f.Path)
	if err != nil {
		f.reject(rejection{text: err.Error()})
		return
	}
	hash := HashOf(content)
	last := f.rejected
	switch {
	case hash == f.inForce: // also after a change that was undone
		f.rejected = rejection{}
		return
	case hash == last.hash && (last.retry.IsZero() || time.Now().Before(last.retry)):
		return
	}
	if err := f.Apply(ctx, content); err != nil {
		if ctx.Err() != nil {
			return
		}
		r := rejection{hash: hash, text: err.Error()}
		if errors.Is(err, ErrNotYet) {
			r.retry = time.Now().Add(retryAfter)
		}
		f.reject(r)
		return
	}
	f.inForce, f.rejected = hash, rejection{}
	f.done("success")
	f.applied(hash)
	f.Log.Info("the "+f.Name+" configuration has changed and is in force", "file", f.Path, "hash", hash)
}

// read reads a file, up to one byte more than maxSize: Decode rejects it then.
func read(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open a configuration: %w", err)
	}
	defer file.Close()
	content, err := io.ReadAll(io.LimitReader(file, maxSize+1))
	if err != nil {
		return nil, fmt.Errorf("read a configuration: %w", err)
	}
	return content, nil
}

// reject logs and counts the reason why a file is not put in force. The same reason is logged once, and counted again
// only if the file was tried again.
func (f *Follower) reject(r rejection) {
	if r.text != f.rejected.text || r.hash != f.rejected.hash {
		f.Log.Error("cannot use the changed "+f.Name+" configuration; the last one stays in force",
			"file", f.Path, "err", r.text)
	} else if r.hash == "" {
		return
	}
	f.done("failure")
	f.rejected = r
}

// metrics have the names of kube-apiserver's. Their label is the hash of the server's host name.
type metrics struct {
	server   string
	reloads  *prometheus.CounterVec
	reloaded *prometheus.GaugeVec
	config   *prometheus.GaugeVec
}

// ServerHash returns the value of the label apiserver_id_hash: the hash of the server's host name.
func ServerHash() string {
	host, _ := os.Hostname() // it only distinguishes servers
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
