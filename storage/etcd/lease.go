package etcd

import (
	"context"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// An etcd lease costs a raft entry to grant, memory while it lives and an entry to revoke.
// Objects that expire at about the same time therefore share one: within leaseShare of their
// time to live, but at least leaseWindowMin and at most leaseWindowMax after it. They never
// expire early.
//
// Times to live that differ by less than one part in leaseGrains share one too: however many different
// ones clients use, there are at most some 2,500 open leases.
const (
	leaseShare      = 20 // one twentieth: 5 %
	leaseWindowMin  = time.Second
	leaseWindowMax  = time.Minute
	leaseGrains     = 100
	leaseMaxObjects = 1000 // bounds the transaction that revokes it
)

// leases hands out shared leases, one open lease for each time to live.
type leases struct {
	client *clientv3.Client
	// turn is a mutex that can be waited for under a context. Holding it while a lease is
	// granted makes the writers that arrive meanwhile share it.
	turn chan struct{}
	open map[time.Duration]*sharedLease
}

type sharedLease struct {
	id      clientv3.LeaseID
	expires time.Time // not later than etcd's own estimate
	objects atomic.Int32
}

func newLeases(client *clientv3.Client) leases {
	return leases{client: client, turn: make(chan struct{}, 1), open: map[time.Duration]*sharedLease{}}
}

// leaseTerm rounds a time to live up: to whole seconds, or by at most one part in leaseGrains. grain is the step of
// the terms of about that length.
func leaseTerm(ttl time.Duration) (term, grain time.Duration) {
	grain = time.Second
	for 2*leaseGrains*grain <= ttl {
		grain *= 2
	}
	return (ttl + grain - 1).Truncate(grain), grain
}

// take returns a lease that lives at least ttl from now. If it is not used for an object after all,
// that object must be taken off its count.
func (l *leases) take(ctx context.Context, ttl time.Duration) (*sharedLease, error) {
	ttl, grain := leaseTerm(ttl)
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	now := time.Now()
	if s := l.open[ttl]; s != nil && s.objects.Load() < leaseMaxObjects && !s.expires.Before(now.Add(ttl)) {
		s.objects.Add(1)
		return s, nil
	}
	l.drop(now)
	window := max(min(max(ttl/leaseShare, leaseWindowMin), leaseWindowMax).Truncate(time.Second), grain)
	granted, err := l.client.Grant(ctx, int64((ttl+window)/time.Second))
	if err != nil {
		return nil, err
	}
	s := &sharedLease{id: granted.ID, expires: now.Add(ttl + window)}
	s.objects.Add(1)
	l.open[ttl] = s
	return s, nil
}

// drop removes leases that can no longer be shared, so that many different times to live do not pile
// up.
func (l *leases) drop(now time.Time) {
	for ttl, s := range l.open {
		if s.expires.Before(now.Add(ttl)) {
			delete(l.open, ttl)
		}
	}
}

// forget makes all later writes take new leases.
func (l *leases) forget() {
	l.turn <- struct{}{}
	clear(l.open)
	<-l.turn
}
