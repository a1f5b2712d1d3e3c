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
	// longestAuditLine limits a line of the log. An event contains at most two bodies of 3 MiB. Longer lines are
	// skipped.
	longestAuditLine = 32 << 20
	// auditPoll is the time between two reads of a log that is followed.
	auditPoll = 200 * time.Millisecond
	// rotatedTime is the format of the time in the names of rotated files: audit-2026-11-24T13-50-01.123.log.
	// kube-apiserver uses the same.
	rotatedTime = "2006-01-02T15-04-05.000"
)

// auditLog reads the lines of an audit log and of the rotated files beside it, the oldest first.
type auditLog struct {
	path  string
	since time.Time // files that were rotated before are not read
	line  func([]byte) error
	idle  func() error // called when there is no more for now

	file    *os.File           // the current one
	partial []byte             // the beginning of a line whose end is not written yet
	skips   bool               // the current line is too long: skip to its end
	tooLong int                // the number of lines that were too long
	seen    map[time.Time]bool // the rotated files so far, by the time in their names
}

// rotated is a file that was rotated.
type rotated struct {
	time time.Time
	path string
}

// rotatedFiles lists the rotated files that are not in seen, the oldest first.
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
		rotation, err := time.Parse(rotatedTime, stamp)
		if !ours || !whole || err != nil || l.seen[rotation] {
			continue
		}
		found[rotation] = filepath.Join(filepath.Dir(l.path), prefix+stamp+ext)
	}
	list := make([]rotated, 0, len(found))
	for rotation, path := range found {
		list = append(list, rotated{rotation, path})
	}
	slices.SortFunc(list, func(a, b rotated) int { return a.time.Compare(b.time) })
	return list, nil
}

// open opens the log and lists the files that were rotated before it. It starts again if the log is rotated meanwhile.
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
		_ = file.Close() // it was rotated meanwhile: the list may contain it
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, nil, err
		}
	}
}

// readAll reads the rotated files and the log. If it follows the log, it goes on with added lines until ctx ends.
func (l *auditLog) readAll(ctx context.Context, follow bool) error {
	l.seen = map[time.Time]bool{}
	current, old, err := l.open()
	if err != nil {
		return err
	}
	l.file = current
	for _, r := range old {
		l.seen[r.time] = true
		if r.time.Before(l.since) {
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

// more reads the added lines. If the log was rotated, they are in the rest of the open file, the files that were
// rotated after it, and the new file, in this order.
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
		return nil // the log is renamed, and the new file does not exist yet
	}
	if err != nil {
		return err
	}
	for i, r := range added {
		l.seen[r.time] = true
		if i > 0 && err == nil { // the first is the open file, which was read above
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

// readRotated reads a rotated file. The server may compress or delete it at any moment.
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

// read reads all lines. A last line without a newline counts, except in the log itself.
func (l *auditLog) read(ctx context.Context, from io.Reader) error {
	if err := l.continueLine(ctx, from); err != nil {
		return err
	}
	if l.file == from { // its last line may be incomplete
		return nil
	}
	rest := l.partial
	l.endLine()
	if len(rest) == 0 {
		return nil
	}
	return l.line(rest)
}

// endLine drops an incomplete line.
func (l *auditLog) endLine() { l.partial, l.skips = nil, false }

// continueLine reads whole lines, and keeps the beginning of the next one.
func (l *auditLog) continueLine(ctx context.Context, from io.Reader) error {
	reader := bufio.NewReaderSize(from, 64<<10)
	for ctx.Err() == nil {
		part, err := reader.ReadSlice('\n')
		whole := err == nil
		if !l.skips {
			l.partial = append(l.partial, part...)
		}
		if len(l.partial) > longestAuditLine {
			l.partial, l.skips = nil, true
			l.tooLong++
		}
		if whole {
			line := bytes.TrimSpace(l.partial)
			l.partial, l.skips = l.partial[:0], false
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
