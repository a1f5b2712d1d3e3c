// Package fieldmanager maintains metadata.managedFields, which records the manager that set each field of an
// object. Server-side apply detects conflicts with it (Appliers, which use Kubernetes' own library). Create and
// Update maintain it for all other writes. They take registrations, objects and a Writer, and return the new
// managedFields. The package must not import package apiserver.
//
// kube-apiserver spends most of a write's CPU time on managedFields, because it converts both objects to typed
// values with a schema, then to sets of generic path elements. An ordinary write only needs the differing paths of
// two Go objects of one type. A single traversal of both objects (diff.go) computes them as a tree (set.go). It
// follows a shape that is derived once from the Go type (shape.go) and a few exceptions (topology.go). The writer
// then owns the added and changed paths, and the other managers lose them. Unchanged entries stay identical byte by
// byte.
// https://kubernetes.io/docs/reference/using-api/server-side-apply/
package fieldmanager

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/managedfields"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/customresource"
	"github.com/coxswain-dev/coxswain/apiserver/encoding"
)

// maxUpdateManagers limits the entries of an object for managers that update it.
const maxUpdateManagers = 10

// ancientManager takes over the fields of the oldest managers when there are too many.
const ancientManager = "ancient-changes"

// Writer describes the author of a write as managedFields do.
type Writer struct {
	Manager, APIVersion, Subresource string
	At                               metav1.Time
}

// Name returns the default name of a writer without a field manager: the first part of its User-Agent.
func Name(userAgent string) string {
	agent, _, _ := strings.Cut(userAgent, "/")
	var name strings.Builder
	for _, c := range agent {
		if !unicode.IsPrint(c) {
			continue
		}
		if name.Len()+utf8.RuneLen(c) > validation.FieldManagerMaxLength {
			break
		}
		name.WriteRune(c)
	}
	return name.String()
}

// Create returns the managedFields of an object that is about to be created. The object must be as the client sent
// it, with defaults. Fields that the server itself sets have no owner.
func Create(res *api.Resource, obj api.Object, w Writer) []metav1.ManagedFieldsEntry {
	sent := obj.GetManagedFields()
	if isReset(sent) {
		sent = nil
	}
	entries, err := canonicalEntries(sent)
	if err != nil {
		entries = nil
	}
	changed, err := changesOf(res, nothingOf(obj), obj, w, false)
	if err != nil {
		return nil
	}
	defer changed.release()
	return own(entries, changed, nil, w)
}

// nothings caches an empty object for each reflect.Type. The objects are never modified.
var nothings sync.Map

// nothingOf returns the empty object that a new object is compared with.
func nothingOf(obj api.Object) api.Object {
	t := reflect.TypeOf(obj)
	nothing, ok := nothings.Load(t)
	if !ok {
		nothing, _ = nothings.LoadOrStore(t, reflect.New(t.Elem()).Interface())
	}
	return nothing.(api.Object)
}

// Update returns the managedFields of an object that replaces old. Both have the version of encoding.Own. sent
// contains the managedFields from the client.
func Update(ctx context.Context, kinds *api.Snapshot, res *api.Resource, obj, old api.Object,
	sent []metav1.ManagedFieldsEntry, w Writer) ([]metav1.ManagedFieldsEntry, error) {
	entries := old.GetManagedFields()
	if w.Subresource == "" {
		entries = chosenEntries(entries, sent)
	}
	if len(entries) == 0 {
		return nil, nil // the entries were removed or never existed; the next apply starts over
	}
	find := func(apiVersion string) *api.Resource { return versionOf(kinds, res, apiVersion) }
	versions := versionsOf(entries, w.APIVersion)
	if _, isCustom := obj.(*customresource.Object); isCustom {
		var err error
		if entries, err = reconcile(entries, find); err != nil {
			return untracked(ctx, old)
		}
	}
	if len(versions) == 1 && encoding.Own(res) == res {
		changed, err := changesOf(res, old, obj, w, false)
		if err != nil {
			return untracked(ctx, old)
		}
		defer changed.release()
		return own(entries, changed, nil, w), nil
	}
	changed := map[string]*fieldSet{}
	for _, version := range versions {
		shownIn := find(version)
		switch {
		case shownIn == nil && res.Convert != nil:
			return untracked(ctx, old)
		case shownIn == nil:
			continue // a removed version
		}
		var err error
		if changed[version], err = changesIn(ctx, shownIn, old, obj, w); err != nil {
			return untracked(ctx, old)
		}
	}
	return own(entries, changed[w.APIVersion], changed, w), nil
}

