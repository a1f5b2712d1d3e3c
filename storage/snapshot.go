package storage

import (
	"context"
	"fmt"
	"io"
)

// Snapshot writes etcd's whole database, at one revision, and its SHA-256 to w: the format of `etcdctl
// snapshot save`. etcd keeps serving meanwhile. An error means that the output is incomplete.
func Snapshot(ctx context.Context, b Backend, w io.Writer) error {
	stream, err := b.Snapshot(ctx)
	if err != nil {
		return fmt.Errorf("storage: snapshot: %w", err)
	}
	defer stream.Close()
	if _, err := io.Copy(w, stream); err != nil {
		return fmt.Errorf("storage: snapshot: %w", err)
	}
	return nil
}

// Snapshot writes a snapshot of the store's etcd, as the function Snapshot does.
func (s *Store) Snapshot(ctx context.Context, w io.Writer) error { return Snapshot(ctx, s.backend, w) }
