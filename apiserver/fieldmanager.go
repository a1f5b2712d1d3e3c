package apiserver

import (
	"bytes"
	"cmp"
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
)

// Field ownership: metadata.managedFields says who has set which fields of an object. Server-side
// apply (apply.go) decides conflicts by it; every other write keeps it right, here.
//
// kube-apiserver pays most of a write's CPU for that, because it takes both objects apart
// into typed values by a schema and sets by generic path elements. What a plain write needs
// is less: the paths in which two Go objects of one type differ. One walk over both
// (fieldmanager_diff.go), along a shape that is made once from the Go type and the few
// exceptions in fieldmanager_topology.go, gives them as a tree (fieldmanager_set.go). The
// writer comes to own what the walk found added or modified, everyone else loses it, and
// entries that it does not touch stay as they are, byte for byte.
// https://kubernetes.io/docs/reference/using-api/server-side-apply/

// maxUpdateManagers is how many managers that do not apply an object may have.
const maxUpdateManagers = 10

// ancientManager owns what the oldest managers had when there were too many.
const ancientManager = "ancient-changes"

// writer is who a write is by, as managedFields has it.
type writer struct {
	manager, apiVersion, subresource string
	at                               metav1.Time
}

// fieldManager is the name of the request's writer: ?fieldManager=, or what the client
// calls itself in its User-Agent.
func (r *request) fieldManager() string {
	if name := r.query.Get("fieldManager"); name != "" {
		return name
	}
	agent, _, _ := strings.Cut(r.UserAgent(), "/")
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

// writer is who the request's changes are by.
func (s *Server) writer(r *request) writer {
	return writer{r.fieldManager(), r.res.GroupVersion().String(), r.subresource, s.now()}
}

func (s *Server) now() metav1.Time { return metav1.NewTime(s.Clock.Now().UTC()).Rfc3339Copy() }

// ownNew returns the managedFields of an object that is about to be created. The object is
// as the client sent it, with defaults: what the server sets on its own has no owner.
func ownNew(res *api.Resource, obj api.Object, w writer) []metav1.ManagedFieldsEntry {
	sent := obj.GetManagedFields()
	if isReset(sent) {
		sent = nil
	}
	entries, err := canonicalEntries(sent)
	if err != nil {
		entries = nil
	}
	changed := changesOf(res, nothingOf(obj), obj, w.subresource)
	defer changed.release()
	return own(entries, changed, nil, w)
}

// nothings are objects that have nothing in them, by reflect.Type. They stay so.
var nothings sync.Map

// nothingOf is what a new object is compared with.
func nothingOf(obj api.Object) api.Object {
	t := reflect.TypeOf(obj)
	nothing, ok := nothings.Load(t)
	if !ok {
		nothing, _ = nothings.LoadOrStore(t, reflect.New(t.Elem()).Interface())
	}
	return nothing.(api.Object)
}

// ownChanged returns the managedFields of an object that takes old's place. Both are of the
// version that is stored. sent is what the client said that they should be.
func ownChanged(kinds *api.Snapshot, res *api.Resource, obj, old api.Object, sent []metav1.ManagedFieldsEntry, w writer) ([]metav1.ManagedFieldsEntry, error) {
	entries := old.GetManagedFields()
	if w.subresource == "" {
		entries = chosenEntries(entries, sent)
	}
	if len(entries) == 0 {
		return nil, nil // ownership was given up, or never kept; the next apply begins anew
	}
	versions := versionsOf(entries, w.apiVersion)
	if len(versions) == 1 && res.View == nil {
		changed := changesOf(res, old, obj, w.subresource)
		defer changed.release()
		return own(entries, changed, nil, w), nil
	}
	changed := map[string]*fieldSet{}
	for _, version := range versions {
		shownIn := kinds.Version(res, version)
		if shownIn == nil {
			continue // of a version that is served no more
		}
		was, err := showObject(shownIn, old)
		if err != nil {
			return nil, err
		}
		is, err := showObject(shownIn, obj)
		if err != nil {
			return nil, err
		}
		changes := changesOf(shownIn, was, is, w.subresource)
		if w.subresource == "status" { // another version may carry parts of it elsewhere
			metadata := res.Stored().Status.Metadata != 0
			changes.below = slices.DeleteFunc(changes.below, func(part fieldSet) bool {
				return part.element != "f:status" && !(metadata && part.element == "f:metadata")
			})
		}
		changed[version] = changes
	}
	return own(entries, changed[w.apiVersion], changed, w), nil
}

// versionsOf are the versions that entries are about, and the writer's.
func versionsOf(entries []metav1.ManagedFieldsEntry, writers string) []string {
	versions := append(make([]string, 0, 2), writers)
	for i := range entries {
		if v := entries[i].APIVersion; !slices.Contains(versions, v) {
			versions = append(versions, v)
		}
	}
	return versions
}

// own sets the managedFields of an object that is to take old's place. sent are those that
// came with it.
func (s *Server) own(r *request, obj, old api.Object, sent []metav1.ManagedFieldsEntry) error {
	if !r.applies {
		var err error
		if sent, err = ownChanged(s.Registry.Snapshot(), r.res, obj, old, sent, s.writer(r)); err != nil {
			return err
		}
	}
	obj.SetManagedFields(sent)
	return nil
}

// changesOf finds what a write changes. A main write does not change the status, whatever
// the object says.
func changesOf(res *api.Resource, old, obj api.Object, subresource string) *fieldSet {
	return changes(objectShape(reflect.TypeOf(obj), subresource == "" && res.Status != nil), old, obj)
}

// chosenEntries decides between the managedFields that an object has and those that a
// client sends with an update. A client that does not know them leaves them out, or sends
// back what it has read; one that wants to be rid of them sends [] or [{}].
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

// canonicalEntries checks entries that a client sent, and writes them as the server does.
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
		entries = append(slices.DeleteFunc(entries, same), e) // of two by one manager, the last
	}
	sortEntries(entries)
	return entries, nil
}