// untracked returns the managedFields after an update that cannot be tracked: as in kube-apiserver, they stay
// unchanged. It returns an error if ctx has ended.
func untracked(ctx context.Context, old api.Object) ([]metav1.ManagedFieldsEntry, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return old.GetManagedFields(), nil
}

// changesIn returns the changes of a write in terms of a version.
func changesIn(ctx context.Context, shownIn *api.Resource, old, obj api.Object, w Writer) (*fieldSet, error) {
	was, is, err := bothIn(ctx, shownIn, old, obj)
	if err != nil {
		return nil, err
	}
	changes, err := changesOf(shownIn, was, is, w, shownIn.GroupVersion().String() != w.APIVersion)
	if err != nil {
		return nil, err
	}
	if _, isCustom := is.(*customresource.Object); w.Subresource == "status" && !isCustom {
		// Another version may represent parts of the status elsewhere.
		metadata := shownIn.Stored().Status.Metadata != 0
		changes.below = slices.DeleteFunc(changes.below, func(part fieldSet) bool {
			return part.element != "f:status" && !(metadata && part.element == "f:metadata")
		})
	}
	return changes, nil
}

// bothIn converts two objects to a version.
func bothIn(ctx context.Context, shownIn *api.Resource, old, obj api.Object) (was, is api.Object, err error) {
	if shownIn.Convert != nil { // both in one request
		both, err := convertWhole(ctx, shownIn, old, obj)
		if err != nil {
			return nil, nil, err
		}
		return both[0], both[1], nil
	}
	if was, err = encoding.ConvertTo(ctx, shownIn, old); err != nil {
		return nil, nil, err
	}
	is, err = encoding.ConvertTo(ctx, shownIn, obj)
	return was, is, err
}

// versionOf returns the registration of a kind's version, served or not.
func versionOf(kinds *api.Snapshot, res *api.Resource, apiVersion string) *api.Resource {
	if found := kinds.Version(res, apiVersion); found != nil {
		return found
	}
	for _, other := range append([]*api.Resource{res.Stored()}, res.Stored().Unserved...) {
		if other.GroupVersion().String() == apiVersion {
			return other
		}
	}
	return nil
}

// versionsOf returns the writer's version and the versions of the entries.
func versionsOf(entries []metav1.ManagedFieldsEntry, writers string) []string {
	versions := append(make([]string, 0, 2), writers)
	for i := range entries {
		if v := entries[i].APIVersion; !slices.Contains(versions, v) {
			versions = append(versions, v)
		}
	}
	return versions
}

// changesOf returns the changes of a write in one version. A write to the object itself does not change the status.
// other is set if the version is not the writer's. In that case Kubernetes' library does not exclude the status of
// a custom resource, and rejects fields that are unknown in the version as well as duplicate items.
func changesOf(res *api.Resource, old, obj api.Object, w Writer, other bool) (*fieldSet, error) {
	if custom, ok := obj.(*customresource.Object); ok {
		var beside []string
		if !other || w.Subresource != "" {
			beside = besideOf(res, w.Subresource)
		}
		return customChanges(old.(*customresource.Object), custom, beside, other)
	}
	return changes(objectShape(reflect.TypeOf(obj), w.Subresource == "" && res.Status != nil), old, obj), nil
}

// chosenEntries chooses between the managedFields of an object and the ones a client sends with an update. A client
// that ignores managedFields omits them or returns them as read. A client that wants to remove them sends [] or
// [{}].
func chosenEntries(have, sent []metav1.ManagedFieldsEntry) []metav1.ManagedFieldsEntry {
	if isReset(sent) {
		return nil
	}
	if len(sent) == 0 || sameEntries(have, sent, true) {
		return have
	}
	entries, err := canonicalEntries(sent)
	if err != nil || len(entries) == 0 {
		return have
	}
	return entries
}

