// Package encryption stores documents encrypted: encryption at rest, by Kubernetes' EncryptionConfiguration.
//
// What comes in: a storage.Backend and the file that --encryption-provider-config names. What goes out: a
// storage.Backend that encrypts what is committed, by the first provider of the document's resource, and decrypts what
// is read or watched by whichever provider has written it. All above it, memory included, sees plain documents, and all
// below it ciphertext: the log and the files of etcd, snapshots, and the wire to an external etcd.
//
// The package knows paths and bytes and, by paths, resources; it knows no kind. The bytes that it stores are
// kube-apiserver's, prefix and all (k8s.io/apiserver/pkg/storage/value).
//
//	config.go, validate.go   the file
//	table.go                 which keys a collection has
//	cipher.go                aesgcm, aescbc, secretbox, identity
//	kms.go, envelope.go      kms v2: a plugin, and what is stored by it
//	follow.go                the file and the plugins as they change
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

// Options say what is encrypted and how.
type Options struct {
	// File is the EncryptionConfiguration (--encryption-provider-config).
	File string
	// Reload reads the file again when it changes (--encryption-provider-config-automatic-reload).
	Reload bool
	// Prefix is that of all keys in etcd (--etcd-prefix). With the path it is what ties a document to its place. ""
	// is /registry.
	Prefix string
	// Server identifies this server in metrics, as a hash.
	Server string
	// Clock measures how long a plugin's answers hold. Nil: the real clock.
	Clock clock.WithTicker
	// Log receives log lines, never a key. Nil: slog.Default.
	Log *slog.Logger
}

// Backend is a storage.Backend that encrypts the documents of another. Its methods are safe for concurrent use.
type Backend struct {
	storage.Backend
	options Options
	prefix  string // ends in "/"
	metrics *metrics
	// Metrics has kube-apiserver's metrics of transformations, plugins and reloads.
	Metrics *prometheus.Registry
	table   atomic.Pointer[table]

	// Follow's goroutine owns these.
	hash     string // of the file that is in force
	refused  refusal
	previous *table
}

// New reads the configuration and wraps a backend, which is closed with it. A configuration that is not valid is an
// error. A plugin that does not answer is none: Follow goes on asking it.
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

// Close closes the plugins' connections and the backend below. Follow must have ended.
func (b *Backend) Close() error {
	t := b.table.Load()
	t.closeExcept()
	b.previous.closeExcept(t)
	return b.Backend.Close()
}

// Transforms reports whether the documents of a collection may be stored in another form than they are read in.
func (b *Backend) Transforms(collection string) bool { return b.table.Load().of(collection) != nil }

// sealed are buffers for what a commit stores, which nobody keeps after it.
var sealed = sync.Pool{New: func() any { return new([]byte) }}

// maxPooled is how large a buffer may be to be used again.
const maxPooled = 64 << 10

// Commit implements storage.Backend. If a document cannot be encrypted nothing is written.
func (b *Backend) Commit(ctx context.Context, writes []storage.Write) (*storage.Outcome, error) {
	t := b.table.Load()
	below := writes
	for i, w := range writes {
		if w.Op != storage.Create && w.Op != storage.Update {
			continue
		}
		c := t.of(w.Key.Collection)
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

// place is the key in etcd of a path.
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
		return // no object's
	}
	c := t.of(kv.Path[:group+1+resource])
	if c == nil {
		return
	}
	if !isEncrypted(kv.Value) && c.plain() {
		return
	}
	document, stale, err := c.open(ctx, kv.Value, b.place(kv.Path))
	kv.Value, kv.Stale, kv.Err = document, stale, err
	if err == nil && document == nil {
		kv.Value = []byte{} // which is not a deletion
	}
}

// Range implements storage.Backend. A document that cannot be decrypted has the reason in place of its value.
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
		for batch := range below { // which is closed soon after ctx ends
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

func (b *Backend) openChange(ctx context.Context, t *table, c *storage.Change) {
	now := storage.KV{Path: c.Path, Value: c.Value, Revision: c.Revision}
	b.open(ctx, t, &now)
	c.Value, c.Err = now.Value, now.Err
}

// Check is a part of /readyz.
type Check struct {
	Name string
	Run  func(ctx context.Context) error
}

// Checks are those of the plugins' health, by the names that kube-apiserver gives them.
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
