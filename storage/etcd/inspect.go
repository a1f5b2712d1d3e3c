package etcd

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// Damage in its files makes etcd panic in goroutines whose panics cannot be recovered, wait for a
// leader forever, or go on without writes that it has acknowledged. The embedded etcd's files are
// therefore inspected before it is started: the structure of its database, page by page, and the
// checksums of its log. Both take less work than etcd's own start.

// ErrDamaged: the files of an embedded etcd are not what it has written. A snapshot has to be restored, into
// a folder of its own or in their place.
var ErrDamaged = errors.New("etcd's data is damaged: restore a snapshot")

func damagedf(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrDamaged, fmt.Errorf(format, args...))
}

// inspect checks the data directory of an etcd that does not run. An error other than ErrDamaged means
// that the files cannot be read or written.
func inspect(dir string) error {
	member := filepath.Join(dir, "member")
	logDir, snapDir := filepath.Join(member, "wal"), filepath.Join(member, "snap")
	for _, folder := range []string{member, logDir, snapDir} {
		if info, err := os.Stat(folder); err == nil && !info.IsDir() {
			return damagedf("%s is not a folder", folder)
		}
	}
	logs, err := filepath.Glob(filepath.Join(logDir, "*.wal"))
	if err != nil {
		return err
	}
	database := filepath.Join(snapDir, "db")
	file, err := openRegular(database)
	if errors.Is(err, fs.ErrNotExist) {
		if len(logs) > 0 {
			return damagedf("%s is missing", database)
		}
		return nil // a new one
	}
	if err != nil {
		return err
	}
	defer file.Close()
	held, err := inspectDatabase(file)
	if err != nil {
		return fmt.Errorf("%w: %s: %w", ErrDamaged, database, err)
	}
	if len(logs) == 0 {
		if held.index > 0 { // a restored one has applied nothing yet
			return damagedf("%s is missing or has no log", logDir)
		}
		return nil
	}
	log, err := inspectLog(logs, held.index)
	if err != nil {
		return err
	}
	if err := log.agreesWith(held); err != nil {
		return fmt.Errorf("%w: %s and %s: %w", ErrDamaged, logDir, database, err)
	}
	return nil
}

// openRegular opens a file as etcd will, for reading and writing.
func openRegular(path string) (*os.File, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, damagedf("%s is not a regular file (%s)", path, info.Mode())
	}
	return os.OpenFile(path, os.O_RDWR, 0)
}

// logState is the state that etcd's log describes. Entries are identified by their index.
type logState struct {
	metadata    bool     // it has a beginning
	member      uint64   // whose log it is
	first, last uint64   // entries
	commit      uint64   // up to which they are decided
	snapshots   []uint64 // entries at which the database was complete
	snapshot    uint64   // the last of them that is decided, from which etcd goes on
	index       uint64   // the last entry that the database has
	indexTerm   uint64   // its term
}

// inspectLog reads the log once, from its first file to its last.
func inspectLog(files []string, index uint64) (*logState, error) {
	slices.Sort(files)
	readers := make([]fileutil.FileReader, len(files))
	for i, path := range files {
		file, err := openRegular(path)
		if errors.Is(err, fs.ErrNotExist) { // a link to nowhere
			return nil, damagedf("%w", err)
		}
		if err != nil {
			return nil, err
		}
		defer file.Close()
		readers[i] = fileutil.NewFileReader(file)
	}
	state := &logState{index: index}
	decoder, record := wal.NewDecoder(readers...), &walpb.Record{}
	err := decoder.Decode(record)
	for ; err == nil; err = decoder.Decode(record) {
		if record.GetType() == wal.CrcType {
			// The first file's predecessor may be gone.
			if crc := decoder.LastCRC(); crc != 0 && record.Validate(crc) != nil {
				return nil, damagedf("%s: a file is missing or its checksum is wrong", filepath.Dir(files[0]))
			}
			decoder.UpdateCRC(record.GetCrc())
		} else if err := state.take(record); err != nil {
			return nil, damagedf("%s: %w", filepath.Dir(files[0]), err)
		}
	}
	// After a power cut it may end within a record, which etcd cuts off.
	if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, damagedf("%s: %w", filepath.Dir(files[0]), err)
	}
	for _, snapshot := range state.snapshots {
		if snapshot <= state.commit {
			state.snapshot = snapshot
		}
	}
	return state, nil
}

func (s *logState) take(record *walpb.Record) error {
	switch record.GetType() {
	case wal.MetadataType:
		var metadata etcdserverpb.Metadata
		if err := proto.Unmarshal(record.Data, &metadata); err != nil {
			return err
		}
		s.metadata, s.member = true, metadata.GetNodeID()
	case wal.StateType:
		var state raftpb.HardState
		if err := proto.Unmarshal(record.Data, &state); err != nil {
			return err
		}
		s.commit = state.GetCommit()
	case wal.SnapshotType:
		var snapshot walpb.Snapshot
		if err := proto.Unmarshal(record.Data, &snapshot); err != nil {
			return err
		}
		s.snapshots = append(s.snapshots, snapshot.GetIndex())
	case wal.EntryType:
		var entry raftpb.Entry
		if err := proto.Unmarshal(record.Data, &entry); err != nil {
			return err
		}
		if s.last != 0 && entry.GetIndex() > s.last+1 {
			return fmt.Errorf("after entry %d comes entry %d", s.last, entry.GetIndex())
		}
		s.first, s.last = cmp.Or(s.first, entry.GetIndex()), entry.GetIndex()
		if s.last == s.index {
			s.indexTerm = entry.GetTerm()
		}
	}
	return nil
}

// agreesWith returns an error if etcd could not continue from the state of the database.
func (s *logState) agreesWith(held *databaseState) error {
	switch last := max(s.last, s.snapshot); {
	case !s.metadata:
		return errors.New("the log has no beginning")
	case held.index < s.snapshot:
		return fmt.Errorf("the database ends at entry %d, before the log's snapshot of entry %d",
			held.index, s.snapshot)
	case held.index > last:
		return fmt.Errorf("the log ends at entry %d, and the database has entry %d", last, held.index)
	case s.first > s.snapshot+1:
		return fmt.Errorf("the log begins with entry %d, after its snapshot of entry %d", s.first, s.snapshot)
	case s.indexTerm != 0 && held.term != 0 && s.indexTerm != held.term:
		return fmt.Errorf("they differ in entry %d: one of them is of another etcd", held.index)
	case held.index > 0 && len(held.members) != 1:
		return fmt.Errorf("they are of a cluster of %d members, and an embedded etcd is alone", len(held.members))
	case held.index > 0 && held.members[0] != s.member:
		return fmt.Errorf("they are of another etcd: the log is of the member %x, the database of %x", s.member,
			held.members[0])
	}
	return nil
}
