package testenv

import (
	"context"
	"fmt"
)

// StopAPIServer ends the API server as for a restart: watches end, requests under way are answered, and after that
// clients are refused. Its data, its address and the other parts remain.
func (e *Environment) StopAPIServer() error {
	if err := e.own("StopAPIServer"); err != nil {
		return err
	}
	if err := e.server.stop(); err != nil {
		return fmt.Errorf("testenv: stopping the API server: %w", err)
	}
	return nil
}

// StartAPIServer starts the API server again after StopAPIServer, with the same data at the same address. It
// returns when the server answers; clients come back when they try again.
func (e *Environment) StartAPIServer() error {
	if err := e.own("StartAPIServer"); err != nil {
		return err
	}
	if err := e.server.start(e.ctx); err != nil {
		return fmt.Errorf("testenv: starting the API server: %w", err)
	}
	return nil
}

// DropWatches ends the open watches that match one of the matches; without a match, all watches except the ones of
// the control plane's own parts. Their clients watch again, from the last resourceVersion that they have seen. It
// returns the number of ended watches.
func (e *Environment) DropWatches(matches ...Match) int { return e.traffic.drop(matches) }

// Compact deletes the history of all objects, as etcd's compaction does after some minutes, and drops the watches
// of the code under test. A client that resumes from a resourceVersion which it has seen before gets 410 Gone
// (reason Expired), has to list again, and may have missed deletions.
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

// own returns an error if the server is the one of OrExternal: then the environment has only its API.
func (e *Environment) own(method string) error {
	if e.server == nil {
		return fmt.Errorf("testenv: %s: the API server is not this environment's own", method)
	}
	return nil
}
