package kubectllite

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/printers"

	"github.com/coxswain-dev/coxswain/kubectl-lite/diagnose"
	"github.com/coxswain-dev/coxswain/kubectl-lite/session"
	"github.com/coxswain-dev/coxswain/kubectl-lite/terminal"
)

type treeOptions struct {
	*session.Session
	depth int
	watch bool
}

func newTree(s *session.Session) *cobra.Command {
	o := &treeOptions{Session: s}
	cmd := &cobra.Command{
		Use:   "tree (TYPE NAME | TYPE/NAME)",
		Short: "Show what an object owns, down to the pods, with readiness and age",
		Example: `  kubectl-lite tree deployment/web
  kubectl-lite tree cronjob nightly
  kubectl-lite tree deploy/web -w`,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return session.UsageErrorf(cmd, "an object is required")
			}
			return o.run(cmd.Context(), args)
		},
	}
	cmd.Flags().BoolVarP(&o.watch, "watch", "w", false, "Keep the tree up to date, on a terminal.")
	cmd.Flags().IntVar(&o.depth, "depth", 0, "How many generations to show, zero means all.")
	return s.Colored(cmd, terminal.PaintTable)
}

func (o *treeOptions) run(ctx context.Context, args []string) error {
	root, err := o.OneObject(args)
	if err != nil {
		return err
	}
	if o.watch {
		if !o.CanLive() {
			return errors.New("--watch needs a terminal to draw on")
		}
		return o.follow(ctx, root)
	}
	all, err := o.Descendants(ctx, root)
	if err != nil {
		return err
	}
	w := printers.GetNewTabWriter(o.Out)
	o.printTree(w, all, root)
	return w.Flush()
}

func (o *treeOptions) printTree(w io.Writer, all diagnose.Family, root *unstructured.Unstructured) {
	fmt.Fprintln(w, "NAME\tREADY\tSTATUS\tAGE")
	(&treePrinter{w: w, all: all, depth: o.depth, shown: map[types.UID]bool{}}).print(root, "", "", 1)
}

// treePrinter prints a family. It shows the children of each object only once, because an object may have several
// owners, and owner references may form a cycle.
type treePrinter struct {
	w     io.Writer
	all   diagnose.Family
	depth int
	shown map[types.UID]bool
}

func (p *treePrinter) print(obj *unstructured.Unstructured, lead, below string, depth int) {
	ready, status := diagnose.Readiness(obj)
	fmt.Fprintf(p.w, "%s%s\t%s\t%s\t%s\n", lead, terminal.OneLine(obj.GetKind()+"/"+obj.GetName()),
		terminal.OneLine(ready), terminal.OneLine(status), terminal.Age(obj.GetCreationTimestamp().Time))
	if p.depth > 0 && depth > p.depth || p.shown[obj.GetUID()] {
		return
	}
	p.shown[obj.GetUID()] = true
	children := p.all[obj.GetUID()]
	for i, child := range children {
		if i == len(children)-1 {
			p.print(child, below+"└─", below+"  ", depth+1)
			continue
		}
		p.print(child, below+"├─", below+"│ ", depth+1)
	}
}
