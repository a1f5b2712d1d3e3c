package proxy

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"k8s.io/utils/clock"
)

// look is how often Follow looks at its file.
const look = 500 * time.Millisecond

// Follow calls run with the network namespace that a file names, until ctx ends or run ends by itself. If there is
// no such file yet, it waits for it; if the file comes to name another namespace, as when a node agent is started
// again and makes a new one, it ends run by its context, waits for it, and calls it with the other. It returns what
// run returns.
func Follow(ctx context.Context, file string, c clock.WithTicker, run func(context.Context, *os.File) error) error {
	ticker := c.NewTicker(look)
	defer ticker.Stop()
	for {
		namespace, err := os.Open(file)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			select {
			case <-ctx.Done():
				return nil
			case <-ticker.C():
			}
			continue
		case err != nil:
			return fmt.Errorf("network namespace: %w", err)
		}
		moved, err := runIn(ctx, namespace, ticker, run)
		_ = namespace.Close()
		if !moved {
			return err
		}
	}
}

// runIn calls run until the file that the namespace was opened by names another one.
func runIn(ctx context.Context, namespace *os.File, ticker clock.Ticker, run func(context.Context, *os.File) error) (
	moved bool, err error) {
	here, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- run(here, namespace) }()
	for {
		select {
		case err := <-ended:
			return false, err
		case <-ticker.C():
		}
		if another(namespace) {
			cancel()
			err := <-ended
			return err == nil && ctx.Err() == nil, err
		}
	}
}

// another reports whether the file's path names another file than the open one. One that is missing may be about to be
// made anew; until then the open one counts.
func another(namespace *os.File) bool {
	now, err := os.Stat(namespace.Name())
	if err != nil {
		return false
	}
	was, err := namespace.Stat()
	return err == nil && !os.SameFile(was, now)
}
