package testenv

import (
	"context"
	"time"

	"github.com/coxswain-dev/coxswain/storage"
)

// WithStorageDelay makes the store as slow as an etcd on slow disks: each consistent read and each write waits this
// long, by the machine's clock. Reads that the API server answers from its cache, as most are, do not wait.
func WithStorageDelay(read, write time.Duration) Option {
	return func(o *options) { o.readDelay, o.writeDelay = read, write }
}

// slowBackend is a backend that waits before each operation.
type slowBackend struct {
	storage.Backend
	read, write time.Duration
}

// Commit implements storage.Backend.
func (b slowBackend) Commit(ctx context.Context, writes []storage.Write) (*storage.Outcome, error) {
	if err := pause(ctx, b.write); err != nil {
		return nil, err
	}
	return b.Backend.Commit(ctx, writes)
}

// Revision implements storage.Backend.
func (b slowBackend) Revision(ctx context.Context) (int64, error) {
	if err := pause(ctx, b.read); err != nil {
		return 0, err
	}
	return b.Backend.Revision(ctx)
}

// Range implements storage.Backend.
func (b slowBackend) Range(ctx context.Context, r storage.RangeRequest) (*storage.RangeResult, error) {
	if err := pause(ctx, b.read); err != nil {
		return nil, err
	}
	return b.Backend.Range(ctx, r)
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
