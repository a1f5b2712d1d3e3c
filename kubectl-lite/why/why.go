// Package why is the command why, which explains why an object is not ready (why.go), or lists the faults in a
// namespace or the cluster (all.go), the likely cause first.
//
// It reads the objects, and package diagnose finds their faults and decides whether an object is ready.
// surroundings.go reads the objects that pods need and do not own, claims.go their claims, leases.go their nodes and
// the cluster's time, service.go the endpoints of a Service, ingress.go the backends of an Ingress, webhooks.go the
// Services and last calls of webhooks, nodes.go the nodes that a pod does not fit on.
package why

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/coxswain-dev/coxswain/kubectl-lite/diagnose"
	"github.com/coxswain-dev/coxswain/kubectl-lite/session"
	"github.com/coxswain-dev/coxswain/kubectl-lite/terminal"
)

type options struct {
	*session.Session
	allNamespaces bool
	output        string
}

// NewCommand returns the command why.
func NewCommand(s *session.Session) *cobra.Command {
	o := &options{Session: s}
	cmd := &cobra.Command{
		Use:   "why (TYPE NAME | TYPE/NAME | -n NAMESPACE | -A)",
		Short: "Explain why an object is not ready, or list the faults in a namespace, the likely cause first",
		Long: `Reads an object and all objects that it owns, with their conditions, container states and warnings, and lists their
faults, the likely cause first. For a namespace, or with -n or -A and no object, it reads all objects there.

The exit code is 0 if there are no faults and 1 otherwise.`,
		Example: `  kubectl-lite why deployment/web
  kubectl-lite why -n shop
  kubectl-lite why -A -o json`,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.output != "" && o.output != "json" {
				return session.UsageErrorf(cmd, "--output must be 'json'")
			}
			namespace, explicit, err := o.Namespace()
			switch {
			case err != nil:
				return err
			case len(args) > 0 && o.allNamespaces:
				return session.UsageErrorf(cmd, "an object and --all-namespaces exclude each other")
			case len(args) > 0:
				return o.run(cmd.Context(), args)
			case o.allNamespaces:
				return o.runAll(cmd.Context(), "")
			case explicit:
				return o.runAll(cmd.Context(), namespace)
			}
			return session.UsageErrorf(cmd,
				"an object is required, or --namespace or --all-namespaces for all that is there")
		},
	}
	cmd.Flags().BoolVarP(&o.allNamespaces, "all-namespaces", "A", false,
		"If present, inspect the objects of all namespaces, and the objects without a namespace.")
	cmd.Flags().StringVarP(&o.output, "output", "o", "", "Output format. One of: (json).")
	return s.Colored(cmd, paintWhy)
}

// findingLine formats a finding for people, on one line.
func findingLine(f diagnose.Finding) string {
	name := f.Subject
	if f.Namespace != "" {
		name += " in " + f.Namespace
	}
	if f.Others > 0 {
		name += fmt.Sprintf(" and %d more", f.Others)
	}
	return terminal.OneLine(name + " " + f.Text)
}