// own gives the changes to the writer, and takes the changed paths from everyone else. An
// entry that has nothing left goes. in has the changes as each version shows them; an entry
// of a version that it lacks goes too. It is nil where there is but the writer's version.
// Entries are not changed in place.
func own(entries []metav1.ManagedFieldsEntry, changed *fieldSet, in map[string]*fieldSet, w writer) []metav1.ManagedFieldsEntry {
	if changed.empty() {
		return entries
	}
	entry := metav1.ManagedFieldsEntry{
		Manager: cmp.Or(w.manager, "unknown"), Operation: metav1.ManagedFieldsOperationUpdate,
		APIVersion: w.apiVersion, Subresource: w.subresource, Time: &w.at, FieldsType: "FieldsV1",
	}
	mine := changed.members()
	gains := !mine.empty()
	kept := make([]metav1.ManagedFieldsEntry, 0, len(entries)+1)
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
			entry.FieldsV1 = e.FieldsV1 // the writer has changed again what is his already
			continue
		}
		if !writers && !changed.mayMeet(owned) {
			kept = append(kept, e)
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
			kept = append(kept, e)
		}
	}
	if gains {
		if entry.FieldsV1 == nil {
			entry.FieldsV1 = mine.fieldsV1()
		}
		kept = mergeAncient(append(kept, entry))
	}
	sortEntries(kept)
	return kept
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

// sameManager reports whether two entries are by one manager doing the same thing. One who
// applies may do so in another version each time.
func sameManager(a, b metav1.ManagedFieldsEntry) bool {
	return a.Manager == b.Manager && a.Operation == b.Operation && a.Subresource == b.Subresource &&
		(a.Operation == metav1.ManagedFieldsOperationApply || a.APIVersion == b.APIVersion)
}

// sameEntries compares managedFields, with or without their times.
func sameEntries(a, b []metav1.ManagedFieldsEntry, times bool) bool {
	return slices.EqualFunc(a, b, func(x, y metav1.ManagedFieldsEntry) bool {
		return sameManager(x, y) && x.APIVersion == y.APIVersion && x.FieldsType == y.FieldsType &&
			bytes.Equal(x.FieldsV1.GetRawBytes(), y.FieldsV1.GetRawBytes()) && (!times || x.Time.Equal(y.Time))
	})
}

// sortEntries orders managedFields as Kubernetes does: those who apply first, then by time.
func sortEntries(entries []metav1.ManagedFieldsEntry) {
	slices.SortFunc(entries, func(a, b metav1.ManagedFieldsEntry) int {
		return cmp.Or(cmp.Compare(a.Operation, b.Operation), cmp.Compare(seconds(a), seconds(b)),
			cmp.Compare(a.Manager, b.Manager), cmp.Compare(a.APIVersion, b.APIVersion), cmp.Compare(a.Subresource, b.Subresource))
	})
}

func seconds(e metav1.ManagedFieldsEntry) int64 {
	if e.Time == nil {
		return 0
	}
	return e.Time.Unix()
}

// mergeAncient makes one entry for each version of the oldest ones by those who do not
// apply, so long as there are too many.
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
	oldest := map[string]int{} // by version: the entry that takes up the others
	taken := map[int][]metav1.ManagedFieldsEntry{}
	kept := make([]metav1.ManagedFieldsEntry, 0, len(entries))
	for _, e := range entries {
		at, found := oldest[e.APIVersion]
		switch {
		case over <= 0 || e.Operation != metav1.ManagedFieldsOperationUpdate:
			kept = append(kept, e)
		case !found:
			oldest[e.APIVersion] = len(kept)
			kept = append(kept, e)
		default:
			taken[at] = append(taken[at], e)
			over--
		}
	}
	for at, younger := range taken {
		kept[at] = ancients(append([]metav1.ManagedFieldsEntry{kept[at]}, younger...))
	}
	return kept
}

// ancients are entries as one. They are put together by halves, since a client may send thousands.
func ancients(entries []metav1.ManagedFieldsEntry) metav1.ManagedFieldsEntry {
	if len(entries) == 1 {
		return entries[0]
	}
	half := len(entries) / 2
	return ancient(ancients(entries[:half]), ancients(entries[half:]))
}

// identity orders entries of the same second.
func identity(e metav1.ManagedFieldsEntry) string {
	return e.Manager + "\x00" + e.APIVersion + "\x00" + e.Subresource
}

// ancient is two entries as one, with the younger one's time.
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
