package kubectllite

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/cli-runtime/pkg/resource"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
	"k8s.io/kubectl/pkg/drain"
)

// drainOptions serves cordon, uncordon and drain: all three choose nodes and change whether they take pods.
type drainOptions struct {
	*session
	writing
	drainer drain.Helper
}

func newCordon(s *session) *cobra.Command {
	return newCordoning(s, "cordon", "Mark node as unschedulable", true)
}

func newUncordon(s *session) *cobra.Command {
	return newCordoning(s, "uncordon", "Mark node as schedulable", false)
}

func newCordoning(s *session, verb, short string, unschedulable bool) *cobra.Command {
	o := &drainOptions{session: s}
	cmd := &cobra.Command{
		Use: verb + " NODE", Short: short, DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			nodes, err := o.prepare(cmd, args)
			if err != nil {
				return err
			}
			return o.cordonAll(nodes, verb, unschedulable)
		},
	}
	o.addNodeFlags(cmd)
	return cmd
}

func (o *drainOptions) addNodeFlags(cmd *cobra.Command) {
	cmdutil.AddDryRunFlag(cmd)
	cmdutil.AddLabelSelectorFlagVar(cmd, &o.drainer.Selector)
}

func newDrain(s *session) *cobra.Command {
	o := &drainOptions{session: s}
	cmd := &cobra.Command{
		Use: "drain NODE", Short: "Drain node in preparation for maintenance", DisableFlagsInUseLine: true,
		Example: `  kubectl-lite drain node-0 --ignore-daemonsets
  kubectl-lite drain -l zone=a --grace-period=60 --delete-emptydir-data`,
		RunE: func(cmd *cobra.Command, args []string) error {
			nodes, err := o.prepare(cmd, args)
			if err != nil {
				return err
			}
			return o.drain(nodes)
		},
	}
	o.addNodeFlags(cmd)
	flags, d := cmd.Flags(), &o.drainer
	flags.BoolVar(&d.Force, "force", false, "Continue even if there are pods that do not declare a controller.")
	flags.BoolVar(&d.IgnoreAllDaemonSets, "ignore-daemonsets", false, "Ignore DaemonSet-managed pods.")
	flags.BoolVar(&d.DeleteEmptyDirData, "delete-emptydir-data", false, "Continue even if there are pods using emptyDir (local data that will be deleted when the node is drained).")
	flags.IntVar(&d.GracePeriodSeconds, "grace-period", -1, "Period of time in seconds given to each pod to terminate gracefully. If negative, the default value specified in the pod will be used.")
	flags.DurationVar(&d.Timeout, "timeout", 0, "The length of time to wait before giving up, zero means infinite")
	flags.StringVar(&d.PodSelector, "pod-selector", "", "Label selector to filter pods on the node")
	flags.BoolVar(&d.DisableEviction, "disable-eviction", false, "Force drain to use delete, even if eviction is supported. This will bypass checking PodDisruptionBudgets, use with caution.")
	flags.IntVar(&d.SkipWaitForDeleteTimeoutSeconds, "skip-wait-for-delete-timeout", 0, "If pod DeletionTimestamp older than N seconds, skip waiting for the pod.  Seconds must be greater than 0 to skip.")
	d.ChunkSize = cmdutil.DefaultChunkSize
	cmdutil.AddChunkSizeFlag(cmd, &d.ChunkSize)
	return cmd
}

// prepare connects the drainer and finds the nodes.
func (o *drainOptions) prepare(cmd *cobra.Command, args []string) ([]*resource.Info, error) {
	switch {
	case len(args) == 0 && o.drainer.Selector == "":
		return nil, usageErrorf(cmd, "USAGE: %s [flags]", cmd.Use)
	case len(args) > 0 && o.drainer.Selector != "":
		return nil, usageErrorf(cmd, "error: cannot specify both a node name and a --selector option")
	}
	if err := o.complete(cmd); err != nil {
		return nil, err
	}
	o.addNamePrinter()
	client, err := o.KubernetesClientSet()
	if err != nil {
		return nil, err
	}
	d := &o.drainer
	d.Ctx, d.Client, d.Out, d.ErrOut, d.DryRunStrategy = contextOf(cmd), client, o.Out, o.ErrOut, o.dryRun
	d.OnPodDeletionOrEvictionFinished = o.podGone
	b := o.typed().DefaultNamespace().ResourceNames("nodes", args...).SingleResourceType().Flatten()
	if d.Selector != "" {
		b = b.LabelSelectorParam(d.Selector).ResourceTypes("nodes")
	}
	return b.Do().Infos()
}

