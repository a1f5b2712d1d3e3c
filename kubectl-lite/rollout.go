package kubectllite

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/cli-runtime/pkg/resource"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
	"k8s.io/kubectl/pkg/polymorphichelpers"

	"github.com/coxswain-dev/coxswain/kubectl-lite/session"
)

func newRollout(s *session.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rollout SUBCOMMAND",
		Short: "Manage the rollout of a resource",
		Example: `  kubectl-lite rollout status deployment/web
  kubectl-lite rollout undo deployment/web --to-revision=3
  kubectl-lite rollout restart deployment -l app=web`,

		RunE: s.NeedsSubcommand,
	}
	cmd.AddCommand(newRolloutStatus(s), newRolloutHistory(s), newRolloutUndo(s),
		newRolloutPatch(s, pause), newRolloutPatch(s, resume), newRolloutPatch(s, restart))
	return cmd
}

// workloads selects the objects of all rollout verbs: TYPE NAME, -f and -l.
type workloads struct {
	*session.Session
	files    resource.FilenameOptions
	selector string
}

func (o *workloads) addFlags(cmd *cobra.Command) {
	cmdutil.AddFilenameOptionFlags(cmd, &o.files, "identifying the resource to get from a server.")
	cmdutil.AddLabelSelectorFlagVar(cmd, &o.selector)
	cmd.DisableFlagsInUseLine = true
}

func (o *workloads) find(args []string) (found *resource.Result, namespace string, err error) {
	if len(args) == 0 && cmdutil.IsFilenameSliceEmpty(o.files.Filenames, o.files.Kustomize) {
		return nil, "", errors.New("required resource not specified")
	}
	namespace, explicit, err := o.Namespace()
	if err != nil {
		return nil, "", err
	}
	found = o.WithFiles(o.Typed().
		NamespaceParam(namespace).DefaultNamespace().
		LabelSelectorParam(o.selector), explicit, &o.files).
		ResourceTypeOrNameArgs(true, args...).
		ContinueOnError().Latest().Flatten().Do()
	return found, namespace, found.Err()
}

type rolloutStatusOptions struct {
	workloads
	watch    bool
	revision int64
	timeout  time.Duration
}

func newRolloutStatus(s *session.Session) *cobra.Command {
	o := &rolloutStatusOptions{workloads: workloads{Session: s}}
	cmd := &cobra.Command{
		Use:   "status (TYPE NAME | TYPE/NAME) [flags]",
		Short: "Show the status of the rollout",
		RunE:  func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args) },
	}
	o.addFlags(cmd)
	cmd.Flags().BoolVarP(&o.watch, "watch", "w", true, "Watch the status of the rollout until it's done.")
	cmd.Flags().Int64Var(&o.revision, "revision", 0,
		"Pin to a specific revision for showing its status. Defaults to 0 (last revision).")
	cmd.Flags().DurationVar(&o.timeout, "timeout", 0, "The length of time to wait before ending watch, zero means "+
		"never. Any other values should contain a corresponding time unit (e.g. 1s, 2m, 3h).")
	return cmd
}

func (o *rolloutStatusOptions) run(ctx context.Context, args []string) error {
	if o.revision < 0 {
		return fmt.Errorf("revision must be a positive integer: %v", o.revision)
	}
	found, namespace, err := o.find(args)
	if err != nil {
		return err
	}
	matched := false
	err = found.Visit(func(info *resource.Info, err error) error {
		if err != nil {
			return err
		}
		matched = true
		return o.follow(ctx, info)
	})
	if err == nil && !matched {
		sayNothingFound(o.Session, namespace, true)
	}
	return err
}

// follow prints the progress of a rollout at every change, until it is done. It is an error if the rollout exceeds its
// progress deadline, or if the object is deleted.
func (o *rolloutStatusOptions) follow(ctx context.Context, info *resource.Info) error {
	viewer, err := polymorphichelpers.StatusViewerFn(info.ResourceMapping())
	if err != nil {
		return err
	}
	client, err := objectClient(o.Session, info)
	if err != nil {
		return err
	}
	follow := func(ctx context.Context, show func(*unstructured.Unstructured, string)) error {
		ctx, cancel := withOptionalTimeout(ctx, o.timeout)
		defer cancel()
		seen := false
		err := observe(ctx, client, info.Name, func(obj *unstructured.Unstructured) (bool, error) {
			if obj == nil {
				return false, errors.New("object has been deleted")
			}
			seen = true
			status, done, err := viewer.Status(obj, o.revision)
			if err != nil {
				return false, err
			}
			show(obj, status)
			return done || !o.watch, nil
		})
		if errors.Is(err, context.DeadlineExceeded) && seen {
			return errTimedOut
		}
		return err
	}
	if o.watch && o.CanLive() {
		return o.followLive(ctx, info.Namespace, follow)
	}
	return follow(ctx, func(_ *unstructured.Unstructured, status string) { fmt.Fprint(o.Out, status) })
}

