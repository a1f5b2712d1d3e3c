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
	// settleLooks is how often Settle looks again at once; then it makes pauses.
	settleLooks = 20
	settlePause = 200 * time.Microsecond
	// askAgain is after how many looks watches are asked for another bookmark: one may have opened meanwhile.
	askAgain = 50
)

// Settle waits until neither this server nor the given parts, which must be clients of this server alone, have work
// left: no request is under way, and the parts have seen every change and handled it. It waits neither for other
// clients to think, nor for a later time. If ctx ends first, the error has the work that was left. Settle is for
// control planes in one process; it costs a bookmark for every open watch.
func (s *Server) Settle(ctx context.Context, parts *quiescence.Group) error {
	var work []string
	asked, quiet := int64(0), int64(0)
	for look := 1; ctx.Err() == nil; look++ {
		revision, err := s.Store.Revision(ctx)
		if err != nil {
			return fmt.Errorf("settle: %w%s", err, workLeft(work))
		}
		if revision != asked || look%askAgain == 0 {
			asked = revision
			s.Store.AskBookmarks()
		}
		work = append(s.busy(), parts.Busy(revision)...)
		switch {
		case len(work) > 0:
			quiet = 0
		case quiet == revision:
			return nil
		default: // it takes two looks, between which a change that has just been seen can become a key in a queue
			quiet = revision
		}
		pauseToSettle(ctx, look)
	}
	return fmt.Errorf("settle: %w%s", ctx.Err(), workLeft(work))
}

func workLeft(work []string) string {
	if len(work) == 0 {
		return ""
	}
	return "; work is left: " + strings.Join(work, "; ")
}

func pauseToSettle(ctx context.Context, look int) {
	if look < settleLooks {
		runtime.Gosched()
		return
	}
	select {
	case <-ctx.Done():
	case <-time.After(settlePause):
	}
}

// busy is what this server has to do.
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
