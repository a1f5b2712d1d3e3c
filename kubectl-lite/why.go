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
	"k8s.io/apimachinery/pkg/runtime/schema"
)

type whyOptions struct {
	*session
	allNamespaces bool
	output        string
}

func newWhy(s *session) *cobra.Command {
	o := &whyOptions{session: s}
	cmd := &cobra.Command{
		Use:   "why (TYPE NAME | TYPE/NAME | -n NAMESPACE | -A)",
		Short: "Explain why an object is not ready, or what is wrong in a namespace, the likely cause first",
		Long: `Reads an object and everything that it owns, their conditions, container states and warnings, and puts what is wrong in
order: what stands in the way of the most comes first. Of a namespace, or with -n or -A and no object, it reads all that is in it.

The exit code is 0 where all is well and 1 where something is wrong.`,
		Example: `  kubectl-lite why deployment/web
  kubectl-lite why -n shop
  kubectl-lite why -A -o json`,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.output != "" && o.output != "json" {
				return usageErrorf(cmd, "--output must be 'json'")
			}
			namespace, explicit, err := o.namespace()
			switch {
			case err != nil:
				return err
			case len(args) > 0 && o.allNamespaces:
				return usageErrorf(cmd, "an object and --all-namespaces exclude each other")
			case len(args) > 0:
				return o.run(contextOf(cmd), args)
			case o.allNamespaces:
				return o.runAll(contextOf(cmd), "")
			case explicit:
				return o.runAll(contextOf(cmd), namespace)
			}
			return usageErrorf(cmd, "an object is required, or --namespace or --all-namespaces for all that is there")
		},
	}
	cmd.Flags().BoolVarP(&o.allNamespaces, "all-namespaces", "A", false, "If present, look at everything in all namespaces, and at what is in none.")
	cmd.Flags().StringVarP(&o.output, "output", "o", "", "Output format. One of: (json).")
	return s.colored(cmd, paintWhy)
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
	rankRestart
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
	namespace string // of the subject, where several are looked at
	others    int    // of how many more objects the same is true
}

func (f finding) String() string {
	name := f.subject
	if f.namespace != "" {
		name += " in " + f.namespace
	}
	if f.others > 0 {
		name += fmt.Sprintf(" and %d more", f.others)
	}
	return oneLine(name + " " + f.text)
}

func (o *whyOptions) run(ctx context.Context, args []string) error {
	root, err := o.oneObject(args)
	if err != nil {
		return err
	}
	if root.GroupVersionKind().GroupKind() == namespaceKind {
		return o.runAll(ctx, root.GetName())
	}
	all, err := o.descendants(ctx, root)
	if err != nil {
		return err
	}
	objects, findings := inspectAll(root, all, map[identity]bool{})
	s, err := o.surroundings()
	if err != nil {
		return err
	}
	more, err := s.lookAround(ctx, objects)
	if err != nil {
		return err
	}
	findings = append(findings, more...)
	name := oneLine(root.GetKind() + "/" + root.GetName())
	if len(findings) == 0 && isReady(root) {
		if o.output != "" {
			return o.printJSON(name, root.GetNamespace(), nil)
		}
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
	if o.output != "" {
		if len(findings) == 0 {
			findings = []finding{notReady(root)}
		}
		return o.printJSON(name, root.GetNamespace(), findings)
	}
	o.print(name, root, findings)
	o.printLastWords(ctx, root.GetNamespace(), findings)
	if chain := o.ownerChain(ctx, root); chain != "" {
		fmt.Fprintf(o.Out, "\nMade by %s.\n", oneLine(chain))
	}
	if len(findings) > 0 && findings[0].rank == rankUnschedulable {
		if err := o.printVerdicts(ctx, objects); err != nil {
			return err
		}
	}
	return errSilent // the answer is no
}

// identity is what tells an object from every other one that there is now.
type identity struct {
	kind            schema.GroupKind
	namespace, name string
}

func identityOf(obj *unstructured.Unstructured) identity {
	return identity{obj.GroupVersionKind().GroupKind(), obj.GetNamespace(), obj.GetName()}
}

// inspectAll is an object with all that it owns, and what is wrong with them. What has been visited is passed over: an object
// may have several owners, and owners may go round in circles.
func inspectAll(root *unstructured.Unstructured, all family, visited map[identity]bool) (objects []*unstructured.Unstructured, findings []finding) {
	var visit func(obj *unstructured.Unstructured, past bool)
	visit = func(obj *unstructured.Unstructured, past bool) {
		if visited[identityOf(obj)] {
			return
		}
		visited[identityOf(obj)] = true
		if !past {
			objects, findings = append(objects, obj), append(findings, inspect(obj)...)
		}
		past = past || isDone(obj) // how its pods ended on the way is history
		for _, child := range all[obj.GetUID()] {
			visit(child, past)
		}
	}
	visit(root, false)
	return objects, findings
}

// notReady is what there is to say of an object that is not ready and has no fault.
func notReady(obj *unstructured.Unstructured) finding {
	ready, _ := readiness(obj)
	return finding{rank: rankSummary, subject: obj.GetKind() + "/" + obj.GetName(), text: fmt.Sprintf("is not ready (%s); it may still be on its way", ready)}
}

// isReady reports whether an object's own word is that it is as it should be.
func isReady(obj *unstructured.Unstructured) bool {
	if isDone(obj) {
		return true
	}
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
		found = append(found, finding{warningRank(e.Reason), subject,
			fmt.Sprintf("%s %s ago: %s", e.Reason, since(eventTime(e)), strings.TrimSpace(e.Message)), "", "", 0})
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
	type same struct {
		rank            int
		namespace, text string
	}
	var merged []finding
	first := map[same]int{}
	for _, f := range all {
		key := same{f.rank, f.namespace, f.text}
		at, known := first[key]
		switch {
		case !known:
			first[key] = len(merged)
			merged = append(merged, f)
		case merged[at].subject != f.subject:
			merged[at].others++
		}
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
	fmt.Fprintf(o.Out, "\nLikely cause:\n  %s\n", findings[0])
	if len(findings) == 1 {
		return
	}
	fmt.Fprintln(o.Out, "\nAlso:")
	for _, f := range findings[1:] {
		fmt.Fprintf(o.Out, "  %s\n", f)
	}
}
