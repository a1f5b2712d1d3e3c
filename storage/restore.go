package storage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Save passes every document at one revision to f, in the order of paths, and returns the revision. The documents are
// as the backend stores them, perhaps encrypted, with what is left of their times to live.
func (s *Store) Save(ctx context.Context, f func(KV) error) (int64, error) {
	r := RangeRequest{Limit: openPage, Stored: true}
	for {
		page, err := s.backend.Range(ctx, r)
		if err != nil {
			return 0, fmt.Errorf("storage: save: %w", err)
		}
		if r.Revision == 0 {
			r.Revision = page.Revision
		}
		for _, kv := range page.KVs {
			if err := f(kv); err != nil {
				return 0, err
			}
		}
		if !page.More || len(page.KVs) == 0 {
			return r.Revision, nil
		}
		r.Start = page.KVs[len(page.KVs)-1].Path + "\x00"
	}
}

// RestoreRequest has the documents that a store is to have.
type RestoreRequest struct {
	// Documents are decrypted and in the order of paths, as Save returns them.
	Documents []KV
	// Ignore reports whether the document at a path stays as it is, whether it exists or not. nil is none.
	Ignore func(path string) bool
	// KeepPresent reports whether the document at a path stays as it is if it exists. nil is none.
	KeepPresent func(path string) bool
}

// Restore makes the store's documents those of the request, and returns when memory has them. It writes the differences
// in one transaction: to watchers, they are ordinary events of one new revision. A document that was deleted and
// created again since is another object: watchers see its deletion first. A document with a time to live that still
// exists keeps its own. Other writers of this process wait until the transaction is complete.
func (s *Store) Restore(ctx context.Context, r RestoreRequest) (int64, error) {
	revision, err := s.replace(ctx, r)
	if err == nil {
		err = s.await(ctx, revision, answerTimeout, ErrUnavailable)
	}
	if err != nil {
		return 0, fmt.Errorf("storage: restore: %w", err)
	}
	return revision, nil
}

func (s *Store) replace(ctx context.Context, r RestoreRequest) (int64, error) {
	s.backend.replacing.Lock()
	defer s.backend.replacing.Unlock()
	var present []KV
	revision, err := s.readAll(ctx, func(kv KV) { present = append(present, kv) })
	if err != nil {
		return 0, err
	}
	writes, err := s.differences(present, r)
	if err != nil || len(writes) == 0 {
		return revision, err
	}
	return s.backend.Replace(ctx, writes)
}

// differences returns the writes that lead from the present documents to those of a request.
func (s *Store) differences(present []KV, r RestoreRequest) ([]Write, error) {
	if !slices.IsSortedFunc(r.Documents, byPath) {
		return nil, errors.New("the documents are not in the order of paths")
	}
	var writes []Write
	saved := r.Documents
	for len(present) > 0 || len(saved) > 0 {
		order := 0
		switch {
		case len(present) == 0:
			order = 1
		case len(saved) == 0:
			order = -1
		default:
			order = byPath(present[0], saved[0])
		}
		var before, after *KV
		if order <= 0 {
			before, present = &present[0], present[1:]
		}
		if order >= 0 {
			after, saved = &saved[0], saved[1:]
		}
		w, err := s.difference(before, after, r)
		if err != nil {
			return nil, err
		}
		if w != nil {
			writes = append(writes, *w)
		}
	}
	return writes, nil
}

func byPath(a, b KV) int { return strings.Compare(a.Path, b.Path) }

// difference returns the write that leads from a document to another one of the same path, or nil. Either may be nil.
func (s *Store) difference(before, after *KV, r RestoreRequest) (*Write, error) {
	either := after
	if before != nil {
		either = before
	}
	if r.Ignore != nil && r.Ignore(either.Path) || before != nil && r.KeepPresent != nil && r.KeepPresent(either.Path) {
		return nil, nil
	}
	key, err := ParseKey(either.Path)
	if err != nil {
		if after == nil {
			return nil, nil // not an object: another program's key below the prefix
		}
		return nil, err
	}
	if after == nil {
		return &Write{Op: Delete, Key: key, Expect: AnyRevision}, nil
	}
	if before != nil && before.Err == nil && bytes.Equal(before.Value, after.Value) {
		return nil, nil
	}
	if after.Err != nil {
		return nil, fmt.Errorf("%s cannot be decrypted: %w", key, after.Err)
	}
	w := Write{Op: Update, Key: key, Value: after.Value, Expect: AnyRevision, TTL: after.TTL}
	drafts := make([]draft, 1)
	if err := s.scanWrites([]Write{w}, drafts); err != nil {
		return nil, err
	}
	drafts[0].scanner.release()
	return &w, nil
}
