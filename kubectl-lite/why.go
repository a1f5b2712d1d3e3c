package kubectllite

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

type whyOptions struct{ *session }

func newWhy(s *session) *cobra.Command {
	o := &whyOptions{s}
	return &cobra.Command{
		Use:   "why (TYPE NAME | TYPE/NAME)",
		Short: "Explain why an object is not ready, the likely cause first",
		Long: `Reads an object and everything that it owns, their conditions, container states and warnings, and puts what is wrong in
order: what stands in the way of the most comes first.`,
		Example:               `  kubectl-lite why deployment/web`,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usageErrorf(cmd, "an object is required")
			}
			return o.run(contextOf(cmd), args)
		},
	}
}

// The ranks of findings, the likeliest cause first: a pod that was never made explains why it does not run, a pod that
// nothing will take explains why its image was not pulled, and so on. A condition of the owner only sums up.
const (
	rankRefused = iota
	rankMissing
	rankUnschedulable
	rankNode
	rankImage
	rankCrash
	rankProbe
	rankStuck
	rankPending
	rankDeleting
	rankWarning
	rankSummary
)

// finding is one thing that is wrong.
type finding struct {
	rank    int
	subject string
	text    string
	// container is the one that crashed, of the pod that is the subject.
	container string
}

func (o *whyOptions) run(ctx context.Context, args []string) error {
	root, err := o.oneObject(args)
	if err != nil {
		return err
	}
	all, err := o.descendants(ctx, root)
	if err != nil {
		return err
	}
	var findings []finding
	var objects []*unstructured.Unstructured
	var visit func(*unstructured.Unstructured)
	visited := map[types.UID]bool{} // owners may go round in circles
	visit = func(obj *unstructured.Unstructured) {
		if visited[obj.GetUID()] {
			return
		}
		visited[obj.GetUID()] = true
		objects = append(objects, obj)
		findings = append(findings, inspect(obj)...)
		if isDone(obj) {
			return // how its pods ended on the way is history
		}
		for _, child := range all[obj.GetUID()] {
			visit(child)
		}
	}
	visit(root)
	more, err := o.lookAround(ctx, root, objects)
	if err != nil {
		return err
	}
	findings = append(findings, more...)
	name := oneLine(root.GetKind() + "/" + root.GetName())
	if len(findings) == 0 && isReady(root) {
		fmt.Fprintf(o.Out, "%s is ready.\n", name)
		return nil
	}
	warnings, err := o.warningsAbout(ctx, root.GetNamespace(), objects)
	if err != nil {
		return err
	}
	warnings = slices.DeleteFunc(warnings, func(w finding) bool { // what a condition says as well is said once
		_, message, _ := strings.Cut(w.text, " ago: ")
		return slices.ContainsFunc(findings, func(f finding) bool {
			return f.subject == w.subject && strings.Contains(f.text, strings.TrimSuffix(message, "."))
		})
	})
	findings = merge(append(findings, warnings...))
	o.print(name, root, findings)
	o.printLastWords(ctx, root.GetNamespace(), findings)
	if chain := o.ownerChain(ctx, root); chain != "" {
		fmt.Fprintf(o.Out, "\nMade by %s.\n", oneLine(chain))
	}
	if len(findings) > 0 && findings[0].rank == rankUnschedulable {
		return o.printVerdicts(ctx, objects)
	}
	return nil
}

// isReady reports whether an object's own word is that it is as it should be.
func isReady(obj *unstructured.Unstructured) bool {
	ready, _ := readiness(obj)
	have, want, counted := strings.Cut(ready, "/")
	return ready == "-" || ready == "True" || counted && have == want
}

// warningsAbout are the warnings that were recorded about the objects, the latest of each kind.
func (o *whyOptions) warningsAbout(ctx context.Context, namespace string, objects []*unstructured.Unstructured) ([]finding, error) {
	client, err := o.KubernetesClientSet()
	if err != nil {
		return nil, err
	}
	list, err := client.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "type=" + corev1.EventTypeWarning})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(list.Items, func(a, b corev1.Event) int { return eventTime(b).Compare(eventTime(a)) })
	told := map[string]bool{}
	var found []finding
	for _, e := range list.Items {
		about := slices.ContainsFunc(objects, func(obj *unstructured.Unstructured) bool { return obj.GetUID() == e.InvolvedObject.UID })
		subject := e.InvolvedObject.Kind + "/" + e.InvolvedObject.Name
		if !about || told[subject+e.Reason] {
			continue
		}
		told[subject+e.Reason] = true
		found = append(found, finding{warningRank(e.Reason), subject, fmt.Sprintf("%s %s ago: %s", e.Reason, since(eventTime(e)), strings.TrimSpace(e.Message)), ""})
	}
	return found, nil
}

// warningRank places a warning among the causes by its reason.
func warningRank(reason string) int {
	switch reason {
	case "FailedCreate":
		return rankRefused
	case "FailedScheduling":
		return rankUnschedulable
	case "Unhealthy":
		return rankProbe
	case "FailedMount", "FailedAttachVolume", "FailedMapVolume", "FailedCreatePodSandBox", "FailedBinding", "ProvisioningFailed":
		return rankStuck
	}
	return rankWarning
}

// merge orders findings by rank and tells once what is the same for many pods.
func merge(all []finding) []finding {
	slices.SortStableFunc(all, func(a, b finding) int { return cmp.Compare(a.rank, b.rank) })
	var merged []finding
	others := map[int]int{}
	for _, f := range all {
		at := slices.IndexFunc(merged, func(m finding) bool { return m.rank == f.rank && m.text == f.text })
		if at >= 0 {
			if merged[at].subject != f.subject {
				others[at]++
			}
			continue
		}
		merged = append(merged, f)
	}
	for at, n := range others {
		merged[at].subject += fmt.Sprintf(" and %d more", n)
	}
	return merged
}

func (o *whyOptions) print(name string, root *unstructured.Unstructured, findings []finding) {
	ready, _ := readiness(root)
	if strings.Contains(ready, "/") && !isReady(root) {
		fmt.Fprintf(o.Out, "%s is not ready (%s).\n", name, oneLine(ready))
	} else {
		fmt.Fprintf(o.Out, "%s is not as it should be.\n", name)
	}
	if len(findings) == 0 {
		fmt.Fprintln(o.Out, "Nothing that belongs to it reports a fault; it may still be on its way.")
		return
	}
	fmt.Fprintf(o.Out, "\nLikely cause:\n  %s\n", oneLine(findings[0].subject+" "+findings[0].text))
	if len(findings) == 1 {
		return
	}
	fmt.Fprintln(o.Out, "\nAlso:")
	for _, f := range findings[1:] {
		fmt.Fprintf(o.Out, "  %s\n", oneLine(f.subject+" "+f.text))
	}
}
