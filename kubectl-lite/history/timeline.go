package history

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	"github.com/coxswain-dev/coxswain/kubectl-lite/session"
	"github.com/coxswain-dev/coxswain/kubectl-lite/terminal"
)

type timelineOptions struct{ *session.Session }

// NewTimeline returns the command timeline.
func NewTimeline(s *session.Session) *cobra.Command {
	o := &timelineOptions{s}
	cmd := &cobra.Command{
		Use:   "timeline (TYPE NAME | TYPE/NAME)",
		Short: "Show every revision of an object that the server still has: its time, writer and changes",
		Long: `Replays the past of an object as far as the server still has it, one paragraph per revision: when it was written, by
which field manager, and the changes. A deleted object has a timeline until the server forgets it. Servers do not record
the user that deletes an object: it is deleted "by unknown". If no field manager's entry has the time of a revision, the
time is "after" the renewal of a Lease or the revision before.

How far back this goes is the server's choice (Coxswain: --history-retention, an hour by default).`,
		Example: `  kubectl-lite timeline deployment/web
  kubectl-lite timeline pod web-7f9c`,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			mapping, name, err := o.OneName(cmd, args)
			if err != nil {
				return err
			}
			return o.run(cmd.Context(), mapping, name)
		},
	}
	return s.Colored(cmd, paintTimeline)
}

func (o *timelineOptions) run(ctx context.Context, mapping *meta.RESTMapping, name string) error {
	h, err := Open(ctx, o.Session)
	if err != nil {
		return err
	}
	objects, err := collection(o.Session, mapping)
	if err != nil {
		return err
	}
	oldest, err := h.oldestOf(func(revision int64) error {
		_, err := objects.List(ctx, metav1.ListOptions{ResourceVersion: fmt.Sprint(revision),
			ResourceVersionMatch: metav1.ResourceVersionMatchExact, Limit: 1})
		return err
	})
	if err != nil {
		return err
	}
	events, err := revisions(ctx, objects, name, oldest)
	if err != nil {
		return err
	}
	if len(events) == 0 {
		return apierrors.NewNotFound(mapping.Resource.GroupResource(), name)
	}
	var before *unstructured.Unstructured
	var last time.Time
	requests := 0
	for i, e := range events {
		if i > 0 {
			fmt.Fprintln(o.Out)
		}
		writer, when := writerOf(before, e)
		exact := !when.IsZero()
		if !exact {
			when = last
			if requests++; requests <= maxRequests {
				when = h.noEarlier(ctx, e.object.GetResourceVersion(), last)
			}
		}
		o.print(before, e, writer, whenWritten(when, exact))
		last = when
		before = e.object
		if e.kind == watch.Deleted {
			before = nil
		}
	}
	return nil
}

// collection returns the client for the objects of a kind, in the session's namespace if they have one.
func collection(s *session.Session, mapping *meta.RESTMapping) (dynamic.ResourceInterface, error) {
	client, err := s.DynamicClient()
	if err != nil {
		return nil, err
	}
	all := client.Resource(mapping.Resource)
	if mapping.Scope.Name() != meta.RESTScopeNameNamespace {
		return all, nil
	}
	namespace, _, err := s.Namespace()
	return all.Namespace(namespace), err
}

// revision is one state of an object.
type revision struct {
	kind   watch.EventType // empty for the first state of an object that is older than the history
	object *unstructured.Unstructured
}

// revisions returns all states of an object since a revision: its state at that revision, and the events of a watch
// from there. The watch is complete when it has sent the present state. If the object no longer exists, there is no
// such event, and the server is asked to end the watch after a second.
func revisions(ctx context.Context, objects dynamic.ResourceInterface, name string, since int64) ([]revision, error) {
	only := fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
	present, err := objects.List(ctx, metav1.ListOptions{FieldSelector: only})
	if err != nil {
		return nil, err
	}
	last, timeout := "", int64(1)
	if len(present.Items) > 0 {
		last, timeout = present.Items[0].GetResourceVersion(), 60
	}
	from := fmt.Sprint(since)
	first, err := objects.List(ctx, metav1.ListOptions{FieldSelector: only, ResourceVersion: from,
		ResourceVersionMatch: metav1.ResourceVersionMatchExact})
	if err != nil {
		return nil, err
	}
	var found []revision
	for i := range first.Items {
		found = append(found, revision{object: &first.Items[i]})
		if first.Items[i].GetResourceVersion() == last {
			return found, nil
		}
	}
	stream, err := objects.Watch(ctx, metav1.ListOptions{FieldSelector: only, ResourceVersion: from,
		TimeoutSeconds: &timeout})
	if expired(err) {
		return nil, fmt.Errorf("this server lists its past but does not replay it: %w", err)
	}
	if err != nil {
		return nil, err
	}
	defer stream.Stop()
	for event := range stream.ResultChan() {
		if event.Type == watch.Error {
			return nil, apierrors.FromObject(event.Object)
		}
		object, ok := event.Object.(*unstructured.Unstructured)
		if !ok {
			return nil, fmt.Errorf("unexpected type %T", event.Object)
		}
		found = append(found, revision{event.Type, object})
		if object.GetResourceVersion() == last {
			return found, nil
		}
	}
	if last != "" && ctx.Err() == nil {
		return nil, errors.New("the server ended the watch before it had sent everything")
	}
	return found, ctx.Err()
}

