package etcd

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// A member of etcd sends a write on to its leader. If that dies with it, nobody tells the member, which has the client
// wait for seven seconds: etcd's time for a request, which cannot be set. Where etcd has several members, a write that
// is late is therefore given up when there is a leader that was elected after it was sent. A read that is answered in
// the new leader's term shows that whatever is left of earlier terms has been applied: a write of these that is still
// without an answer has been lost, but for one that the member held back until it knew a leader.

const (
	// lateAfter is after how long a write is late.
	lateAfter = 500 * time.Millisecond
	// electionGrace is for the answers that are on their way when there is a new leader, and for the writes that have
	// waited for one.
	electionGrace = 500 * time.Millisecond
)

var errNewLeader = errors.New("etcd has elected another leader, and the write was not heard of again")

// elections gives up writes that were lost with a leader of etcd. nil gives up none.
type elections struct {
	client *clientv3.Client
	key    string
	term   atomic.Uint64 // the newest that etcd has told, Raft's number of an election
	asking sync.Mutex
}

// note takes the term from an answer.
func (n *elections) note(term uint64) {
	if n == nil {
		return
	}
	for known := n.term.Load(); term > known && !n.term.CompareAndSwap(known, term); known = n.term.Load() {
	}
}

// guard returns a context for one write, which ends with the cause errNewLeader if the write is lost. answered must be
// called when there is an answer.
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

// since waits until there has been a leader of a later term for a while; false if ctx ends before.
func (n *elections) since(ctx context.Context, term uint64) bool {
	for {
		if n.asking.TryLock() { // for all writes that are late
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
