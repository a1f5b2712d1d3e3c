package why

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coxswain-dev/coxswain/kubectl-lite/diagnose"
	"github.com/coxswain-dev/coxswain/kubectl-lite/session"
	"github.com/coxswain-dev/coxswain/kubectl-lite/terminal"
)

var namespaceKind = schema.GroupKind{Kind: "Namespace"}

// runAll lists the faults in a namespace, or in the whole cluster if namespace is "".
func (o *options) runAll(ctx context.Context, namespace string) error {
	objects, err := o.inspected(ctx, namespace)
	if err != nil {
		return err
	}
	s, err := o.surroundings(ctx)
	if err != nil {
		return err
	}
	s.know(objects)
	present := map[types.UID]bool{}
	for _, obj := range objects {
		present[obj.GetUID()] = true
	}
	var findings []diagnose.Finding
	all, visited := diagnose.Owned(objects), diagnose.Visited{}
	judge := func(root *unstructured.Unstructured) error {
		members, wrong := diagnose.InspectAll(root, all, visited, s.now)
		if len(members) == 0 {
			return nil
		}
		more, _, err := s.lookAround(ctx, members)
		if err != nil {
			return err
		}
		if wrong = s.settle(root.GetNamespace(), append(wrong, more...)); len(wrong) == 0 && !diagnose.IsReady(root) {
			wrong = append(wrong, diagnose.NotReady(root))
		}
		// a cause makes the summary superfluous
		if slices.ContainsFunc(wrong, func(f diagnose.Finding) bool { return f.Rank < diagnose.RankSummary }) {
			wrong = slices.DeleteFunc(wrong, func(f diagnose.Finding) bool { return f.Rank == diagnose.RankSummary })
		}
		for i := range wrong {
			if namespace == "" {
				wrong[i].Namespace = root.GetNamespace()
			}
		}
		findings = append(findings, wrong...)
		return nil
	}
	owns := func(ref metav1.OwnerReference) bool { return present[ref.UID] }
	for _, obj := range objects {
		if slices.ContainsFunc(obj.GetOwnerReferences(), owns) {
			continue
		}
		if err := judge(obj); err != nil {
			return err
		}
	}
	for _, obj := range objects { // the rest have owners that form a cycle
		if err := judge(obj); err != nil {
			return err
		}
	}
	return o.printAll(namespace, diagnose.Merge(append(findings, s.aboutWebhooks(ctx)...)))
}

// know keeps the objects that others need from a list of all objects, so that they are not read one by one.
func (s *surroundings) know(objects []*unstructured.Unstructured) {
	s.pods, s.slices = map[string][]*unstructured.Unstructured{}, map[string][]*unstructured.Unstructured{}
	s.leases = map[string]*unstructured.Unstructured{}
	for _, obj := range objects {
		namespace := obj.GetNamespace()
		switch obj.GroupVersionKind().GroupKind() {
		case schema.GroupKind{Kind: "Pod"}:
			s.pods[namespace] = append(s.pods[namespace], obj)
		case schema.GroupKind{Group: "discovery.k8s.io", Kind: "EndpointSlice"}:
			service := namespace + "/" + obj.GetLabels()[discoveryv1.LabelServiceName]
			s.slices[service] = append(s.slices[service], obj)
		case schema.GroupKind{Group: "coordination.k8s.io", Kind: "Lease"}:
			if namespace == corev1.NamespaceNodeLease {
				s.leases[obj.GetName()] = obj
			}
		}
	}
}

// inspected lists all objects of a namespace and the Namespace itself, or all objects of the cluster if namespace is
// "". Their order is stable.
func (o *options) inspected(ctx context.Context, namespace string) ([]*unstructured.Unstructured, error) {
	resources, err := o.Ownable(namespace != "")
	if err != nil {
		return nil, err
	}
	objects, err := o.Everything(ctx, resources, namespace)
	if err != nil {
		return nil, err
	}
	if namespace != "" {
		client, err := o.QuietClient()
		if err != nil {
			return nil, err
		}
		itself, err := client.Resource(corev1.SchemeGroupVersion.WithResource("namespaces")).Get(ctx, namespace,
			metav1.GetOptions{})
		switch {
		case err == nil:
			objects = append(objects, itself)
		case !apierrors.IsForbidden(err):
			return nil, err
		}
	}
	slices.SortFunc(objects, func(a, b *unstructured.Unstructured) int {
		return slices.Compare([]string{a.GetNamespace(), a.GetKind(), a.GetName()},
			[]string{b.GetNamespace(), b.GetKind(), b.GetName()})
	})
	return objects, nil
}

func (o *options) printAll(namespace string, findings []diagnose.Finding) error {
	if o.output != "" {
		return o.printJSON("", namespace, "", findings)
	}
	where := "in all namespaces"
	if namespace != "" {
		where = "in namespace " + terminal.OneLine(namespace)
	}
	switch len(findings) {
	case 0:
		fmt.Fprintf(o.Out, "Nothing is wrong %s.\n", where)
		return nil
	case 1:
		fmt.Fprintf(o.Out, "Something is wrong %s:\n", where)
	default:
		fmt.Fprintf(o.Out, "%d things are wrong %s, the likeliest causes first:\n", len(findings), where)
	}
	for _, f := range findings {
		fmt.Fprintf(o.Out, "  %s\n", findingLine(f))
	}
	return session.ErrSilent
}

// printJSON prints findings for programs. object is "" for a whole namespace, and namespace too for the whole cluster.
// state describes an object without findings.
func (o *options) printJSON(object, namespace, state string, findings []diagnose.Finding) error {
	type item struct {
		Cause     string `json:"cause"`
		Object    string `json:"object"`
		Namespace string `json:"namespace,omitempty"`
		Others    int    `json:"others,omitempty"`
		Container string `json:"container,omitempty"`
		Message   string `json:"message"`
	}
	answer := struct {
		OK        bool   `json:"ok"`
		Object    string `json:"object,omitempty"`
		Namespace string `json:"namespace,omitempty"`
		State     string `json:"state,omitempty"`
		Findings  []item `json:"findings"`
	}{len(findings) == 0, object, namespace, state, []item{}}
	for _, f := range findings {
		if f.Namespace == "" {
			f.Namespace = namespace
		}
		answer.Findings = append(answer.Findings, item{f.Rank.String(), f.Subject, f.Namespace, f.Others,
			f.Container, f.Text})
	}
	document, err := json.MarshalIndent(answer, "", "    ")
	if err != nil {
		return err
	}
	fmt.Fprintln(o.Out, terminal.EscapeControls(string(document)))
	if answer.OK {
		return nil
	}
	return session.ErrSilent
}
