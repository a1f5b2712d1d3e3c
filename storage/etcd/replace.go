package etcd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/coxswain-dev/coxswain/storage"
)

// maxReplace is the largest transaction of an embedded etcd, in bytes. etcd holds it in its log, in memory and on disk,
// until the next thousand writes.
const maxReplace = 512 << 20

// replaceKey is written before and after each Replace, to use up a revision. It has no slash, so that it is below no
// prefix.
const replaceKey = "coxswain-replace"

// Replace implements storage.Backend. etcd applies the transaction as a whole and keeps it as one entry of its log, so
// that a crash leaves the documents before it or after it.
func (e *backend) Replace(ctx context.Context, writes []storage.Write) (int64, error) {
	if !e.inProcess() {
		return 0, fmt.Errorf("%w: the documents are in an external etcd", storage.ErrUnsupported)
	}
	if err := e.roomToReplace(ctx, writes); err != nil {
		return 0, err
	}
	revision, err := e.replace(ctx, writes)
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		e.leases.forget()
		revision, err = e.replace(ctx, writes)
	}
	if err != nil {
		return 0, writeError(err)
	}
	e.disk.unmapDatabase()
	return revision, nil
}

// roomToReplace returns an error if the documents do not fit into the transaction, the quota or the disk. etcd would
// raise an alarm at the quota, and exit with the disk full. The log and the database each take a copy.
func (e *backend) roomToReplace(ctx context.Context, writes []storage.Write) error {
	size := int64(0)
	for _, w := range writes {
		size += int64(len(w.Value) + len(e.prefix) + len(w.Key.String()) + writeOverhead)
	}
	if size > maxReplace {
		return fmt.Errorf("%w: %d MiB of changes, of %d MiB at most", storage.ErrTooLarge, size>>20, maxReplace>>20)
	}
	status, err := e.Status(ctx)
	if err != nil {
		return err
	}
	if status.InUse+size > status.Quota {
		return fmt.Errorf("%w: %d MiB of changes do not fit: %d MiB of a quota of %d MiB are in use",
			storage.ErrNoSpace, size>>20, status.InUse>>20, status.Quota>>20)
	}
	return e.disk.roomToCopy(2*size + diskReserve)
}

func (e *backend) replace(ctx context.Context, writes []storage.Write) (int64, error) {
	ops := make([]clientv3.Op, len(writes))
	for i, w := range writes {
		key := e.prefix + w.Key.String()
		if w.Op == storage.Delete {
			ops[i] = clientv3.OpDelete(key)
			continue
		}
		lease := clientv3.NoLease
		if w.TTL > 0 {
			shared, err := e.leases.take(ctx, w.TTL)
			if err != nil {
				return 0, notSent{err}
			}
			lease = shared.id
		}
		ops[i] = clientv3.OpPut(key, "", clientv3.WithLease(lease))
		ops[i].WithValueBytes(w.Value)
	}
	if _, err := e.client.Put(ctx, replaceKey, ""); err != nil {
		return 0, notSent{err}
	}
	response, err := e.client.Txn(ctx).Then(ops...).Commit()
	if err != nil {
		return 0, err
	}
	_, _ = e.client.Put(ctx, replaceKey, "") // without it, watchers learn a little later that they have seen everything
	return response.Header.Revision, nil
}

// readTTLs sets what is left of the times to live of documents that etcd has leases for.
func (e *backend) readTTLs(ctx context.Context, from []*mvccpb.KeyValue, documents []storage.KV) error {
	left := map[int64]time.Duration{}
	for i, kv := range from {
		if kv.Lease == 0 {
			continue
		}
		ttl, known := left[kv.Lease]
		if !known {
			response, err := e.client.TimeToLive(ctx, clientv3.LeaseID(kv.Lease))
			if err != nil {
				return readError(err)
			}
			ttl = time.Duration(max(response.TTL, 1)) * time.Second // a lease that has ended has -1
			left[kv.Lease] = ttl
		}
		documents[i].TTL = ttl
	}
	return nil
}
