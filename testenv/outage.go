package testenv

import (
	"context"
	"fmt"
)

// StopAPIServer ends the API server as for a restart: watches end, requests under way are answered, and from then on
// clients are refused. Its data, its address and the other parts stay.
func (e *Environment) StopAPIServer() error {
	if err := e.own("StopAPIServer"); err != nil {
		return err
	}
	if err := e.server.stop(); err != nil {
		return fmt.Errorf("testenv: stopping the API server: %w", err)
	}
	return nil
}

// StartAPIServer starts it again after StopAPIServer, with the same data at the same address. It returns when the
// server answers; clients come back when they try again.
func (e *Environment) StartAPIServer() error {
	if err := e.own("StartAPIServer"); err != nil {
		return err
	}
	if err := e.server.start(e.ctx); err != nil {
		return fmt.Errorf("testenv: starting the API server: %w", err)
	}
	return nil
}

// DropWatches ends the open watches that one of the matches chooses; without a match all but those of the control
// plane's own parts. Their clients watch again, from the resourceVersion that they have seen last. It returns how many
// there were.
func (e *Environment) DropWatches(matches ...Match) int { return e.traffic.drop(matches) }

// Compact forgets the history of all objects, as etcd's compaction does some minutes later, and drops the watches
// of the code under test. A client that goes on from a resourceVersion that it has seen before gets 410 Gone (reason
// Expired), has to list anew, and may have missed deletions.
func (e *Environment) Compact(ctx context.Context) error {
	if err := e.own("Compact"); err != nil {
		return err
	}
	if err := e.server.compact(ctx); err != nil {
		return fmt.Errorf("testenv: compacting: %w", err)
	}
	e.DropWatches()
	return nil
}

// own is an error for a server that OrExternal has chosen, of which only the API is there.
func (e *Environment) own(method string) error {
	if e.server == nil {
		return fmt.Errorf("testenv: %s: the API server is not this environment's own", method)
	}
	return nil
}
