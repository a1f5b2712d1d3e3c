package etcd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/coxswain-dev/coxswain/storage"
)

// etcd exits the process when its disk is full, because it then cannot know which writes succeeded. The
// embedded etcd therefore rejects documents while there is still room for its own writes: two segments
// of its log, and the pages that deletions and compactions need before they free any.
const diskReserve = 3 * walSegment

// endingReserve is the number of bytes of documents of ending objects that are accepted while the disk is full. etcd's
// log has always allocated a whole segment ahead. The other half of the segment is for deletions.
const endingReserve = walSegment / 2

// writeOverhead is the space of a document in etcd's log, in addition to its bytes and three times its key.
const writeOverhead = 256

var errDiskFull = fmt.Errorf("%w: the disk has less than %d MiB left", storage.ErrNoSpace, diskReserve>>20)

// disk is the disk of an embedded etcd. A nil disk is never full.
type disk struct {
	free func() (uint64, error) // in bytes
	// database is the database file of etcd, for reserving blocks; "" if no blocks are reserved.
	database string

	mu   sync.Mutex
	file uint64 // the inode that allocated is about: defragmentation creates a new file
	// allocated is the part of the database file that has blocks, in bytes from its start.
	allocated int64
	// reserved is the size of the file reserve. Its blocks are freed when no other blocks are free.
	reserved int64
	reserve  string // immutable; "" if there is no reserve

	written atomic.Int64 // number of transactions
	// ending is the number of bytes of documents of ending objects that were written since the disk became full.
	ending atomic.Int64

	opened time.Time
	// roomUntil is the time, in nanoseconds after opened, until which free need not be called again.
	roomUntil atomic.Int64
}

// lookEvery is the interval between two reads of the free space: reading it for every commit would cost two system
// calls each time. The reserve is more than can be written in that time.
const lookEvery = 50 * time.Millisecond

// databaseFile is the path of etcd's database within its directory.
const databaseFile = "/member/snap/db"

func diskOf(dir string) *disk {
	d := &disk{
		opened: time.Now(),
		free: func() (uint64, error) {
			var s syscall.Statfs_t
			if err := syscall.Statfs(dir, &s); err != nil {
				return 0, err
			}
			return uint64(s.Bavail) * uint64(s.Bsize), nil
		},
		database: filepath.Join(dir, filepath.FromSlash(databaseFile)),
		reserve:  filepath.Join(dir, filepath.FromSlash(reserveFile)),
	}
	if info, err := os.Stat(d.reserve); err == nil {
		d.reserved = info.Size()
	}
	return d
}

// After every thousand writes etcd saves a snapshot of a few kilobytes in a new file, and exits if it cannot. If
// another program has filled the disk to the last byte, a piece of the reserve is freed for the snapshot.
const (
	reserveFile  = "/member/reserve"
	reserveSize  = 1 << 20
	reservePiece = 64 << 10
)

// fillReserve allocates the reserve, or its missing pieces.
func (d *disk) fillReserve() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.reserve == "" || d.reserved == reserveSize {
		return
	}
	d.reserved = reserveSize // a file system that cannot allocate blocks is not asked again
	f, err := os.OpenFile(d.reserve, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return
	}
	defer f.Close()
	if allocate(d.reserve, reserveSize) == nil {
		_ = f.Truncate(reserveSize) // as long as its blocks: a shorter file frees some
	}
}

// shortenReserve frees a piece of the reserve.
func (d *disk) shortenReserve() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.reserve == "" || d.reserved == 0 {
		return
	}
	d.reserved -= reservePiece
	_ = os.Truncate(d.reserve, d.reserved) // if it is not there, no block can be freed
}

// growth is the step of reserving blocks: the step of bbolt when it extends the file.
const growth = 16 << 20

// unmapEvery is the number of transactions between two releases of the database's pages. Each transaction compares the
// revision of the key that it replaces. etcd reads that key, and the kernel maps 64 KiB around it.
const unmapEvery = 256

// allocate reserves the blocks that etcd will need for the writes that it has acknowledged. They are safe even if
// another process fills the rest of the disk at once. bbolt extends the file ahead of time, but leaves holes in it.
func (d *disk) allocate() error {
	if d.database == "" {
		return nil
	}
	info, err := os.Stat(d.database)
	if err != nil {
		return nil // the file is being replaced; the next write retries
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if stat, ok := info.Sys().(*syscall.Stat_t); ok && stat.Ino != d.file {
		d.file, d.allocated = stat.Ino, 0
		unmap(d.file) // etcd has read the whole file when it opened it
	}
	if info.Size() <= d.allocated-growth/2 {
		return nil
	}
	err = allocate(d.database, info.Size()+growth)
	if errors.Is(err, syscall.ENOSPC) {
		return errDiskFull
	}
	// If the file system cannot allocate blocks, the next attempt is after the file has grown.
	d.allocated = info.Size() + growth
	return nil
}

// wrote counts a transaction that was committed.
func (d *disk) wrote() {
	if d != nil && d.written.Add(1)%unmapEvery == 0 {
		d.unmapDatabase()
	}
}

// unmapDatabase releases the pages of the database that were read.
func (d *disk) unmapDatabase() {
	if d == nil {
		return
	}
	d.mu.Lock()
	file := d.file
	d.mu.Unlock()
	unmap(file)
}

// full returns errDiskFull when documents must be rejected. A disk with unreadable free space is
// assumed to have room.
func (d *disk) full() error {
	if d == nil {
		return nil
	}
	now := time.Since(d.opened)
	if int64(now) < d.roomUntil.Load() {
		return nil
	}
	if free, err := d.free(); err == nil && free < diskReserve {
		if free < reservePiece {
			d.shortenReserve()
		}
		return errDiskFull
	}
	d.fillReserve()
	if err := d.allocate(); err != nil {
		return err
	}
	d.ending.Store(0)
	d.roomUntil.Store(int64(now + lookEvery))
	return nil
}

// admit returns errDiskFull for a transaction that the disk has no room for. Deletions are always admitted.
// The documents of ending objects are admitted up to endingReserve.
func (d *disk) admit(writes []storage.Write) error {
	if d == nil {
		return nil
	}
	err := d.full()
	if err == nil {
		return nil
	}
	size, ending := int64(0), false
	for _, w := range writes {
		if w.Op == storage.Create || w.Op == storage.Update {
			size += int64(len(w.Value) + 3*len(w.Key.String()) + writeOverhead)
			ending = ending || w.Ending
		}
	}
	switch {
	case size == 0:
		return nil
	case !ending:
		return err
	case d.ending.Add(size) > endingReserve:
		d.ending.Add(-size)
		return err
	}
	return nil
}

// roomToCopy returns an error if the disk has no room for a copy of so many bytes beside etcd's log.
func (d *disk) roomToCopy(size int64) error {
	if d == nil {
		return nil
	}
	if free, err := d.free(); err == nil && free < uint64(size)+walSegment {
		return fmt.Errorf("%w: a copy of %d MiB does not fit into %d MiB", storage.ErrNoSpace, size>>20, free>>20)
	}
	return nil
}
