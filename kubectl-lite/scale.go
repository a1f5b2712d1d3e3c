package kubectllite

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/cli-runtime/pkg/resource"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
	"k8s.io/kubectl/pkg/scale"
)

type scaleOptions struct {
	*session
	writing
	files           resource.FilenameOptions
	selector        string
	all             bool
	replicas        int
	currentReplicas int
	resourceVersion string
	timeout         time.Duration
}

func newScale(s *session) *cobra.Command {
	o := &scaleOptions{session: s}
	cmd := &cobra.Command{
		Use:   "scale [--resource-version=version] [--current-replicas=count] --replicas=COUNT (-f FILENAME | TYPE NAME)",
		Short: "Set a new size for a deployment, replica set, or replication controller",
		Example: `  kubectl-lite scale --replicas=3 deployment/web
  kubectl-lite scale --current-replicas=2 --replicas=3 deployment/web`,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.complete(cmd); err != nil {
				return err
			}
			return o.run(args)
		},
	}
	o.addFlags(cmd, "kubectl-scale")
	cmd.Flags().MarkHidden("field-manager") //nolint:errcheck // the flag is declared in the line above
	cmd.Flags().BoolVar(&o.all, "all", false, "Select all resources in the namespace of the specified resource types")
	cmd.Flags().StringVar(&o.resourceVersion, "resource-version", "", "Precondition for resource version. Requires that the current resource version match this value in order to scale.")
	cmd.Flags().IntVar(&o.currentReplicas, "current-replicas", -1, "Precondition for current size. Requires that the current size of the resource match this value in order to scale. -1 (default) for no condition.")
	cmd.Flags().IntVar(&o.replicas, "replicas", 0, "The new desired number of replicas. Required.")
	cmd.MarkFlagRequired("replicas") //nolint:errcheck // the flag is declared in the line above
	cmd.Flags().DurationVar(&o.timeout, "timeout", 0, "The length of time to wait before giving up on a scale operation, zero means don't wait. Any other values should contain a corresponding time unit (e.g. 1s, 2m, 3h).")
	cmdutil.AddFilenameOptionFlags(cmd, &o.files, "identifying the resource to set a new size")
	cmdutil.AddLabelSelectorFlagVar(cmd, &o.selector)
	return cmd
}

func (o *scaleOptions) run(args []string) error {
	switch {
	case o.replicas < 0:
		return errors.New("The --replicas=COUNT flag is required, and COUNT must be greater than or equal to 0") //nolint:staticcheck // kubectl's words
	case o.currentReplicas < -1:
		return errors.New("The --current-replicas must specify an integer of -1 or greater") //nolint:staticcheck // kubectl's words
	}
	namespace, explicit, err := o.namespace()
	if err != nil {
		return err
	}
	found := o.withFiles(o.NewBuilder().Unstructured().ContinueOnError().
		NamespaceParam(namespace).DefaultNamespace(), explicit, &o.files).
		LabelSelectorParam(o.selector).
		ResourceTypeOrNameArgs(o.all, args...).
		Flatten().Do()
	if err := found.Err(); err != nil {
		return err
	}
	infos, missing := found.Infos()
	if len(infos) == 0 {
		if missing != nil {
			return missing
		}
		return errors.New("no objects passed to scale")
	}
	if o.resourceVersion != "" && len(infos) > 1 {
		return errors.New("cannot use --resource-version with multiple resources")
	}
	for _, info := range infos {
		if err := o.scale(info); err != nil {
			return err
		}
	}
	return missing
}

// scale resizes one object through its scale subresource, retrying where somebody else changed it in between.
func (o *scaleOptions) scale(info *resource.Info) error {
	size := int32(o.replicas)
	if !o.onlyPretend() {
		client, err := cmdutil.ScaleClientFn(o.Factory)
		if err != nil {
			return err
		}
		var expected *scale.ScalePrecondition
		if o.currentReplicas != -1 || o.resourceVersion != "" {
			expected = &scale.ScalePrecondition{Size: o.currentReplicas, ResourceVersion: o.resourceVersion}
		}
		var wait *scale.RetryParams
		if o.timeout != 0 && o.dryRun == cmdutil.DryRunNone {
			wait = scale.NewRetryParams(time.Second, o.timeout)
		}
		retry := scale.NewRetryParams(time.Second, 5*time.Minute)
		err = scale.NewScaler(client).Scale(info.Namespace, info.Name, uint(o.replicas), &size, expected, retry, wait,
			info.Mapping.Resource, o.dryRun == cmdutil.DryRunServer)
		if err != nil {
			return err
		}
	}
	if u, ok := info.Object.(*unstructured.Unstructured); ok {
		if err := unstructured.SetNestedField(u.Object, int64(size), "spec", "replicas"); err != nil {
			return fmt.Errorf("set replicas of %s: %w", info.Name, err)
		}
	}
	return o.show(o.session, info.Object, "scaled")
}