func isReset(entries []metav1.ManagedFieldsEntry) bool {
	return entries != nil && len(entries) == 0 ||
		len(entries) == 1 && reflect.DeepEqual(entries[0], metav1.ManagedFieldsEntry{})
}

// canonicalEntries validates entries from a client and rewrites them in the server's form.
func canonicalEntries(sent []metav1.ManagedFieldsEntry) ([]metav1.ManagedFieldsEntry, error) {
	if len(sent) == 0 {
		return nil, nil
	}
	if err := managedfields.ValidateManagedFields(sent); err != nil {
		return nil, fmt.Errorf("managed fields: %w", err)
	}
	var entries []metav1.ManagedFieldsEntry
	for _, e := range sent {
		fields := []byte("{}")
		if raw := e.FieldsV1.GetRawBytes(); len(raw) > 0 {
			var err error
			if fields, err = canonical(raw); err != nil {
				return nil, err
			}
		}
		e.FieldsV1 = &metav1.FieldsV1{Raw: fields}
		same := func(o metav1.ManagedFieldsEntry) bool { return sameManager(o, e) }
		entries = append(slices.DeleteFunc(entries, same), e) // the last entry of a manager counts
	}
	sortEntries(entries)
	return entries, nil
}

// own assigns the changed paths to the writer and removes them from the other entries. It drops entries without
// paths. in contains the changes in terms of each version, and entries of other versions are dropped too; it is nil
// if all entries have the writer's version. own does not modify the entries in place.
func own(entries []metav1.ManagedFieldsEntry, changed *fieldSet, in map[string]*fieldSet,
	w Writer) []metav1.ManagedFieldsEntry {
	if changed.empty() && !slices.ContainsFunc(entries, func(e metav1.ManagedFieldsEntry) bool {
		changed := in[e.APIVersion] // may have fields that the writer's version lacks
		return changed != nil && !changed.empty()
	}) {
		return entries
	}
	entry := metav1.ManagedFieldsEntry{
		Manager: cmp.Or(w.Manager, "unknown"), Operation: metav1.ManagedFieldsOperationUpdate,
		APIVersion: w.APIVersion, Subresource: w.Subresource, Time: &w.At, FieldsType: "FieldsV1",
	}
	mine := changed.members()
	gains := !mine.empty()
	remaining := make([]metav1.ManagedFieldsEntry, 0, len(entries)+1)
	for _, e := range entries {
		writers := gains && sameManager(e, entry)
		changed := changed
		if in != nil {
			if changed = in[e.APIVersion]; changed == nil {
				continue
			}
		}
		owned := e.FieldsV1.GetRawString()
		if writers && mine.within(owned) && !changed.loses() {
			entry.FieldsV1 = e.FieldsV1 // the writer has changed fields it owns already
			continue
		}
		if !writers && !changed.mayMeet(owned) {
			remaining = append(remaining, e)
			continue
		}
		fields, err := fieldsOfEntry(e)
		if err != nil {
			continue
		}
		took := fields.without(changed)
		switch {
		case writers:
			mine = union(fields, mine)
		case !fields.empty():
			if took {
				e.FieldsV1 = fields.fieldsV1()
			}
			remaining = append(remaining, e)
		}
	}
	if gains {
		if entry.FieldsV1 == nil {
			entry.FieldsV1 = mine.fieldsV1()
		}
		remaining = mergeAncient(append(remaining, entry))
	}
	sortEntries(remaining)
	return remaining
}

func fieldsOfEntry(e metav1.ManagedFieldsEntry) (fieldSet, error) {
	fields, err := parseFieldSet(e.FieldsV1.GetRawString())
	if err == nil {
		return fields, nil
	}
	doc, err := canonical(e.FieldsV1.GetRawBytes())
	if err != nil {
		return fieldSet{}, err
	}
	return parseFieldSet(string(doc))
}

