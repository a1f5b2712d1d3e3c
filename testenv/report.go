package testenv

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/coxswain-dev/coxswain/kubectl-lite/diagnose"
)

// Limits of a report's duration and size.
const (
	reportTimeout = 10 * time.Second
	maxFindings   = 20
	maxEvents     = 20
	maxLastCalls  = 30
	maxReportLine = 400 // bytes
)

// Report returns text for the log of a failed test: the objects of the control plane that are not ready with the
// likely causes, as kubectl-lite why finds them; the last Events; and the last calls of the code under test, with
// the number of useless ones. It has about eighty lines at most. Sections that cannot be made, for example because
// the API server is stopped, contain the reason.
func (e *Environment) Report(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	var b strings.Builder
	section := func(title string, lines []string, err error) {
		if err != nil {
			fmt.Fprintf(&b, "%s: not known: %s\n", title, short(err.Error()))
			return
		}
		if len(lines) == 0 {
			lines = []string{"none"}
		}
		fmt.Fprintf(&b, "%s:\n", title)
		for _, line := range lines {
			fmt.Fprintf(&b, "  %s\n", short(line))
		}
	}
	b.WriteString("The control plane of this test, as it is now.\n")
	findings, events, err := e.diagnosis(ctx)
	section("Not as it should be, the likeliest causes first", findings, err)
	section("Last Events", events, err)
	calls := e.Calls()
	section("Last calls of the code under test", lastCalls(calls), nil)
	fmt.Fprintf(&b, "Of %d calls, %d failed, %d were conflicts, and %d writes changed nothing.\n", calls.Count(),
		calls.Failed().Count(), calls.Conflicts().Count(), calls.Useless().Count())
	return b.String()
}

// short returns a text on one line, of limited length.
func short(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > maxReportLine {
		text = strings.ToValidUTF8(text[:maxReportLine], "") + "…"
	}
	return text
}

func lastCalls(calls Calls) (lines []string) {
	for i := max(0, len(calls)-maxLastCalls); i < len(calls); i++ {
		lines = append(lines, calls[i].Time.Format("15:04:05.000")+" "+calls[i].String())
	}
	return lines
}

// diagnosis returns the findings about the control plane's objects, and the last Events.
func (e *Environment) diagnosis(ctx context.Context) (findings, last []string, err error) {
	client, done, err := e.client()
	if err != nil {
		return nil, nil, err
	}
	defer done()
	everything, doneWithIt, err := e.dynamicClient()
	if err != nil {
		return nil, nil, err
	}
	defer doneWithIt()
	objects, err := listAll(ctx, client, everything)
	if err != nil {
		return nil, nil, err
	}
	events, err := client.CoreV1().Events("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, nil, err
	}
	slices.SortStableFunc(events.Items, func(a, b corev1.Event) int {
		return diagnose.EventTime(a).Compare(diagnose.EventTime(b))
	})
	warnings := slices.DeleteFunc(slices.Clone(events.Items), func(e corev1.Event) bool {
		return e.Type != corev1.EventTypeWarning
	})
	now := e.options.clock.Now()
	for _, f := range diagnose.Merge(append(inspect(objects, now), diagnose.Warnings(warnings, objects, now)...)) {
		name := f.Subject
		if f.Namespace != "" {
			name += " in " + f.Namespace
		}
		if f.Others > 0 {
			name += fmt.Sprintf(" and %d more", f.Others)
		}
		if findings = append(findings, name+" "+f.Text); len(findings) == maxFindings {
			break
		}
	}
	return findings, lastEvents(events.Items), nil
}

func lastEvents(events []corev1.Event) (lines []string) {
	for _, event := range events[max(0, len(events)-maxEvents):] {
		on := event.InvolvedObject
		from := cmp.Or(event.Source.Component, event.ReportingController)
		lines = append(lines, fmt.Sprintf("%s %s %s %s/%s %s: %s", diagnose.EventTime(event).Format("15:04:05"),
			event.Type, event.Reason, on.Kind, on.Name, from, event.Message))
	}
	return lines
}

// inspect returns the findings about all objects, each together with the objects that it owns.
func inspect(objects []*unstructured.Unstructured, now time.Time) (all []diagnose.Finding) {
	present := map[types.UID]bool{}
	for _, o := range objects {
		present[o.GetUID()] = true
	}
	family, visited := diagnose.Owned(objects), diagnose.Visited{}
	judge := func(root *unstructured.Unstructured) {
		members, wrong := diagnose.InspectAll(root, family, visited, now)
		if len(members) > 0 && len(wrong) == 0 && !diagnose.IsReady(root) {
			wrong = append(wrong, diagnose.NotReady(root))
		}
		for _, f := range wrong {
			f.Namespace = root.GetNamespace()
			all = append(all, f)
		}
	}
	owned := func(ref metav1.OwnerReference) bool { return present[ref.UID] }
	for _, o := range objects {
		if !slices.ContainsFunc(o.GetOwnerReferences(), owned) {
			judge(o)
		}
	}
	for _, o := range objects { // objects whose owners form a cycle
		judge(o)
	}
	return all
}

// listAll lists the objects of all kinds except Events. A kind that cannot be listed is left out.
func listAll(ctx context.Context, kinds kubernetes.Interface, client dynamic.Interface) (
	objects []*unstructured.Unstructured, err error) {
	lists, err := kinds.Discovery().ServerPreferredResourcesWithContext(ctx)
	if err != nil && !discovery.IsGroupDiscoveryFailedError(err) {
		return nil, err
	}
	lists = discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"list", "create"}}, lists)
	for _, group := range lists {
		gv, err := schema.ParseGroupVersion(group.GroupVersion)
		if err != nil {
			return nil, err
		}
		for _, r := range group.APIResources {
			if r.Kind == "Event" {
				continue
			}
			list, err := client.Resource(gv.WithResource(r.Name)).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
			if err != nil {
				continue
			}
			for i := range list.Items {
				objects = append(objects, &list.Items[i])
			}
		}
	}
	return objects, ctx.Err()
}
