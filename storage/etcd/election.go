package etcd

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// A member of etcd forwards a write to its leader. If the leader dies with the write, the member does not learn that,
// and lets the client wait for seven seconds: etcd's request timeout, which cannot be configured. If etcd has several
// members, a late write is therefore given up when a leader exists that was elected after the write was sent. A read
// that is answered in the new leader's term shows that all surviving writes of earlier terms have been applied. A write
// of an earlier term that still has no answer has been lost. The exception is a write that the member held back until
// it knew a leader.

const (
	// lateAfter is the age of a write without an answer that counts as late.
	lateAfter = 500 * time.Millisecond
	// electionGrace is the time for answers that are under way when a leader is elected, and for writes that have
	// waited for a leader.
	electionGrace = 500 * time.Millisecond
)

var errNewLeader = errors.New("etcd has elected another leader, and the write was not heard of again")

// elections gives up writes that were lost with a leader of etcd. A nil elections gives up no write.
type elections struct {
	client *clientv3.Client
	key    string
	term   atomic.Uint64 // the newest known term: Raft's number of an election
	asking sync.Mutex    // held by the one late write that reads the term
}

// note records the term of a response, if it is newer.
func (n *elections) note(term uint64) {
	if n == nil {
		return
	}
	for old := n.term.Load(); term > old && !n.term.CompareAndSwap(old, term); old = n.term.Load() {
	}
}

// guard returns a context for one write. It ends with the cause errNewLeader if the write is lost. The caller must call
// answered when the write has an answer or an error.
func (n *elections) guard(ctx context.Context) (guarded context.Context, answered func()) {
	if n == nil {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	sent := n.term.Load()
	late := time.AfterFunc(lateAfter, func() {
		if n.since(ctx, sent) {
			cancel(errNewLeader)
		}
	})
	return ctx, func() {
		late.Stop()
		cancel(nil)
	}
}

// since waits until a leader of a later term has existed for electionGrace. It returns false if ctx ends before.
func (n *elections) since(ctx context.Context, term uint64) bool {
	for {
		if n.asking.TryLock() { // one read for all late writes
			if answer, err := n.client.Get(ctx, n.key, clientv3.WithCountOnly()); err == nil {
				n.note(answer.Header.RaftTerm)
			}
			n.asking.Unlock()
		}
		elected := n.term.Load() > term
		select {
		case <-ctx.Done():
			return false
		case <-time.After(electionGrace):
		}
		if elected {
			return true
		}
	}
}
