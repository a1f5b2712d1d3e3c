package audit

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

const (
	// longestAuditLine is how long a line of an audit log may be to be read: two bodies of the largest size, and more.
	longestAuditLine = 32 << 20
	// auditPoll is how often a log is looked at that is followed.
	auditPoll = 200 * time.Millisecond
	// rotatedTime is in the names of files that were rotated: audit-2026-11-24T13-50-01.123.log, by kube-apiserver as
	// well.
	rotatedTime = "2006-01-02T15-04-05.000"
)

// auditLog reads the lines of an audit log and of the files that were rotated beside it, from the oldest on.
type auditLog struct {
	path  string
	since time.Time // files that ended before need not be read
	line  func([]byte) error
	idle  func() error // called when there is no more for now

	file    *os.File // the current one
	begun   []byte   // of a line whose end is not written yet
	skips   bool     // a line that is too long is being skipped
	tooLong int      // how many there were
	known   map[time.Time]bool
}

// rotated is a file that was rotated.
type rotated struct {
	at   time.Time
	path string
}

// rotatedFiles lists the files beside the log that are not known yet, from the oldest on.
func (l *auditLog) rotatedFiles() ([]rotated, error) {
	ext := filepath.Ext(l.path)
	prefix := strings.TrimSuffix(filepath.Base(l.path), ext) + "-"
	entries, err := os.ReadDir(filepath.Dir(l.path))
	if err != nil {
		return nil, err
	}
	found := map[time.Time]string{}
	for _, entry := range entries {
		stamp, ours := strings.CutPrefix(entry.Name(), prefix)
		stamp, whole := strings.CutSuffix(strings.TrimSuffix(stamp, ".gz"), ext)
		at, err := time.Parse(rotatedTime, stamp)
		if !ours || !whole || err != nil || l.known[at] {
			continue
		}
		found[at] = filepath.Join(filepath.Dir(l.path), prefix+stamp+ext)
	}
	list := make([]rotated, 0, len(found))
	for at, path := range found {
		list = append(list, rotated{at, path})
	}
	slices.SortFunc(list, func(a, b rotated) int { return a.at.Compare(b.at) })
	return list, nil
}

// open opens the log, and lists what was rotated before it.
func (l *auditLog) open() (*os.File, []rotated, error) {
	for {
		file, err := os.Open(l.path)
		if err != nil {
			return nil, nil, err
		}
		list, err := l.rotatedFiles()
		if err != nil {
			_ = file.Close()
			return nil, nil, err
		}
		ours, err := file.Stat()
		if err == nil {
			var now fs.FileInfo
			if now, err = os.Stat(l.path); err == nil && os.SameFile(ours, now) {
				return file, list, nil
			}
		}
		_ = file.Close() // it was rotated meanwhile, and may be in the list
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, nil, err
		}
	}
}

// readAll reads everything, and goes on with what is added if it is to follow the log.
func (l *auditLog) readAll(ctx context.Context, follow bool) error {
	l.known = map[time.Time]bool{}
	current, old, err := l.open()
	if err != nil {
		return err
	}
	l.file = current
	for _, r := range old {
		l.known[r.at] = true
		if r.at.Before(l.since) {
			continue
		}
		if err := l.readRotated(ctx, r); err != nil {
			return err
		}
	}
	if err := l.read(ctx, l.file); err != nil || !follow {
		return err
	}
	ticker := time.NewTicker(auditPoll)
	defer ticker.Stop()
	for {
		if err := l.idle(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		if err := l.more(ctx); err != nil {
			return err
		}
	}
}

// more reads what was added. Where the log was rotated, that is the rest of the file that is open, then those that were
// rotated after it, then the new one.
func (l *auditLog) more(ctx context.Context) error {
	now, err := os.Stat(l.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	ours, statErr := l.file.Stat()
	if statErr != nil {
		return statErr
	}
	if err := l.continueLine(ctx, l.file); err != nil || now == nil || os.SameFile(now, ours) {
		return err
	}
	l.endLine()
	next, added, err := l.open()
	if errors.Is(err, fs.ErrNotExist) {
		return nil // between two names
	}
	if err != nil {
		return err
	}
	for i, r := range added {
		l.known[r.at] = true
		if i > 0 && err == nil { // the first is the one that was open
			err = l.readRotated(ctx, r)
		}
	}
	_ = l.file.Close() // it was only read
	l.file = next
	if err != nil {
		return err
	}
	return l.continueLine(ctx, l.file)
}

// readRotated reads an old file, which may be compressed or deleted at any moment.
func (l *auditLog) readRotated(ctx context.Context, r rotated) error {
	file, err := os.Open(r.path)
	if err == nil {
		defer file.Close()
		return l.read(ctx, file)
	}
	if file, err = os.Open(r.path + ".gz"); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	plain, err := gzip.NewReader(file)
	if err != nil {
		return err
	}
	return l.read(ctx, plain)
}

// read reads lines to the end, the last one even if it has no end.
func (l *auditLog) read(ctx context.Context, from io.Reader) error {
	if err := l.continueLine(ctx, from); err != nil {
		return err
	}
	if l.file == from { // its last line may be in the middle of being written
		return nil
	}
	rest := l.begun
	l.endLine()
	if len(rest) == 0 {
		return nil
	}
	return l.line(rest)
}

// endLine forgets a line that will have no end.
func (l *auditLog) endLine() { l.begun, l.skips = nil, false }

// continueLine reads whole lines. The beginning of another one is kept.
func (l *auditLog) continueLine(ctx context.Context, from io.Reader) error {
	reader := bufio.NewReaderSize(from, 64<<10)
	for ctx.Err() == nil {
		part, err := reader.ReadSlice('\n')
		whole := err == nil
		if !l.skips {
			l.begun = append(l.begun, part...)
		}
		if len(l.begun) > longestAuditLine {
			l.begun, l.skips = nil, true
			l.tooLong++
		}
		if whole {
			line := bytes.TrimSpace(l.begun)
			l.begun, l.skips = l.begun[:0], false
			if len(line) > 0 {
				if err := l.line(line); err != nil {
					return err
				}
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return err
		}
	}
	return nil
}

func (l *auditLog) close() {
	if l.file != nil {
		_ = l.file.Close() // it was only read
	}
}
