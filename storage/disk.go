package storage

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// etcd ends the process when its disk is full, for it cannot know what it has written then.
// The embedded etcd therefore stops taking documents while there is still room for what it
// writes by itself: two segments of its log, and the pages that deletions and compactions
// need before they free any.
const diskReserve = 3 * walSegment

var errDiskFull = fmt.Errorf("%w: the disk has less than %d MiB left", ErrNoSpace, diskReserve>>20)

// disk is the one that an embedded etcd writes to; nil is one that never gets full.
type disk struct {
	free func() (uint64, error) // in bytes
	// database is etcd's file, for which blocks are kept; "" where none are.
	database string

	mu   sync.Mutex
	file uint64 // the inode for which kept holds: defragmentation makes a new file
	kept int64  // up to where the database has blocks of its own

	written atomic.Int64 // transactions

	opened time.Time
	// roomUntil is up to when, in nanoseconds after opened, it need not be asked again.
	roomUntil atomic.Int64
}

// lookEvery is how often it is asked what is free: to ask for every commit takes two system calls of each. The
// reserve is more than anybody writes in that time.
const lookEvery = 50 * time.Millisecond

// databaseFile is where etcd's database is in its directory.
const databaseFile = "/member/snap/db"

func diskOf(dir string) *disk {
	return &disk{
		opened: time.Now(),
		free: func() (uint64, error) {
			var s syscall.Statfs_t
			if err := syscall.Statfs(dir, &s); err != nil {
				return 0, err
			}
			return uint64(s.Bavail) * uint64(s.Bsize), nil
		},
		database: filepath.Join(dir, filepath.FromSlash(databaseFile)),
	}
}

// growth is how much the database may grow before blocks for more are kept: bbolt's step.
const growth = 16 << 20

// letGoEvery is after how many transactions the database's pages are let go. Each compares the revision
// of what it replaces, for which etcd reads that, and the kernel maps what is around it: 64 KiB.
const letGoEvery = 256

// keep sees to it that what etcd has promised to write to its database finds blocks there,
// even if someone else takes the rest of the disk in a moment: bbolt makes the file
// longer ahead of time, but leaves it full of holes.
func (d *disk) keep() error {
	if d.database == "" {
		return nil
	}
	info, err := os.Stat(d.database)
	if err != nil {
		return nil // it is being replaced; the next write looks again
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if stat, ok := info.Sys().(*syscall.Stat_t); ok && stat.Ino != d.file {
		d.file, d.kept = stat.Ino, 0
		unmap(d.file) // etcd has read it when it opened it
	}
	if info.Size() <= d.kept-growth/2 {
		return nil
	}
	err = allocate(d.database, info.Size()+growth)
	if errors.Is(err, syscall.ENOSPC) {
		return errDiskFull
	}
	// A file system that cannot keep blocks is not asked again before the file has grown.
	d.kept = info.Size() + growth
	return nil
}

// wrote says that a transaction was committed.
func (d *disk) wrote() {
	if d != nil && d.written.Add(1)%letGoEvery == 0 {
		d.letGo()
	}
}

// letGo lets go of the pages that were read.
func (d *disk) letGo() {
	if d == nil {
		return
	}
	d.mu.Lock()
	file := d.file
	d.mu.Unlock()
	unmap(file)
}

// full is errDiskFull when documents must be refused. A disk that does not tell is taken to
// have room.
func (d *disk) full() error {
	if d == nil {
		return nil
	}
	now := time.Since(d.opened)
	if int64(now) < d.roomUntil.Load() {
		return nil
	}
	if free, err := d.free(); err == nil && free < diskReserve {
		return errDiskFull
	}
	if err := d.keep(); err != nil {
		return err
	}
	d.roomUntil.Store(int64(now + lookEvery))
	return nil
}
