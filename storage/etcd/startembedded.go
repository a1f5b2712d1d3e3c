package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"syscall"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"github.com/coxswain-dev/coxswain/storage"
)

const (
	// lockPatience is how long to wait while another process, such as a tool that reads the files,
	// holds their lock.
	lockPatience = 10 * time.Second
	lockLook     = 20 * time.Millisecond
	// leaderPatience is how long a lone member, which elects itself within five ticks, may be without a
	// leader.
	leaderPatience = 30 * time.Second
	// stopPatience is how long to wait for an etcd to stop when its start is given up.
	stopPatience = 2 * time.Second
)

// awaitLock waits until the lock of a database is free. etcd would wait forever, and could not be
// interrupted.
func awaitLock(ctx context.Context, path string, patience time.Duration) error {
	if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() {
		return nil // none, or none that etcd could open
	}
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	deadline := time.Now().Add(patience)
	for {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return err
		}
		inUse := func(why error) error {
			return fmt.Errorf("%s is locked by another process%s: %w", path, LockHolder(path), why)
		}
		if time.Now().After(deadline) {
			return inUse(fmt.Errorf("waited for %s", patience))
		}
		select {
		case <-ctx.Done():
			return inUse(ctx.Err())
		case <-time.After(lockLook):
		}
	}
}

// roomToStart returns an error if the disk has no room for the whole log that a new etcd allocates when it starts.
func roomToStart(dir string) error {
	if _, err := os.Stat(filepath.Join(dir, "member", "wal")); err == nil {
		return nil
	}
	if free, err := diskOf(dir).free(); err == nil && free < 2*walSegment {
		return fmt.Errorf("%w: the disk is full: %d MiB are free, and a new etcd needs %d MiB",
			storage.ErrNoSpace, free>>20, diskReserve>>20)
	}
	return nil
}

// openEtcd starts etcd and waits until it serves. If etcd fails or ctx ends, it returns the error at once, or after a
// short wait for etcd's goroutines.
func openEtcd(ctx context.Context, c *embed.Config, log *slog.Logger) (*embed.Etcd, error) {
	hook := newGiveUp()
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(etcdLogger(log, zap.WithPanicHook(hook), zap.WithFatalHook(hook)))
	var server *embed.Etcd
	var err error
	opened := make(chan struct{})
	go func() {
		defer close(opened)
		defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
		defer func() {
			if p := recover(); p != nil {
				err = startError(fmt.Errorf("etcd cannot read its files: %v", p))
			}
		}()
		server, err = embed.StartEtcd(c)
	}()
	ready := func() error {
		select {
		case <-opened:
			if err != nil {
				return startError(err)
			}
		case err := <-hook.reason:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
		if server == nil { // it failed in the goroutine that started it
			return <-hook.reason
		}
		return awaitReady(ctx, server, hook)
	}
	if err := ready(); err != nil {
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			if <-opened; server != nil {
				server.Close()
			}
		}()
		select {
		case <-closed:
		case <-time.After(stopPatience): // one of its goroutines is gone or waits forever
		}
		return nil, err
	}
	hook.started.Store(true)
	return server, nil
}

func awaitReady(ctx context.Context, server *embed.Etcd, hook *giveUp) error {
	look := time.NewTicker(leaderPatience)
	defer look.Stop()
	for {
		select {
		case <-server.Server.ReadyNotify():
			return nil
		case err := <-hook.reason:
			return err
		case err := <-server.Err():
			return err
		case <-server.Server.StopNotify():
			return errors.New("etcd stopped while it started")
		case <-ctx.Done():
			return ctx.Err()
		case <-look.C:
			if server.Server.Leader() == 0 {
				return startError(fmt.Errorf("etcd elected no leader within %s", leaderPatience))
			}
		}
	}
}
