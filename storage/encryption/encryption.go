// Package encryption implements encryption at rest, configured by Kubernetes' EncryptionConfiguration.
//
// It wraps a storage.Backend, configured by the file of --encryption-provider-config. The first provider of a
// document's resource encrypts the document when it is committed. The provider that wrote a document decrypts it when
// it is read or watched. Code above this package, including the store's memory, sees plain documents. Everything below
// sees ciphertext: the log and the files of etcd, snapshots, and the connection to an external etcd.
//
// The package knows paths, bytes and, from the paths, resources, but no kinds. The stored bytes, including the prefix,
// are the same as kube-apiserver's (k8s.io/apiserver/pkg/storage/value).
//
//	config.go, validate.go   the file
//	table.go                 the keys of each collection
//	cipher.go                aesgcm, aescbc, secretbox, identity
//	kms.go, envelope.go      kms v2: the plugin, and the format of its documents
//	follow.go                reloading the file and checking the plugins
package encryption

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/storage"
)

// Options configure a Backend.
type Options struct {
	// File is the EncryptionConfiguration (--encryption-provider-config).
	File string
	// Reload reloads the file when it changes (--encryption-provider-config-automatic-reload).
	Reload bool
	// Prefix is the prefix of all keys in etcd (--etcd-prefix); "" is /registry. Prefix and path form the authenticated
	// data, which ties a document to its key.
	Prefix string
	// Server is the identity of this server. Metrics contain its hash.
	Server string
	// Clock measures how long the answers of a plugin are valid. nil is the real clock.
	Clock clock.WithTicker
	// Log receives log lines, which never contain a key. nil is slog.Default.
	Log *slog.Logger
}

// Backend is a storage.Backend that encrypts the documents of another Backend. Its methods are safe for concurrent use.
type Backend struct {
	storage.Backend
	options Options
	prefix  string // ends in "/"
	metrics *metrics
	// Metrics has the metrics of transformations, plugins and reloads, with kube-apiserver's names.
	Metrics *prometheus.Registry
	table   atomic.Pointer[table]

	// Only the goroutine of Follow accesses the following fields.
	hash     string // the hash of the active file
	refused  refusal
	previous *table
}

// New reads the configuration and wraps a backend, which Close closes. It fails if the configuration is invalid, but
// not if a plugin does not answer: Follow retries the plugin.
func New(ctx context.Context, below storage.Backend, o Options) (*Backend, error) {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	registry := prometheus.NewRegistry()
	b := &Backend{Backend: below, options: o, prefix: storage.KeyPrefix(o.Prefix),
		metrics: newMetrics(vectors{registry}, o.Server), Metrics: registry}
	config, hash, err := b.readFile()
	if err != nil {
		return nil, fmt.Errorf("encryption: %w", err)
	}
	t, err := b.newTable(config, nil)
	if err != nil {
		return nil, fmt.Errorf("encryption: %w", err)
	}
	b.table.Store(t)
	b.hash = hash
	b.metrics.applied(hash)
	for _, err := range askAll(ctx, t) {
		o.Log.Error("cannot use a KMS plugin", "err", err)
	}
	return b, nil
}

// Close closes the plugins' connections and the wrapped backend. Follow must have returned before.
func (b *Backend) Close() error {
	t := b.table.Load()
	t.closeExcept()
	b.previous.closeExcept(t)
	return b.Backend.Close()
}

// Transforms reports whether documents of a collection may be stored in another form than they have when they are read.
func (b *Backend) Transforms(collection string) bool { return b.table.Load().chain(collection) != nil }

// sealed pools buffers for encrypted documents. They are free when the commit returns.
var sealed = sync.Pool{New: func() any { return new([]byte) }}

// maxPooled is the largest capacity of a buffer that returns to the pool.
const maxPooled = 64 << 10