// sameManager reports whether two entries belong to the same manager and operation. For apply, the version may
// differ.
func sameManager(a, b metav1.ManagedFieldsEntry) bool {
	return a.Manager == b.Manager && a.Operation == b.Operation && a.Subresource == b.Subresource &&
		(a.Operation == metav1.ManagedFieldsOperationApply || a.APIVersion == b.APIVersion)
}

// sameEntries compares managedFields with or without their times.
func sameEntries(a, b []metav1.ManagedFieldsEntry, times bool) bool {
	return slices.EqualFunc(a, b, func(x, y metav1.ManagedFieldsEntry) bool {
		return sameManager(x, y) && x.APIVersion == y.APIVersion && x.FieldsType == y.FieldsType &&
			bytes.Equal(x.FieldsV1.GetRawBytes(), y.FieldsV1.GetRawBytes()) && (!times || x.Time.Equal(y.Time))
	})
}

// sortEntries sorts managedFields as Kubernetes does: applies first, then by time.
func sortEntries(entries []metav1.ManagedFieldsEntry) {
	slices.SortFunc(entries, func(a, b metav1.ManagedFieldsEntry) int {
		return cmp.Or(cmp.Compare(a.Operation, b.Operation), cmp.Compare(seconds(a), seconds(b)),
			cmp.Compare(a.Manager, b.Manager), cmp.Compare(a.APIVersion, b.APIVersion), cmp.Compare(a.Subresource,
				b.Subresource))
	})
}

func seconds(e metav1.ManagedFieldsEntry) int64 {
	if e.Time == nil {
		return 0
	}
	return e.Time.Unix()
}

// mergeAncient merges the oldest update entries, into one per version, until there are few enough.
func mergeAncient(entries []metav1.ManagedFieldsEntry) []metav1.ManagedFieldsEntry {
	over := -maxUpdateManagers
	for _, e := range entries {
		if e.Operation == metav1.ManagedFieldsOperationUpdate {
			over++
		}
	}
	if over <= 0 {
		return entries
	}
	slices.SortStableFunc(entries, func(a, b metav1.ManagedFieldsEntry) int {
		return cmp.Or(cmp.Compare(seconds(a), seconds(b)), cmp.Compare(identity(a), identity(b)))
	})
	oldest := map[string]int{} // by version: the index of the entry that absorbs the others
	taken := map[int][]metav1.ManagedFieldsEntry{}
	merged := make([]metav1.ManagedFieldsEntry, 0, len(entries))
	for _, e := range entries {
		index, found := oldest[e.APIVersion]
		switch {
		case over <= 0 || e.Operation != metav1.ManagedFieldsOperationUpdate:
			merged = append(merged, e)
		case !found:
			oldest[e.APIVersion] = len(merged)
			merged = append(merged, e)
		default:
			taken[index] = append(taken[index], e)
			over--
		}
	}
	for index, younger := range taken {
		merged[index] = ancients(append([]metav1.ManagedFieldsEntry{merged[index]}, younger...))
	}
	return merged
}

// ancients merges entries into one. It divides them into halves for efficiency, since a client may send thousands.
func ancients(entries []metav1.ManagedFieldsEntry) metav1.ManagedFieldsEntry {
	if len(entries) == 1 {
		return entries[0]
	}
	half := len(entries) / 2
	return ancient(ancients(entries[:half]), ancients(entries[half:]))
}

// identity sorts entries of the same second.
func identity(e metav1.ManagedFieldsEntry) string {
	return e.Manager + "\x00" + e.APIVersion + "\x00" + e.Subresource
}

// ancient merges two entries into one with the time of the younger one.
func ancient(older, younger metav1.ManagedFieldsEntry) metav1.ManagedFieldsEntry {
	a, errA := fieldsOfEntry(older)
	b, errB := fieldsOfEntry(younger)
	if errA != nil || errB != nil {
		return younger
	}
	both := union(a, b)
	return metav1.ManagedFieldsEntry{
		Manager: ancientManager, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: older.APIVersion,
		Time: younger.Time, FieldsType: "FieldsV1", FieldsV1: both.fieldsV1(),
	}
}
