package storage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"
)

// compactor compacts history that is older than its retention.
//
// etcd knows revisions, not times. So once in every interval, one of the servers on an etcd records a
// milestone: the time, and the current revision. The newest milestone that is older than the retention
// is the revision to compact to. The milestones are in etcd, so that they survive restarts, and a new
// server need not wait for an hour. The note that holds them is replaced by compare-and-swap, so that
// exactly one server does the work of an interval, and a server that dies leaves no lock behind.
type compactor struct {
	backend   Backend
	log       *slog.Logger
	clock     clock.PassiveClock
	interval  time.Duration
	retention time.Duration
	// milestones are in order of their times. The server goes on recording them here when etcd has no room for them.
	// Only upkeep's goroutine uses milestones and compacted.
	milestones []milestone
	compacted  int64
	// oldest is the first revision within the retention. Readers cannot read an older one, even if
	// memory still has it. It only grows; any goroutine may advance it.
	oldest atomic.Int64
}

// milestone records the revision that etcd had at a time.
type milestone struct {
	Time     time.Time `json:"time"`
	Revision int64     `json:"revision"`
}

// Compact drops the history before a revision at once, regardless of the retention. Later reads and watches of it fail
// with ErrExpired. Open watches continue.
func (s *Store) Compact(ctx context.Context, revision int64) error {
	s.compactor.expire(revision)
	if err := s.backend.Compact(ctx, revision); err != nil && !errors.Is(err, ErrExpired) {
		return fmt.Errorf("compact to revision %d: %w", revision, err)
	}
	return nil
}

// round performs the work of one interval.
func (c *compactor) round(ctx context.Context) error {
	note, err := c.backend.Note(ctx)
	if err != nil {
		return err
	}
	now := c.clock.Now()
	c.learn(note, now)
	target := c.forget(now.Add(-c.retention))
	c.expire(target)
	// The intervals of servers do not begin together. If another server has just recorded a milestone, this round is
	// done.
	if n := len(c.milestones); n > 0 && now.Sub(c.milestones[n-1].Time) < c.interval-c.interval/10 {
		return nil
	}
	c.milestones = append(c.milestones, milestone{now.UTC(), note.At})
	value, err := json.Marshal(c.milestones)
	if err != nil {
		return err
	}
	mine, err := c.backend.ReplaceNote(ctx, note, value)
	switch {
	case errors.Is(err, ErrNoSpace):
		// Freeing space must not depend on recording a milestone. It does no harm if other servers
		// compact as well.
	case err != nil:
		return err
	case !mine:
		return nil
	}
	if target <= c.compacted {
		return nil
	}
	if err := c.backend.Compact(ctx, target); err != nil && !errors.Is(err, ErrExpired) {
		return fmt.Errorf("compact to revision %d: %w", target, err)
	}
	c.compacted = target
	c.log.Debug("compacted history", "revision", target)
	return nil
}

// expire makes reads of revisions before the given one fail.
func (c *compactor) expire(before int64) {
	for {
		if oldest := c.oldest.Load(); oldest >= before || c.oldest.CompareAndSwap(oldest, before) {
			return
		}
	}
}

// learn adds the milestones of other servers. It drops impossible ones, which exist if a clock was wrong or etcd was
// restored from a backup.
func (c *compactor) learn(note *Note, now time.Time) {
	var noted []milestone
	if note.Revision > 0 {
		if err := json.Unmarshal(note.Value, &noted); err != nil {
			c.log.Warn("cannot read the note of milestones, begin another", "err", err)
		}
	}
	all := append(noted, c.milestones...)
	all = slices.DeleteFunc(all, func(m milestone) bool {
		return m.Revision <= 0 || m.Revision > note.At || m.Time.After(now.Add(c.interval))
	})
	slices.SortFunc(all, func(a, b milestone) int {
		if order := a.Time.Compare(b.Time); order != 0 {
			return order
		}
		return int(a.Revision - b.Revision)
	})
	c.milestones = slices.CompactFunc(all, func(a, b milestone) bool {
		return a.Revision == b.Revision && a.Time.Equal(b.Time)
	})
}

// forget drops the milestones before the newest that is not later than the given time, and
// returns its revision; 0 if there is none.
func (c *compactor) forget(then time.Time) int64 {
	last := -1
	for i, m := range c.milestones {
		if m.Time.After(then) {
			break
		}
		last = i
	}
	if last < 0 {
		return 0
	}
	c.milestones = slices.Delete(c.milestones, 0, last)
	return c.milestones[0].Revision
}