// Commit implements storage.Backend. If a document cannot be encrypted, it writes no document.
func (b *Backend) Commit(ctx context.Context, writes []storage.Write) (*storage.Outcome, error) {
	t := b.table.Load()
	below := writes
	for i, w := range writes {
		if w.Op != storage.Create && w.Op != storage.Update {
			continue
		}
		c := t.chain(w.Key.Collection)
		if c == nil || c.plain() {
			continue
		}
		if &below[0] == &writes[0] {
			below = append([]storage.Write(nil), writes...)
		}
		buffer := sealed.Get().(*[]byte)
		defer release(buffer)
		var err error
		if *buffer, err = c.seal((*buffer)[:0], w.Value, b.place(w.Key.String())); err != nil {
			return nil, fmt.Errorf("encrypt %s: %w", w.Key, err)
		}
		below[i].Value = *buffer
	}
	outcome, err := b.Backend.Commit(ctx, below)
	if err != nil {
		return nil, err
	}
	for i := range outcome.Before {
		b.open(ctx, t, &outcome.Before[i])
	}
	return outcome, nil
}

func release(buffer *[]byte) {
	if cap(*buffer) <= maxPooled {
		sealed.Put(buffer)
	}
}

// place returns the key in etcd of a path.
func (b *Backend) place(path string) []byte {
	return append(append(make([]byte, 0, len(b.prefix)+len(path)), b.prefix...), path...)
}

// open decrypts a document in place.
func (b *Backend) open(ctx context.Context, t *table, kv *storage.KV) {
	if kv.Revision == 0 || kv.Value == nil {
		return
	}
	group := strings.IndexByte(kv.Path, '/')
	resource := strings.IndexByte(kv.Path[group+1:], '/')
	if group < 0 || resource < 0 {
		return // not the path of an object
	}
	c := t.chain(kv.Path[:group+1+resource])
	if c == nil {
		return
	}
	if !isEncrypted(kv.Value) && c.plain() {
		return
	}
	document, stale, err := c.open(ctx, kv.Value, b.place(kv.Path))
	kv.Value, kv.Stale, kv.Err = document, stale, err
	if err == nil && document == nil {
		kv.Value = []byte{} // nil would mean a deletion
	}
}

// Range implements storage.Backend. A document that cannot be decrypted has an error instead of its value.
func (b *Backend) Range(ctx context.Context, r storage.RangeRequest) (*storage.RangeResult, error) {
	result, err := b.Backend.Range(ctx, r)
	if err != nil {
		return nil, err
	}
	t := b.table.Load()
	for i := range result.KVs {
		b.open(ctx, t, &result.KVs[i])
	}
	return result, nil
}

// Watch implements storage.Backend.
func (b *Backend) Watch(ctx context.Context, r storage.FollowRequest) <-chan storage.WatchBatch {
	below := b.Backend.Watch(ctx, r)
	batches := make(chan storage.WatchBatch)
	go func() {
		defer close(batches)
		for batch := range below { // the channel is closed soon after ctx ends
			t := b.table.Load()
			for i := range batch.Changes {
				b.openChange(ctx, t, &batch.Changes[i])
			}
			select {
			case batches <- batch:
			case <-ctx.Done():
			}
		}
	}()
	return batches
}

// openChange decrypts the document of a change in place.
func (b *Backend) openChange(ctx context.Context, t *table, c *storage.Change) {
	now := storage.KV{Path: c.Path, Value: c.Value, Revision: c.Revision}
	b.open(ctx, t, &now)
	c.Value, c.Err = now.Value, now.Err
}

// Check is a check of /readyz.
type Check struct {
	Name string
	Run  func(ctx context.Context) error
}

// Checks returns the health checks of the plugins, with kube-apiserver's names.
func (b *Backend) Checks() []Check {
	t := b.table.Load()
	if len(t.kms) == 0 && !b.options.Reload {
		return nil
	}
	checks := []Check{{"kms-providers", func(ctx context.Context) error {
		return errors.Join(askAll(ctx, b.table.Load())...)
	}}}
	if b.options.Reload {
		return checks
	}
	for i, k := range t.kms {
		checks = append(checks, Check{fmt.Sprintf("kms-provider-%d", i), k.check})
	}
	return checks
}
