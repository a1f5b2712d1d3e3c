package storage

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// An etcd lease costs a raft entry to grant, memory while it lives and an entry to revoke.
// Objects that expire at about the same time therefore share one: within leaseShare of their
// time to live, but at least leaseWindowMin and at most leaseWindowMax after it. They never
// expire early.
const (
	leaseShare      = 20 // one twentieth: 5 %
	leaseWindowMin  = time.Second
	leaseWindowMax  = time.Minute
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
	expires time.Time // not later than etcd will think
	objects int
}

func newLeases(client *clientv3.Client) leases {
	return leases{client: client, turn: make(chan struct{}, 1), open: map[time.Duration]*sharedLease{}}
}

// take returns a lease that lives at least ttl from now.
func (l *leases) take(ctx context.Context, ttl time.Duration) (clientv3.LeaseID, error) {
	ttl = (ttl + time.Second - 1).Truncate(time.Second)
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
		return clientv3.NoLease, ctx.Err()
	}
	now := time.Now()
	if s := l.open[ttl]; s != nil && s.objects < leaseMaxObjects && !s.expires.Before(now.Add(ttl)) {
		s.objects++
		return s.id, nil
	}
	l.drop(now)
	window := min(max(ttl/leaseShare, leaseWindowMin), leaseWindowMax).Truncate(time.Second)
	granted, err := l.client.Grant(ctx, int64((ttl+window)/time.Second))
	if err != nil {
		return clientv3.NoLease, err
	}
	l.open[ttl] = &sharedLease{id: granted.ID, expires: now.Add(ttl + window), objects: 1}
	return granted.ID, nil
}

// drop forgets leases that can no longer be shared by anyone, so that many different times
// to live do not pile up.
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
