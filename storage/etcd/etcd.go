// Package etcd implements storage.Backend with etcd: an etcd in this process (StartEmbedded), or a cluster in the
// network (DialExternal). Both use the same implementation with different clients.
//
// The package translates the commits, ranges and watches of a storage.Store to etcd's transactions, and etcd's
// responses to the types of storage. It sorts errors by one question: was the write applied (commit.go)? lease.go lets
// objects that expire together share a lease. member.go and election.go abandon a member that hangs or has lost its
// leader. For the embedded etcd, disk.go reserves room for deletions on a full disk, inspect.go and pages.go check the
// files before the start, and etcdlog.go shortens the log. snapshot.go creates a data directory from a snapshot.
//
// The package must not depend on a Store, a kind or HTTP.
package etcd

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/metadata"

	"github.com/coxswain-dev/coxswain/storage"
)

// backend implements storage.Backend. For an embedded and an external etcd, only the client differs.
type backend struct {
	client *clientv3.Client
	prefix string // ends in "/"
	leases leases
	// elections is nil if etcd has one member.
	elections *elections
	server    *embed.Etcd // the embedded etcd, or nil
	disk      *disk       // the disk of the embedded etcd, or nil
	closer    func() error

	streams atomic.Int64 // the number of watch streams so far
	mu      sync.Mutex
	open    map[context.Context]struct{} // the contexts of open watches
}

func newBackend(client *clientv3.Client, prefix string) *backend {
	return &backend{
		client: client,
		prefix: storage.KeyPrefix(prefix),
		leases: newLeases(client),
		open:   map[context.Context]struct{}{},
	}
}

func (e *backend) Close() error { return e.closer() }

// inProcess reports whether the server is in this process, and reached through function calls.
func (e *backend) inProcess() bool { return e.server != nil }

// connectPatience is how long a request waits for a lost connection to be restored.
const connectPatience = 2 * time.Second

// connected waits for a connection. If there is none, the request has certainly not been sent. clientv3 itself would
// retry until the context ends, and would not report this.
func (e *backend) connected(ctx context.Context) error {
	if e.inProcess() {
		return nil
	}
	connection := e.client.ActiveConnection()
	state := connection.GetState()
	if state == connectivity.Ready {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, connectPatience)
	defer cancel()
	for ; state != connectivity.Ready; state = connection.GetState() {
		connection.Connect()
		if !connection.WaitForStateChange(ctx, state) {
			return notSent{fmt.Errorf("no connection to any of %v (%s): %w", e.client.Endpoints(), state, ctx.Err())}
		}
	}
	return nil
}

// Revision reads a key that does not exist: only the header of the response is needed.
func (e *backend) Revision(ctx context.Context) (int64, error) {
	if err := e.connected(ctx); err != nil {
		return 0, readError(err)
	}
	r, err := e.client.Get(ctx, e.prefix, clientv3.WithKeysOnly())
	if err != nil {
		return 0, readError(err)
	}
	e.elections.note(r.Header.RaftTerm)
	return r.Header.Revision, nil
}

func (e *backend) Range(ctx context.Context, r storage.RangeRequest) (*storage.RangeResult, error) {
	if err := e.connected(ctx); err != nil {
		return nil, readError(err)
	}
	start := r.Prefix
	if r.Start > start {
		start = r.Start
	}
	response, err := e.client.Get(ctx, e.prefix+start,
		clientv3.WithRange(clientv3.GetPrefixRangeEnd(e.prefix+r.Prefix)),
		clientv3.WithRev(r.Revision), clientv3.WithLimit(r.Limit))
	if err != nil {
		return nil, readError(err)
	}
	result := &storage.RangeResult{
		KVs:      make([]storage.KV, len(response.Kvs)),
		Revision: response.Header.Revision,
		More:     response.More,
		Count:    response.Count,
	}
	for i, kv := range response.Kvs {
		result.KVs[i] = e.kv(kv)
	}
	return result, nil
}

func (e *backend) kv(kv *mvccpb.KeyValue) storage.KV {
	return storage.KV{Path: string(kv.Key[len(e.prefix):]), Value: kv.Value, Revision: kv.ModRevision}
}

func (e *backend) Compact(ctx context.Context, revision int64) error {
	if _, err := e.client.Compact(ctx, revision, clientv3.WithCompactPhysical()); err != nil {
		return readError(err)
	}
	e.disk.unmapDatabase()
	return nil
}

// streamKey is a metadata key that etcd ignores. clientv3 uses a separate stream for watches with other metadata. etcd
// answers a progress request only when every watch of its stream is up to date. Therefore a watch that reads history
// must not share the stream of the store's watch.
const streamKey = "coxswain-watch"

func (e *backend) Watch(ctx context.Context, r storage.FollowRequest) <-chan storage.WatchBatch {
	ctx, cancel := context.WithCancel(ctx)
	ctx = metadata.AppendToOutgoingContext(ctx, streamKey, strconv.FormatInt(e.streams.Add(1), 10))
	ctx = clientv3.WithRequireLeader(ctx)
	options := []clientv3.OpOption{clientv3.WithPrefix(), clientv3.WithRev(r.From), clientv3.WithCreatedNotify()}
	responses := e.client.Watch(ctx, e.prefix+r.Prefix, options...)
	e.mu.Lock()
	e.open[ctx] = struct{}{}
	e.mu.Unlock()

	batches := make(chan storage.WatchBatch)
	go func() {
		defer close(batches)
		defer cancel()
		defer func() {
			e.mu.Lock()
			delete(e.open, ctx)
			e.mu.Unlock()
		}()
		// clientv3 closes responses soon after ctx ends, and expects to be drained.
		for response := range responses {
			select {
			case batches <- e.batch(response, r.From):
			case <-ctx.Done():
			}
		}
	}()
	return batches
}

// batch translates one response of etcd, which never splits a revision. A response that reports that the watch was
// created, or resumed after a lost connection, covers only the revisions before the first one.
func (e *backend) batch(response clientv3.WatchResponse, from int64) storage.WatchBatch {
	if err := response.Err(); err != nil {
		return storage.WatchBatch{Err: readError(err)}
	}
	e.elections.note(response.Header.RaftTerm)
	switch {
	case response.Created:
		return storage.WatchBatch{Revision: from - 1}
	case response.IsProgressNotify():
		return storage.WatchBatch{Revision: response.Header.Revision}
	case len(response.Events) == 0:
		return storage.WatchBatch{Revision: from - 1}
	}
	changes := make([]storage.Change, len(response.Events))
	for i, event := range response.Events {
		changes[i] = storage.Change{Path: string(event.Kv.Key[len(e.prefix):]), Revision: event.Kv.ModRevision}
		if event.Type == clientv3.EventTypePut {
			changes[i].Value = event.Kv.Value
		}
	}
	return storage.WatchBatch{Changes: changes, Revision: changes[len(changes)-1].Revision}
}

func (e *backend) RequestProgress(ctx context.Context) error {
	e.mu.Lock()
	open := make([]context.Context, 0, len(e.open))
	for watch := range e.open {
		open = append(open, watch)
	}
	e.mu.Unlock()
	var failed []error
	for _, watch := range open {
		// clientv3 finds the stream by the metadata of the context.
		md, _ := metadata.FromOutgoingContext(watch)
		if err := e.client.RequestProgress(metadata.NewOutgoingContext(ctx, md)); err != nil && watch.Err() == nil {
			failed = append(failed, err)
		}
	}
	if err := errors.Join(failed...); err != nil {
		return fmt.Errorf("%w: request progress: %w", storage.ErrUnavailable, err)
	}
	return nil
}