// maxRequests is for how many revisions the time is taken from Leases, which costs a request or two each.
const maxRequests = 50

// writerOf returns the field managers that wrote a revision, and the time of the write; zero if the object does not
// record it.
func writerOf(before *unstructured.Unstructured, r revision) (writer string, when time.Time) {
	names, when := authors(before, r.object)
	switch {
	case r.kind == watch.Deleted:
		return "unknown", time.Time{}
	case before == nil && r.kind != "":
		when = r.object.GetCreationTimestamp().Time
	}
	return cmp.Or(strings.Join(names, ", "), "unknown"), when
}

// whenWritten formats the time of a revision. A time that is not exact is a lower bound.
func whenWritten(when time.Time, exact bool) string {
	if when.IsZero() {
		return "at an unknown time"
	}
	text := fmt.Sprintf("%s (%s ago)", when.Local().Format(time.DateTime), terminal.Age(when))
	if !exact {
		text = "after " + text
	}
	return text
}

// print prints the paragraph of one revision.
func (o *timelineOptions) print(before *unstructured.Unstructured, r revision, writer, when string) {
	verb := "changed"
	switch {
	case r.kind == watch.Deleted:
		verb = "deleted"
	case r.kind == "":
		verb = "was there"
	case before == nil:
		verb = "created"
	}
	fmt.Fprintln(o.Out,
		terminal.OneLine(fmt.Sprintf("revision %s  %s by %s  %s", r.object.GetResourceVersion(), verb, writer, when)))
	if before == nil || r.kind == watch.Deleted {
		return
	}
	var old, now runtime.Object = before, r.object
	if r.object.GroupVersionKind().GroupKind() == (schema.GroupKind{Kind: "Secret"}) {
		old, now = maskSecrets(old, now)
	}
	for _, d := range deltas("", content(old), content(now)) {
		fmt.Fprintln(o.Out, "  "+terminal.OneLine(d.String()))
	}
}

// content returns the part of an object that a timeline compares: all except the metadata that change with every write.
func content(object runtime.Object) map[string]any {
	content := runtime.DeepCopyJSON(object.(*unstructured.Unstructured).Object)
	for _, field := range []string{"managedFields", "resourceVersion", "generation"} {
		unstructured.RemoveNestedField(content, "metadata", field)
	}
	return content
}

// authors returns the field managers that made a write, and its time. A manager's entry in managedFields then has a new
// time or, within one second, other fields than before. If no entry changed, a manager wrote the same fields twice in a
// second: the time is zero, and the managers are guessed.
func authors(before, after *unstructured.Unstructured) (managers []string, when time.Time) {
	former := map[string]metav1.ManagedFieldsEntry{}
	if before != nil {
		for _, entry := range before.GetManagedFields() {
			former[entryKey(entry)] = entry
		}
	}
	var later, other []metav1.ManagedFieldsEntry
	for _, entry := range after.GetManagedFields() {
		old, ok := former[entryKey(entry)]
		switch {
		case !ok || !old.Time.Equal(entry.Time):
			later = append(later, entry)
		case !equality.Semantic.DeepEqual(old.FieldsV1, entry.FieldsV1):
			other = append(other, entry)
		}
	}
	if len(later) == 0 {
		later = other
	}
	names := map[string]bool{}
	for _, entry := range later {
		name := entry.Manager
		if entry.Subresource != "" {
			name += " (" + entry.Subresource + ")"
		}
		names[name] = true
		if entry.Time != nil && entry.Time.After(when) {
			when = entry.Time.Time
		}
	}
	if len(names) == 0 && before != nil {
		return hasty(before, after), when
	}
	return slices.Sorted(maps.Keys(names)), when
}

