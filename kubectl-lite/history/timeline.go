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

func NewTimeline(s *session.Session) *cobra.Command {
	o := &timelineOptions{s}
	cmd := &cobra.Command{
		Use:   "timeline (TYPE NAME | TYPE/NAME)",
		Short: "Show every revision of an object that the server still has: when, who, what changed",
		Long: `Plays back what the server still has of an object's past, one paragraph per revision: when it was written, by which
field manager, and what changed. An object that is gone has a timeline as long as the server remembers it. A server does not
note who deletes an object: that is "by unknown". Where no field manager's entry tells the time, it is "after" the one that a
Lease or the revision before tells.

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
	asked := 0
	for i, e := range events {
		if i > 0 {
			fmt.Fprintln(o.Out)
		}
		who, when := writerOf(before, e)
		exact := !when.IsZero()
		if !exact {
			when = last
			if asked++; asked <= mostAsked {
				when = h.noEarlier(ctx, e.object.GetResourceVersion(), last)
			}
		}
		o.print(before, e, who, whenWritten(when, exact))
		last = when
		before = e.object
		if e.kind == watch.Deleted {
			before = nil
		}
	}
	return nil
}

// collection is where the objects of a kind are, in the session's namespace if they have one.
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

// revision is one state of an object. The kind of the first one is empty where the object is older than the history.
type revision struct {
	kind   watch.EventType
	object *unstructured.Unstructured
}

// revisions are all states of an object since a revision: the one it had then, and what a watch from there tells. The
// watch has told all once it has shown the present state; where there is none, the server is asked to end it soon.
func revisions(ctx context.Context, objects dynamic.ResourceInterface, name string, since int64) ([]revision, error) {
	only := fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
	present, err := objects.List(ctx, metav1.ListOptions{FieldSelector: only})
	if err != nil {
		return nil, err
	}
	last, patience := "", int64(1)
	if len(present.Items) > 0 {
		last, patience = present.Items[0].GetResourceVersion(), 60
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
		TimeoutSeconds: &patience})
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

// mostAsked is for how many revisions Leases are asked for the time.
const mostAsked = 50

// writerOf is the writer of a revision, and when; the time is zero where the object does not record it.
func writerOf(before *unstructured.Unstructured, r revision) (who string, when time.Time) {
	names, when := authors(before, r.object)
	switch {
	case r.kind == watch.Deleted:
		return "unknown", time.Time{}
	case before == nil && r.kind != "":
		when = r.object.GetCreationTimestamp().Time
	}
	return cmp.Or(strings.Join(names, ", "), "unknown"), when
}

// whenWritten is a time in words; one that is not exact is the latest that is known to be before.
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

// print is one revision's paragraph.
func (o *timelineOptions) print(before *unstructured.Unstructured, r revision, who, when string) {
	what := "changed"
	switch {
	case r.kind == watch.Deleted:
		what = "deleted"
	case r.kind == "":
		what = "was there"
	case before == nil:
		what = "created"
	}
	fmt.Fprintln(o.Out,
		terminal.OneLine(fmt.Sprintf("revision %s  %s by %s  %s", r.object.GetResourceVersion(), what, who, when)))
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

// content is the part of an object that a timeline compares: all but the bookkeeping that changes with every
// write.
func content(object runtime.Object) map[string]any {
	content := runtime.DeepCopyJSON(object.(*unstructured.Unstructured).Object)
	for _, field := range []string{"managedFields", "resourceVersion", "generation"} {
		unstructured.RemoveNestedField(content, "metadata", field)
	}
	return content
}

// authors are the field managers that made a write, and when: those whose entries bear a new time, or, within
// one second, own other fields than before. Where no entry changed, a manager wrote the same fields twice in
// a second, and the time is zero.
func authors(before, after *unstructured.Unstructured) (who []string, when time.Time) {
	known := map[string]metav1.ManagedFieldsEntry{}
	if before != nil {
		for _, entry := range before.GetManagedFields() {
			known[entryKey(entry)] = entry
		}
	}
	var later, other []metav1.ManagedFieldsEntry
	for _, entry := range after.GetManagedFields() {
		old, ok := known[entryKey(entry)]
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

// hasty are the managers that may have written within the second in which they had written before: of the
// entries with the newest time those that own a field whose value changed.
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

// ownsChange reports whether two values differ in one of the fields, which are a FieldsV1. A list is looked
// at as a whole; of a map that is owned without its keys, no more than that it is there.
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

// newest are the entries with the latest time of all.
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

// maskSecrets replaces the values in two versions of a Secret, so that a reader sees that a value changed but
// neither value. kubectl apply keeps them in an annotation as well.
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

// below is a map in an object, or nil.
func below(object map[string]any, path ...string) map[string]any {
	for _, name := range path {
		object, _ = object[name].(map[string]any)
	}
	return object
}

// mask replaces the values of a key in two maps by words that differ if the values do.
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

// paintTimeline colours revisions and what changed in them.
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