// run explains one object.
func (o *options) run(ctx context.Context, args []string) error {
	root, err := o.OneObject(args)
	if err != nil {
		return err
	}
	if root.GroupVersionKind().GroupKind() == namespaceKind {
		return o.runAll(ctx, root.GetName())
	}
	all, err := o.Descendants(ctx, root)
	if err != nil {
		return err
	}
	s, err := o.surroundings(ctx)
	if err != nil {
		return err
	}
	objects, findings := diagnose.InspectAll(root, all, diagnose.Visited{}, s.now)
	more, around, err := s.lookAround(ctx, objects)
	if err != nil {
		return err
	}
	objects = append(objects, around...)
	findings = s.settle(root.GetNamespace(), append(findings, more...))
	name := terminal.OneLine(root.GetKind() + "/" + root.GetName())
	if len(findings) == 0 && diagnose.IsReady(root) {
		state := terminal.OneLine(diagnose.State(root, s.now))
		if o.output != "" {
			return o.printJSON(name, root.GetNamespace(), state, nil)
		}
		fmt.Fprintf(o.Out, "%s %s.\n", name, state)
		return nil
	}
	warnings, err := o.warningsAbout(ctx, root.GetNamespace(), objects, s.now)
	if err != nil {
		return err
	}
	// drop warnings that a condition repeats
	warnings = slices.DeleteFunc(warnings, func(w diagnose.Finding) bool {
		_, message, _ := strings.Cut(w.Text, " ago: ")
		return slices.ContainsFunc(findings, func(f diagnose.Finding) bool {
			return f.Subject == w.Subject && strings.Contains(f.Text, strings.TrimSuffix(message, "."))
		})
	})
	findings = append(findings, warnings...)
	findings = diagnose.Merge(append(findings, s.mentioned(ctx, findings)...))
	if o.output != "" {
		if len(findings) == 0 {
			findings = []diagnose.Finding{diagnose.NotReady(root)}
		}
		return o.printJSON(name, root.GetNamespace(), "", findings)
	}
	o.print(name, root, findings)
	o.printLastWords(ctx, root.GetNamespace(), findings)
	if chain := o.ownerChain(ctx, root); chain != "" {
		fmt.Fprintf(o.Out, "\nMade by %s.\n", terminal.OneLine(chain))
	}
	if len(findings) > 0 && findings[0].Rank == diagnose.RankUnschedulable {
		if err := o.printVerdicts(ctx, objects); err != nil {
			return err
		}
	}
	return session.ErrSilent // the object is not ready
}

// warningsAbout returns findings about the Warning events of the objects.
func (o *options) warningsAbout(ctx context.Context, namespace string, objects []*unstructured.Unstructured,
	now time.Time) ([]diagnose.Finding, error) {
	client, err := o.KubernetesClientSet()
	if err != nil {
		return nil, err
	}
	list, err := client.CoreV1().Events(namespace).List(ctx,
		metav1.ListOptions{FieldSelector: "type=" + corev1.EventTypeWarning})
	if err != nil {
		return nil, err
	}
	return diagnose.Warnings(list.Items, objects, now), nil
}

func (o *options) print(name string, root *unstructured.Unstructured, findings []diagnose.Finding) {
	switch ready, _ := diagnose.Readiness(root); {
	case diagnose.Rollout(root) != "":
		fmt.Fprintf(o.Out, "%s is not ready: it %s.\n", name, terminal.OneLine(diagnose.Rollout(root)))
	case strings.Contains(ready, "/") && !diagnose.IsReady(root):
		fmt.Fprintf(o.Out, "%s is not ready (%s).\n", name, terminal.OneLine(ready))
	default:
		fmt.Fprintf(o.Out, "%s is not as it should be.\n", name)
	}
	if len(findings) == 0 {
		fmt.Fprintln(o.Out, "Nothing that belongs to it reports a fault; it may still be on its way.")
		return
	}
	fmt.Fprintf(o.Out, "\nLikely cause:\n  %s\n", findingLine(findings[0]))
	if len(findings) == 1 {
		return
	}
	fmt.Fprintln(o.Out, "\nAlso:")
	for _, f := range findings[1:] {
		fmt.Fprintf(o.Out, "  %s\n", findingLine(f))
	}
}

// paintWhy returns a painter of the answer, which is the first line, and the likely cause.
func paintWhy() terminal.Painter {
	first, cause := true, false
	return func(line string) string {
		answer := first
		first = false
		if cause {
			cause = false
			return terminal.Color(terminal.Red, line)
		}
		switch {
		case strings.HasPrefix(line, " "):
		case answer && (strings.HasSuffix(line, " is not as it should be.") ||
			strings.Contains(line, " is not ready") ||
			strings.Contains(line, " wrong in ") && !strings.HasPrefix(line, "Nothing is wrong ")):
			return terminal.Color(terminal.Bold+";"+terminal.Red, line)
		case answer && strings.HasSuffix(line, "."): // not a line of JSON
			return terminal.Color(terminal.Green, line)
		case strings.HasSuffix(line, ":"):
			cause = line == "Likely cause:"
			return terminal.Color(terminal.Bold, line)
		}
		return line
	}
}
