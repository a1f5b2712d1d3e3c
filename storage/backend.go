package storage

import (
	"context"
	"io"
	"time"
)

// Backend is the part of etcd that a Store needs: paths, bytes and revisions. Package etcd implements it on etcd,
// package memory without etcd, and package encryption over another Backend. All methods are safe for concurrent use
// and return the package's errors.
type Backend interface {
	// Commit applies all writes in one etcd transaction, or none. A failed compare is not an error:
	// Outcome reports it. Commit does not read or keep any Value after it has returned, with or without an error.
	Commit(ctx context.Context, writes []Write) (*Outcome, error)
	// Revision returns etcd's current revision, by a linearizable read.
	Revision(ctx context.Context) (int64, error)
	// Range reads documents below prefix in key order at a revision (0: now).
	Range(ctx context.Context, r RangeRequest) (*RangeResult, error)
	// Watch streams every change from a revision on, until ctx ends. The channel is closed
	// after a batch with Err, or when ctx ends.
	Watch(ctx context.Context, r FollowRequest) <-chan WatchBatch
	// RequestProgress makes every open Watch that is in step with etcd deliver a batch that
	// carries etcd's revision. A watch that is still catching up stays silent.
	RequestProgress(ctx context.Context) error
	// Compact drops the history before the revision: watches and reads of it fail with ErrExpired. It
	// returns when the space can be used again.
	Compact(ctx context.Context, revision int64) error
	// Status returns etcd's size and its alarms.
	Status(ctx context.Context) (*Status, error)
	// Defragment returns the space that compaction has freed to the disk. etcd serves no requests meanwhile.
	Defragment(ctx context.Context) error
	// Disarm clears an alarm. etcd raises it again if its cause remains.
	Disarm(ctx context.Context, a Alarm) error
	// Snapshot streams etcd's whole database at one revision, followed by its SHA-256. It includes keys
	// outside of the prefix.
	Snapshot(ctx context.Context) (io.ReadCloser, error)
	// Note reads the note that the servers on one etcd leave for each other beside the objects. Servers with different
	// prefixes share it.
	Note(ctx context.Context) (*Note, error)
	// ReplaceNote replaces the note unless another server has replaced the old one already.
	ReplaceNote(ctx context.Context, old *Note, value []byte) (bool, error)
	// Close releases the client and, for the embedded etcd, stops the server.
	Close() error
}

// Note is the result of Backend.Note. Revision, its mod revision, is 0 when there was no note; At is
// etcd's revision when it answered.
type Note struct {
	Value        []byte
	Revision, At int64
}

// Outcome is the result of Backend.Commit.
type Outcome struct {
	// Applied reports that the compares held and everything was written, at Revision.
	Applied  bool
	Revision int64
	// Before holds, for each write in order, the document before the commit (when applied: of deletes
	// only). Its Revision is 0 if there was none.
	Before []KV
}

// RangeRequest reads keys in [Start, end of Prefix) at Revision, at most Limit of them.
type RangeRequest struct {
	Prefix   string // path below the etcd prefix, "" for everything
	Start    string // first path to read; "" starts at Prefix
	Revision int64  // 0 reads the newest
	Limit    int64  // 0 reads all
}

// RangeResult is one answer of Backend.Range.
type RangeResult struct {
	KVs      []KV
	Revision int64 // etcd's revision when it answered
	More     bool  // Limit cut the answer short
	Count    int64 // how many keys the whole range has
}

// KV is one document as etcd stores it, without a resourceVersion in it.
type KV struct {
	Path     string
	Value    []byte
	Revision int64
	// Err is why the document cannot be decrypted; Value is then nil.
	Err error
	// Stale reports that the document is stored in another form than a write would give it now.
	Stale bool
}

// FollowRequest opens a Backend.Watch.
type FollowRequest struct {
	From   int64  // the first revision to deliver
	Prefix string // path below the etcd prefix, "" for everything
}

// WatchBatch is the changes of one or more whole revisions, in order. Revision is the frontier after
// it: every change up to and including it has been delivered. The first batch of a watch has no
// changes: it reports that the watch is open.
type WatchBatch struct {
	Changes  []Change
	Revision int64
	Err      error // the watch ended; ErrExpired when compacted
}

// Change is one put (Value set, or Err) or delete (neither) of a path.
type Change struct {
	Path     string
	Value    []byte
	Revision int64
	Err      error // why the document cannot be decrypted
}

// Write is one part of a commit.
type Write struct {
	Op    Op
	Key   Key
	Value []byte // the document without metadata.resourceVersion; nil for Delete
	// Expect is the mod revision the object must have. Update and Delete require it, or AnyRevision.
	// Check requires one.
	Expect int64
	// TTL, if positive, is the object's time to live in etcd (rounded up to seconds; objects that expire together share
	// an etcd lease). Zero keeps the object forever.
	TTL time.Duration
	// KeepTTL leaves the time to live of an Update's document as it is, in place of TTL.
	KeepTTL bool
	// Ending marks the document of an object that is being deleted: a full disk takes some of them, because they
	// lead to deletions. It holds for the whole commit.
	Ending bool
}

// AnyRevision, as Write.Expect of an Update or a Delete, makes the write unconditional: the document is written or
// deleted, whether or not it existed. It is for a document that depends on another document in the same commit, and
// that document's revision is compared.
const AnyRevision int64 = -1

// Op is the operation of a Write.
type Op uint8

// The operations: Create fails with ErrExists, the others fail with *Conflict or ErrNotFound, and then no write of the
// commit is applied. Check only compares: the other writes of the commit depend on an object that they do not change.
const (
	Create Op = iota
	Update
	Delete
	Check
)
