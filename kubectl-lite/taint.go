package kubectllite

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/cli-runtime/pkg/resource"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
	"k8s.io/kubectl/pkg/scheme"
)

type taintOptions struct {
	*session
	writing
	selector  string
	all       bool
	overwrite bool

	add, remove []corev1.Taint
}

func newTaint(s *session) *cobra.Command {
	o := &taintOptions{session: s}
	cmd := &cobra.Command{
		Use: "taint NODE NAME KEY_1=VAL_1:TAINT_EFFECT_1 ... KEY_N=VAL_N:TAINT_EFFECT_N", Short: "Update the taints on one or more nodes",
		Example: `  kubectl-lite taint nodes node-0 dedicated=db:NoSchedule
  kubectl-lite taint nodes node-0 dedicated-`,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.complete(cmd); err != nil {
				return err
			}
			return o.run(cmd, args)
		},
	}
	o.addFlags(cmd, "kubectl-taint")
	cmdutil.AddValidateFlags(cmd)
	cmdutil.AddLabelSelectorFlagVar(cmd, &o.selector)
	cmd.Flags().BoolVar(&o.overwrite, "overwrite", false, "If true, allow taints to be overwritten, otherwise reject taint updates that overwrite existing taints.")
	cmd.Flags().BoolVar(&o.all, "all", false, "Select all nodes in the cluster")
	return cmd
}

func (o *taintOptions) run(cmd *cobra.Command, args []string) error {
	isTaint := func(arg string) bool { return strings.ContainsAny(arg, "=:") || strings.HasSuffix(arg, "-") }
	split := slices.IndexFunc(args, isTaint)
	switch {
	case split == 0 || len(args) == 0:
		return errors.New("one or more resources must be specified as <resource> <name>")
	case split < 0:
		return errors.New("at least one taint update is required")
	}
	nodes, taints := args[:split], args[split:]
	for _, arg := range taints {
		if !isTaint(arg) {
			return fmt.Errorf("all resources must be specified before taint changes: %s", arg)
		}
	}
	if err := o.parse(taints); err != nil {
		return usageErrorf(cmd, "%s", err)
	}
	if kind := strings.ToLower(nodes[0]); kind != "node" && kind != "nodes" && kind != "no" {
		return fmt.Errorf("invalid resource type %s, only node types are supported", kind)
	}
	switch {
	case o.all && o.selector != "":
		return errors.New("setting 'all' parameter with a non empty selector is prohibited")
	case !o.all && o.selector == "" && len(nodes) < 2:
		return errors.New("at least one resource name must be specified since 'all' parameter is not set")
	}
	b := o.typed().ContinueOnError().DefaultNamespace()
	if o.all || o.selector != "" {
		b = b.ResourceTypes("nodes").SelectAllParam(o.all).LabelSelectorParam(o.selector)
	} else {
		b = b.ResourceNames("nodes", nodes[1:]...)
	}
	return b.Flatten().Latest().Do().Visit(func(info *resource.Info, err error) error {
		if err != nil {
			return err
		}
		return o.update(info)
	})
}

// parse reads "key=value:Effect" to add and "key:Effect-" or "key-" to remove.
func (o *taintOptions) parse(args []string) error {
	for _, arg := range args {
		text, removed := strings.CutSuffix(arg, "-")
		pair, effect, _ := strings.Cut(text, ":")
		key, value, _ := strings.Cut(pair, "=")
		taint := corev1.Taint{Key: key, Value: value, Effect: corev1.TaintEffect(effect)}
		if faults := validation.IsQualifiedName(key); len(faults) > 0 {
			return fmt.Errorf("invalid taint spec: %v, %s", arg, strings.Join(faults, "; "))
		}
		if effect != "" || !removed {
			switch taint.Effect {
			case corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute:
			default:
				return fmt.Errorf("invalid taint effect: %v, unsupported taint effect", effect)
			}
		}
		if removed {
			o.remove = append(o.remove, taint)
			continue
		}
		if faults := validation.IsValidLabelValue(value); len(faults) > 0 {
			return fmt.Errorf("invalid taint spec: %v, %s", arg, strings.Join(faults, "; "))
		}
		o.add = append(o.add, taint)
	}
	return nil
}

func (o *taintOptions) update(info *resource.Info) error {
	done := "tainted"
	switch {
	case o.overwrite || len(o.add) > 0 && len(o.remove) > 0:
		done = "modified"
	case len(o.add) == 0:
		done = "untainted"
	}
	patch, err := patchFor(info.Object, func(obj runtime.Object) ([]byte, error) {
		node, ok := obj.(*corev1.Node)
		if !ok {
			return nil, fmt.Errorf("unexpected type %T", obj)
		}
		if err := o.change(node); err != nil {
			return nil, err
		}
		return runtime.Encode(scheme.DefaultJSONEncoder(), node)
	})
	if err != nil {
		return err
	}
	if o.onlyPretend() || patch == nil {
		return o.show(o.session, info.Object, done)
	}
	obj, err := o.helper(info).Patch(info.Namespace, info.Name, types.StrategicMergePatchType, patch, nil)
	if err != nil {
		return err
	}
	return o.show(o.session, obj, done)
}

func (o *taintOptions) change(node *corev1.Node) error {
	same := func(a corev1.Taint) func(corev1.Taint) bool {
		return func(b corev1.Taint) bool { return a.Key == b.Key && (a.Effect == "" || a.Effect == b.Effect) }
	}
	for _, taint := range o.remove {
		if !slices.ContainsFunc(node.Spec.Taints, same(taint)) {
			return fmt.Errorf("taint %q not found", strings.TrimSuffix(taint.Key+":"+string(taint.Effect), ":"))
		}
		node.Spec.Taints = slices.DeleteFunc(node.Spec.Taints, same(taint))
	}
	// The new ones come first: that is the order in which kubectl leaves them.
	kept := node.Spec.Taints
	for _, taint := range o.add {
		if slices.ContainsFunc(kept, same(taint)) && !o.overwrite {
			return fmt.Errorf("node %s already has %v taint(s) with same effect(s) and --overwrite is false", node.Name, taint.Key)
		}
		kept = slices.DeleteFunc(kept, same(taint))
	}
	node.Spec.Taints = append(slices.Clone(o.add), kept...)
	return nil
}
