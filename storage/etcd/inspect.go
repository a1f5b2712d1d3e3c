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

// Damaged files make etcd panic in goroutines without recovery, wait for a leader forever, or continue without writes
// that it has acknowledged. Therefore the files of the embedded etcd are inspected before it starts: the structure of
// its database, page by page, and the checksums of its log. Both take less work than etcd's own start.

// ErrDamaged means that the files of an embedded etcd differ from those that etcd has written. A snapshot must be
// restored, into another folder or in their place.
var ErrDamaged = errors.New("etcd's data is damaged: restore a snapshot")

func damagedf(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrDamaged, fmt.Errorf(format, args...))
}

// inspect checks the data directory of an etcd that is not running. An error other than ErrDamaged means that the files
// cannot be read or written.
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
		return nil // etcd will create a new database
	}
	if err != nil {
		return err
	}
	defer file.Close()
	state, err := inspectDatabase(file)
	if err != nil {
		return fmt.Errorf("%w: %s: %w", ErrDamaged, database, err)
	}
	if len(logs) == 0 {
		if state.index > 0 { // a restored database has index 0 and no log yet
			return damagedf("%s is missing or has no log", logDir)
		}
		return nil
	}
	log, err := inspectLog(logs, state.index)
	if err != nil {
		return err
	}
	if err := log.agreesWith(state); err != nil {
		return fmt.Errorf("%w: %s and %s: %w", ErrDamaged, logDir, database, err)
	}
	return nil
}

// openRegular opens a regular file for reading and writing, as etcd will.
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

// logState describes etcd's log. Entries are identified by their index.
type logState struct {
	metadata    bool     // the log has its first record
	member      uint64   // the member that has written the log
	first, last uint64   // the first and last entry
	commit      uint64   // the last committed entry
	snapshots   []uint64 // the entries of snapshots, which the database contains
	snapshot    uint64   // the last committed snapshot, from which etcd continues
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
func (s *logState) agreesWith(database *databaseState) error {
	switch last := max(s.last, s.snapshot); {
	case !s.metadata:
		return errors.New("the log has no beginning")
	case database.index < s.snapshot:
		return fmt.Errorf("the database ends at entry %d, before the log's snapshot of entry %d",
			database.index, s.snapshot)
	case database.index > last:
		return fmt.Errorf("the log ends at entry %d, and the database has entry %d", last, database.index)
	case s.first > s.snapshot+1:
		return fmt.Errorf("the log begins with entry %d, after its snapshot of entry %d", s.first, s.snapshot)
	case s.indexTerm != 0 && database.term != 0 && s.indexTerm != database.term:
		return fmt.Errorf("they differ in entry %d: one of them is of another etcd", database.index)
	case database.index > 0 && len(database.members) != 1:
		return fmt.Errorf("they are of a cluster of %d members, and an embedded etcd is alone", len(database.members))
	case database.index > 0 && database.members[0] != s.member:
		return fmt.Errorf("they are of another etcd: the log is of the member %x, the database of %x", s.member,
			database.members[0])
	}
	return nil
}
