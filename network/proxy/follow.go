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

// look is the interval between Follow's checks of its file.
const look = 500 * time.Millisecond

// Follow calls run with the network namespace that a file refers to, until ctx ends or run returns by itself. It waits
// until the file exists. When the file refers to another namespace, for example because a restarted node agent created
// a new one, Follow cancels run's context, waits for run to return, and calls it with the new namespace. It returns the
// error of run.
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
			return fmt.Errorf("open network namespace: %w", err)
		}
		moved, err := runIn(ctx, namespace, ticker, run)
		_ = namespace.Close()
		if !moved {
			return err
		}
	}
}

// runIn calls run until the path of the namespace's file refers to another file. moved reports that this ended run.
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
		if fileReplaced(namespace) {
			cancel()
			err := <-ended
			return err == nil && ctx.Err() == nil, err
		}
	}
}

// fileReplaced reports whether the file's path refers to another file than the open one. A missing file may be about to
// be recreated; until then the open one counts.
func fileReplaced(namespace *os.File) bool {
	current, err := os.Stat(namespace.Name())
	if err != nil {
		return false
	}
	opened, err := namespace.Stat()
	return err == nil && !os.SameFile(opened, current)
}
