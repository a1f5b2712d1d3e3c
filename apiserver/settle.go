package apiserver

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/coxswain-dev/coxswain/internal/clock/quiescence"
)

const (
	// immediateChecks is how many times Settle checks without a pause; then it pauses for settlePause after each.
	immediateChecks = 20
	settlePause     = 200 * time.Microsecond
	// bookmarkChecks is after how many checks watches get another bookmark, since a watch may have opened meanwhile.
	bookmarkChecks = 50
)

// Settle waits until neither this server nor the parts, which must be clients of this server alone, have work left: no
// request is under way, and the parts have seen and handled every change. It does not wait for other clients, nor for
// work that is due at a later time. If ctx ends first, the error contains the remaining work. Settle is for control
// planes in one process; it costs a bookmark for every open watch.
func (s *Server) Settle(ctx context.Context, parts *quiescence.Group) error {
	var work []string
	bookmarked, quiet := int64(0), int64(0) // revisions
	for check := 1; ctx.Err() == nil; check++ {
		revision, err := s.Store.Revision(ctx)
		if err != nil {
			return fmt.Errorf("settle: %w%s", err, workLeft(work))
		}
		if revision != bookmarked || check%bookmarkChecks == 0 {
			bookmarked = revision
			s.Store.AskBookmarks()
		}
		work = append(s.busy(), parts.Busy(revision)...)
		switch {
		case len(work) > 0:
			quiet = 0
		case quiet == revision:
			return nil
		default: // a second check follows: meanwhile a change that has just been seen can become a key in a queue
			quiet = revision
		}
		pauseToSettle(ctx, check)
	}
	return fmt.Errorf("settle: %w%s", ctx.Err(), workLeft(work))
}

func workLeft(work []string) string {
	if len(work) == 0 {
		return ""
	}
	return "; work is left: " + strings.Join(work, "; ")
}

func pauseToSettle(ctx context.Context, check int) {
	if check < immediateChecks {
		runtime.Gosched()
		return
	}
	select {
	case <-ctx.Done():
	case <-time.After(settlePause):
	}
}

// busy describes the work that this server has left.
func (s *Server) busy() (work []string) {
	if n := s.metrics.UnderWay(); n > 0 {
		work = append(work, fmt.Sprintf("API server: %d requests are under way", n))
	}
	if s.definitions != nil && s.definitions.Busy() {
		work = append(work, "API server: a CustomResourceDefinition has changed")
	}
	if s.lifetimes.Busy() {
		work = append(work, "API server: a time to live has ended")
	}
	return work
}
