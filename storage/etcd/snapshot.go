package etcd

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	bolt "go.etcd.io/bbolt"
	etcdbackend "go.etcd.io/etcd/server/v3/storage/backend"
	"go.etcd.io/etcd/server/v3/storage/datadir"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	etcdschema "go.etcd.io/etcd/server/v3/storage/schema"
	"go.uber.org/zap"
)

// ErrBadSnapshot: a file is not a snapshot, or not a complete one.
var ErrBadSnapshot = errors.New("not an intact snapshot of etcd")

// SnapshotStatus describes the content of a snapshot.
type SnapshotStatus struct {
	Revision int64 `json:"revision"`
	Keys     int   `json:"keys"` // revisions of keys, the deleted included
	Size     int64 `json:"size"` // in bytes, without the checksum
}

// ReadSnapshot checks a snapshot, its checksum and its structure, and returns its status. The error is
// ErrBadSnapshot if the snapshot is not intact.
func ReadSnapshot(file string) (*SnapshotStatus, error) {
	size, err := checkSum(file)
	if err != nil {
		return nil, fmt.Errorf("storage: %s: %w", file, err)
	}
	db, err := bolt.Open(file, 0o400, &bolt.Options{ReadOnly: true})
	if err != nil {
		return nil, fmt.Errorf("storage: %s: %w: %w", file, ErrBadSnapshot, err)
	}
	defer db.Close()
	status := &SnapshotStatus{Size: size}
	err = db.View(func(tx *bolt.Tx) error {
		for err := range tx.Check() {
			return err
		}
		keys := tx.Bucket(etcdschema.Key.Name())
		if keys == nil {
			return errors.New("it has no keys")
		}
		return keys.ForEach(func(k, _ []byte) error {
			status.Revision = mvcc.BytesToRev(k).Main
			status.Keys++
			return nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("storage: %s: %w: %w", file, ErrBadSnapshot, err)
	}
	return status, nil
}

// checkSum verifies the checksum at the end of a snapshot, and returns the size of the database before it.
func checkSum(file string) (int64, error) {
	f, err := os.Open(file)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	// A database consists of whole pages, so the file's size shows whether a checksum follows.
	size := info.Size() - sha256.Size
	if size <= 0 || size%512 != 0 {
		return 0, fmt.Errorf("%w: it has no checksum", ErrBadSnapshot)
	}
	hash, want := sha256.New(), make([]byte, sha256.Size)
	if _, err := io.CopyN(hash, f, size); err != nil {
		return 0, err
	}
	if _, err := io.ReadFull(f, want); err != nil {
		return 0, err
	}
	if !bytes.Equal(hash.Sum(nil), want) {
		return 0, fmt.Errorf("%w: its checksum is wrong", ErrBadSnapshot)
	}
	return size, nil
}

// restoreBump is how far a restored etcd's revision is ahead of the snapshot's. Revisions that were
// given after the snapshot was taken are lost, but clients remember them; they must never mean
// something else. Kubernetes' own advice for restoring etcd names this number.
const restoreBump = 1_000_000_000

// RestoreSnapshot makes a data directory for etcd of a snapshot. dir must not exist or be empty. The
// etcd that is started on it, embedded or not, begins a new cluster that holds the snapshot's objects;
// each member of a larger one needs a directory of its own, made of the same snapshot, and is started
// with --initial-cluster-state=new. Every revision that a client may remember is compacted there:
// watches start over.
func RestoreSnapshot(file, dir string) error {
	status, err := ReadSnapshot(file)
	if err != nil {
		return err
	}
	if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 {
		return fmt.Errorf("storage: restore: %s is not empty", dir)
	}
	if err := os.MkdirAll(datadir.ToSnapDir(dir), 0o700); err != nil {
		return fmt.Errorf("storage: restore: %w", err)
	}
	if err := restore(file, dir, status); err != nil {
		return errors.Join(fmt.Errorf("storage: restore: %w", err), os.RemoveAll(datadir.ToMemberDir(dir)))
	}
	return nil
}

// restore works in a folder of another name until it is complete, so that no etcd starts from half of
// it.
func restore(file, dir string, status *SnapshotStatus) error {
	unfinished := filepath.Join(datadir.ToSnapDir(dir), "restoring")
	if err := copyDatabase(file, unfinished, status.Size); err != nil {
		return err
	}
	if err := forgetCluster(unfinished, status.Revision); err != nil {
		return err
	}
	return os.Rename(unfinished, datadir.ToBackendFileName(dir))
}

func copyDatabase(file, to string, size int64) (err error) {
	in, err := os.Open(file)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	if _, err := io.CopyN(out, in, size); err != nil {
		return err
	}
	return out.Sync()
}

// forgetCluster removes the ties of a database to its old cluster: the members, and the index of the last applied log
// entry, because there is a new log.
func forgetCluster(file string, revision int64) (err error) {
	log := zap.NewNop()
	be := etcdbackend.NewDefaultBackend(log, file)
	defer func() { err = errors.Join(err, be.Close()) }()
	if err := etcdschema.NewMembershipBackend(log, be).TrimMembershipFromBackend(); err != nil {
		return err
	}
	tx := be.BatchTx()
	tx.LockOutsideApply()
	defer tx.Unlock()
	for _, key := range [][]byte{etcdschema.MetaConsistentIndexKeyName, etcdschema.MetaTermKeyName,
		etcdschema.MetaConfStateName} {
		tx.UnsafeDelete(etcdschema.Meta, key)
	}
	// The deletion of a key that never existed moves the revision on.
	bumped := mvcc.RevToBytes(mvcc.Revision{Main: revision + restoreBump}, mvcc.NewRevBytes())
	tx.UnsafePut(etcdschema.Key, append(bumped, 't'), []byte{})
	mvcc.UnsafeSetScheduledCompact(tx, revision+restoreBump)
	return nil
}