// hasty returns the managers that may have written twice within a second. Of the entries with the newest time they are
// the ones that own a changed field, or all of them, joined by "or", if none does.
func hasty(before, after *unstructured.Unstructured) []string {
	all, owners := map[string]bool{}, map[string]bool{}
	for _, entry := range newest(after.GetManagedFields()) {
		all[entry.Manager] = true
		var fields map[string]any
		if entry.FieldsV1 != nil && json.Unmarshal(entry.FieldsV1.GetRawBytes(), &fields) == nil &&
			ownsChange(fields, before.Object, after.Object) {
			owners[entry.Manager] = true
		}
	}
	if len(owners) > 0 {
		return slices.Sorted(maps.Keys(owners))
	}
	if len(all) == 0 {
		return nil
	}
	return []string{strings.Join(slices.Sorted(maps.Keys(all)), " or ")}
}

// ownsChange reports whether two values differ in one of the fields, which are a FieldsV1. A list is compared as a
// whole. A map that is owned without its keys only counts if it appears or disappears.
func ownsChange(fields map[string]any, before, after any) bool {
	old, _ := before.(map[string]any)
	now, _ := after.(map[string]any)
	for key, below := range fields {
		name, isField := strings.CutPrefix(key, "f:")
		switch deeper, _ := below.(map[string]any); {
		case key == ".":
		case !isField:
			if !equality.Semantic.DeepEqual(before, after) {
				return true
			}
		case len(deeper) == 0:
			_, was := old[name].(map[string]any)
			_, is := now[name].(map[string]any)
			if !(was && is) && !equality.Semantic.DeepEqual(old[name], now[name]) {
				return true
			}
		case ownsChange(deeper, old[name], now[name]):
			return true
		}
	}
	return false
}

// newest returns the entries with the latest time.
func newest(entries []metav1.ManagedFieldsEntry) (found []metav1.ManagedFieldsEntry) {
	for _, entry := range entries {
		switch {
		case entry.Time == nil || len(found) > 0 && entry.Time.Before(found[0].Time):
		case len(found) > 0 && entry.Time.Equal(found[0].Time):
			found = append(found, entry)
		default:
			found = []metav1.ManagedFieldsEntry{entry}
		}
	}
	return found
}

func entryKey(e metav1.ManagedFieldsEntry) string {
	return strings.Join([]string{e.Manager, string(e.Operation), e.APIVersion, e.Subresource}, "\x00")
}

// maskSecrets replaces the values in two versions of a Secret: a reader sees that a value changed, but neither value.
// The annotation of kubectl apply is masked too, because it contains them.
func maskSecrets(before, after runtime.Object) (runtime.Object, runtime.Object) {
	b, a := before.(*unstructured.Unstructured).DeepCopy(), after.(*unstructured.Unstructured).DeepCopy()
	for _, at := range [][]string{{"data"}, {"stringData"}} {
		old, now := below(b.Object, at...), below(a.Object, at...)
		for key := range union(old, now) {
			mask(old, now, key)
		}
	}
	mask(below(b.Object, "metadata", "annotations"), below(a.Object, "metadata", "annotations"),
		corev1.LastAppliedConfigAnnotation)
	return b, a
}

// below returns the map at a path of an object, or nil.
func below(object map[string]any, path ...string) map[string]any {
	for _, name := range path {
		object, _ = object[name].(map[string]any)
	}
	return object
}

// mask replaces the values of a key in two maps by texts that differ if the values do.
func mask(old, now map[string]any, key string) {
	former, was := old[key]
	value, is := now[key]
	if was && is && !reflect.DeepEqual(former, value) {
		old[key], now[key] = "*** (before)", "*** (after)"
		return
	}
	if was {
		old[key] = "***"
	}
	if is {
		now[key] = "***"
	}
}

// paintTimeline returns a painter of revisions and their changes.
func paintTimeline() terminal.Painter {
	return func(line string) string {
		switch {
		case strings.HasPrefix(line, "revision "):
			return terminal.Color(terminal.Bold, line)
		case strings.HasPrefix(line, "  + "):
			return terminal.Color(terminal.Green, line)
		case strings.HasPrefix(line, "  - "):
			return terminal.Color(terminal.Red, line)
		case strings.HasPrefix(line, "  ~ "):
			return terminal.Color(terminal.Yellow, line)
		}
		return line
	}
}
