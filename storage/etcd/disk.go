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

// etcd exits the process when its disk is full, because it cannot know what was written then. The
// embedded etcd therefore rejects documents while there is still room for its own writes: two segments
// of its log, and the pages that deletions and compactions need before they free any.
const diskReserve = 3 * walSegment

// endingReserve is how many bytes of documents of ending objects are written while the disk is full. etcd's
// log has always allocated a whole segment ahead. Deletions have the other half of it.
const endingReserve = walSegment / 2

// writeOverhead is the space of a document in etcd's log beside its bytes and three times its key.
const writeOverhead = 256

var errDiskFull = fmt.Errorf("%w: the disk has less than %d MiB left", storage.ErrNoSpace, diskReserve>>20)

// disk is the disk that an embedded etcd writes to. A nil disk never gets full.
type disk struct {
	free func() (uint64, error) // in bytes
	// database is the file of etcd's for which blocks are reserved; "" if none are.
	database string

	mu   sync.Mutex
	file uint64 // the inode for which kept holds: defragmentation makes a new file
	kept int64  // up to where the database has blocks of its own
	// reserved is the size of the file reserve, whose blocks are for the time when no others are free.
	reserved int64
	reserve  string // never changes; "" if there is none

	written atomic.Int64 // transactions
	// ending counts bytes of documents of ending objects that were written since the disk is full.
	ending atomic.Int64

	opened time.Time
	// roomUntil is the time, in nanoseconds after opened, until which free need not be called again.
	roomUntil atomic.Int64
}

// lookEvery is how often the free space is read: reading it for every commit would cost two system
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

// Every thousand writes etcd saves a snapshot of a few kilobytes in a new file, and exits if it cannot. A disk that
// another program has filled to the last byte gets a piece of the reserve back for it.
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

// growth is how much the database may grow before more blocks are reserved: bbolt's step.
const growth = 16 << 20

// letGoEvery is the number of transactions after which the database's pages are released. Each of them
// compares the revision of the key that it replaces; etcd reads that key, and the kernel maps 64 KiB
// around it.
const letGoEvery = 256

// keep reserves the blocks that etcd will need for the writes it has acknowledged, even if another
// process fills the rest of the disk at once: bbolt extends the file ahead of time, but leaves it full
// of holes.
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

// wrote counts a transaction that was committed.
func (d *disk) wrote() {
	if d != nil && d.written.Add(1)%letGoEvery == 0 {
		d.letGo()
	}
}

// letGo releases the pages of the database that were read.
func (d *disk) letGo() {
	if d == nil {
		return
	}
	d.mu.Lock()
	file := d.file
	d.mu.Unlock()
	unmap(file)
}

// full returns errDiskFull when documents must be rejected. A disk whose free space cannot be read is
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
	if err := d.keep(); err != nil {
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
