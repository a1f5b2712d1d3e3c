package storage

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	// upkeepTimeout bounds one round of compaction, and each step of making room.
	upkeepTimeout = time.Minute
	// roomEvery is how often, at most, room is made when space runs out.
	roomEvery = 5 * time.Second
	// roomEnough is a part of the quota, in percent: below it, writes are accepted again. It is a little less than all,
	// so that the next write does not raise the alarm again.
	roomEnough = 90
	// fragmented is the part of the database file, in percent, that must be free to make a
	// scheduled defragmentation worth the standstill.
	fragmented = 25
)

// upkeep does the work that etcd needs besides reads and writes, until the store is closed: it compacts
// history, defragments an embedded etcd on schedule, and makes room when that has run out of space.
func (s *Store) upkeep() {
	compaction, stopCompaction := s.every(s.options.CompactionInterval)
	defer stopCompaction()
	defragmentation, stopDefragmentation := s.every(s.options.DefragmentInterval)
	defer stopDefragmentation()
	s.makeRoomIfNeeded() // the alarm outlives a restart
	for {
		select {
		case <-compaction:
			s.try("compact history", s.compactor.round)
			s.makeRoomIfNeeded()
		case <-defragmentation:
			s.try("defragment etcd", s.defragment)
		case <-s.noSpace:
			s.makeRoomIfNeeded()
		case <-s.ctx.Done():
			return
		}
	}
}

// every ticks by the store's clock, never when the interval is not positive.
func (s *Store) every(interval time.Duration) (<-chan time.Time, func()) {
	if interval <= 0 {
		return nil, func() {}
	}
	ticker := s.options.Clock.NewTicker(interval)
	return ticker.C(), ticker.Stop
}

func (s *Store) try(action string, do func(context.Context) error) {
	ctx, cancel := context.WithTimeout(s.ctx, upkeepTimeout)
	defer cancel()
	if err := do(ctx); err != nil && s.ctx.Err() == nil {
		s.options.Log.Warn("cannot "+action, "err", err)
	}
}

func (s *Store) defragment(ctx context.Context) error {
	status, err := s.backend.Status(ctx)
	if err != nil || (status.Size-status.InUse)*100 < status.Size*fragmented {
		return err
	}
	return s.backend.Defragment(ctx)
}

// signalNoSpace wakes upkeep when a write was rejected for lack of space.
func (s *Store) signalNoSpace(err error) {
	if !errors.Is(err, ErrNoSpace) {
		return
	}
	select {
	case s.noSpace <- struct{}{}:
	default:
	}
}

func (s *Store) makeRoomIfNeeded() {
	now := s.options.Clock.Now()
	if since := now.Sub(s.madeRoom); since >= 0 && since < roomEvery {
		return
	}
	s.madeRoom = now
	s.try("make room in etcd", s.makeRoom)
}

// makeRoom makes an embedded etcd that has reached its quota, or has filled its disk, accept writes again.
// It has no listener that etcdctl could do this through. History is dropped first, regardless of its retention:
// accepting writes is worth more.
func (s *Store) makeRoom(ctx context.Context) error {
	status, err := s.backend.Status(ctx)
	if err != nil || !status.Embedded || !status.needsRoom() {
		return err
	}
	if err := s.backend.Compact(ctx, status.Revision); err != nil && !errors.Is(err, ErrExpired) {
		return err
	}
	if !status.Has(NoSpace) {
		return s.defragment(ctx)
	}
	if err := s.backend.Defragment(ctx); err != nil {
		return err
	}
	before := status.Size
	if status, err = s.backend.Status(ctx); err != nil {
		return err
	}
	if status.Size*100 >= status.Quota*roomEnough {
		return fmt.Errorf("%w: the objects alone take %d bytes, of a quota of %d", ErrNoSpace,
			status.Size, status.Quota)
	}
	s.options.Log.Info("made room in etcd: its history is gone", "before", before, "after", status.Size,
		"quota", status.Quota)
	return s.backend.Disarm(ctx, NoSpace)
}