func contextOf(cmd *cobra.Command) context.Context {
	if ctx := cmd.Context(); ctx != nil {
		return ctx
	}
	return context.Background()
}

func (o *drainOptions) podGone(pod *corev1.Pod, evicted bool, err error) {
	if err != nil {
		return // the drainer reports it
	}
	done := "deleted"
	if evicted {
		done = "evicted"
	}
	if err := o.show(o.session, pod, done); err != nil {
		fmt.Fprintf(o.ErrOut, "error: unable to print pod %s: %v\n", pod.Name, err)
	}
}

func (o *drainOptions) cordonAll(nodes []*resource.Info, verb string, unschedulable bool) error {
	for _, info := range nodes {
		node, ok := info.Object.(*corev1.Node)
		if !ok {
			return fmt.Errorf("error: expected resource of type node, got %q", info.Mapping.Resource)
		}
		done := verb + "ed"
		if node.Spec.Unschedulable == unschedulable {
			done = "already " + done
		} else if err := o.cordon(node, unschedulable); err != nil {
			fmt.Fprintf(o.ErrOut, "error: unable to %s node %q: %v\n", verb, info.Name, err)
			continue
		}
		if err := o.show(o.session, info.Object, done); err != nil {
			return err
		}
	}
	return nil
}

func (o *drainOptions) cordon(node *corev1.Node, unschedulable bool) error {
	if o.onlyPretend() {
		return nil
	}
	helper := drain.NewCordonHelper(node)
	if !helper.UpdateIfRequired(unschedulable) {
		return nil
	}
	err, patchErr := helper.PatchOrReplaceWithContext(o.drainer.Ctx, o.drainer.Client, o.dryRun == cmdutil.DryRunServer)
	if err != nil {
		return err
	}
	return patchErr
}

func (o *drainOptions) drain(nodes []*resource.Info) error {
	if err := o.cordonAll(nodes, "cordon", true); err != nil {
		return err
	}
	var failed []error
	var pending []string
	for _, info := range nodes {
		if err := o.empty(info.Name); err != nil {
			fmt.Fprintf(o.ErrOut, "error: unable to drain node %q due to error: %s, continuing command...\n", info.Name, err)
			failed, pending = append(failed, err), append(pending, info.Name)
			continue
		}
		if err := o.show(o.session, info.Object, "drained"); err != nil {
			return err
		}
	}
	if len(pending) > 0 {
		fmt.Fprintln(o.ErrOut, "There are pending nodes to be drained:")
		for _, name := range pending {
			fmt.Fprintf(o.ErrOut, " %s\n", name)
		}
	}
	return utilerrors.NewAggregate(failed)
}

// empty evicts the pods of one node and waits until they are gone.
func (o *drainOptions) empty(node string) error {
	list, errs := o.drainer.GetPodsForDeletion(node)
	if errs != nil {
		return utilerrors.NewAggregate(errs)
	}
	if warnings := list.Warnings(); warnings != "" {
		o.warn(warnings)
	}
	if o.onlyPretend() {
		for _, pod := range list.Pods() {
			fmt.Fprintf(o.Out, "evicting pod %s/%s (dry run)\n", pod.Namespace, pod.Name)
		}
		return nil
	}
	err := o.drainer.DeleteOrEvictPods(list.Pods())
	if err == nil {
		return nil
	}
	left, errs := o.drainer.GetPodsForDeletion(node)
	if left != nil && len(left.Pods()) > 0 {
		fmt.Fprintf(o.ErrOut, "There are pending pods in node %q when an error occurred: %v\n", node, err)
		for _, pod := range left.Pods() {
			fmt.Fprintf(o.ErrOut, "pod/%s\n", pod.Name)
		}
	}
	return errors.Join(err, utilerrors.NewAggregate(errs))
}