type rolloutHistoryOptions struct {
	workloads
	writing
	revision int64
}

func newRolloutHistory(s *session.Session) *cobra.Command {
	o := &rolloutHistoryOptions{workloads: workloads{Session: s}}
	cmd := &cobra.Command{
		Use:   "history (TYPE NAME | TYPE/NAME) [flags]",
		Short: "View rollout history",
		RunE:  func(_ *cobra.Command, args []string) error { return o.run(args) },
	}
	o.workloads.addFlags(cmd)
	o.addPrintFlags(cmd)
	cmd.Flags().Int64Var(&o.revision, "revision", 0, "See the details, including podTemplate of the revision specified")
	return cmd
}

func (o *rolloutHistoryOptions) run(args []string) error {
	if o.revision < 0 {
		return fmt.Errorf("revision must be a positive integer: %v", o.revision)
	}
	found, _, err := o.find(args)
	if err != nil {
		return err
	}
	return found.Visit(func(info *resource.Info, err error) error {
		if err != nil {
			return err
		}
		viewer, err := polymorphichelpers.HistoryViewerFn(o.Factory, info.ResourceMapping())
		if err != nil {
			return err
		}
		if *o.print.OutputFormat != "" {
			return o.printRevisions(viewer, info)
		}
		text, err := viewer.ViewHistory(info.Namespace, info.Name, o.revision)
		if err != nil {
			return err
		}
		heading := ""
		if o.revision > 0 {
			heading = fmt.Sprintf("with revision #%d", o.revision)
		}
		return o.show(o.Session, info.Object, heading+"\n"+text)
	})
}

// printRevisions prints the objects with the revisions, the oldest first, or only the one of --revision.
func (o *rolloutHistoryOptions) printRevisions(viewer polymorphichelpers.HistoryViewer, info *resource.Info) error {
	history, err := viewer.GetHistory(info.Namespace, info.Name)
	if err != nil {
		return err
	}
	var revisions []int64
	for revision := range history {
		if o.revision == 0 || revision == o.revision {
			revisions = append(revisions, revision)
		}
	}
	if o.revision > 0 && len(revisions) == 0 {
		return errors.New("unable to find the specified revision")
	}
	slices.Sort(revisions)
	for _, revision := range revisions {
		if err := o.show(o.Session, history[revision], ""); err != nil {
			return err
		}
	}
	return nil
}

type rolloutUndoOptions struct {
	workloads
	writing
	revision int64
}

func newRolloutUndo(s *session.Session) *cobra.Command {
	o := &rolloutUndoOptions{workloads: workloads{Session: s}}
	cmd := &cobra.Command{
		Use:   "undo (TYPE NAME | TYPE/NAME) [flags]",
		Short: "Undo a previous rollout",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.complete(cmd); err != nil {
				return err
			}
			return o.run(args)
		},
	}
	o.workloads.addFlags(cmd)
	o.addPrintFlags(cmd)
	cmdutil.AddDryRunFlag(cmd)
	cmd.Flags().Int64Var(&o.revision, "to-revision", 0, "The revision to rollback to. Default to 0 (last revision).")
	return cmd
}

func (o *rolloutUndoOptions) run(args []string) error {
	found, _, err := o.find(args)
	if err != nil {
		return err
	}
	return found.Visit(func(info *resource.Info, err error) error {
		if err != nil {
			return err
		}
		if err := o.warnIfApplied(info); err != nil {
			return err
		}
		rollbacker, err := polymorphichelpers.RollbackerFn(o.Factory, info.ResourceMapping())
		if err != nil {
			return err
		}
		result, err := rollbacker.Rollback(info.Object, nil, o.revision, o.dryRun)
		if err != nil {
			return err
		}
		return o.show(o.Session, info.Object, result)
	})
}

// warnIfApplied warns that the rollback does not change the document with which the next apply compares.
func (o *rolloutUndoOptions) warnIfApplied(info *resource.Info) error {
	accessor, err := meta.Accessor(info.Object)
	if err != nil {
		return err
	}
	if _, applied := accessor.GetAnnotations()[corev1.LastAppliedConfigAnnotation]; applied {
		fmt.Fprintf(o.ErrOut, "Warning: resource %s was previously managed with '%s apply'. Rolling back will not "+
			"update the %s annotation, which may cause unexpected behavior on future '%[2]s apply' operations. "+
			"Consider using '%[2]s apply' with your previous configuration file instead.\n",
			info.ObjectName(), Name, corev1.LastAppliedConfigAnnotation)
	}
	return nil
}
