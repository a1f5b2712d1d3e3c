package kubectllite

import (
	"context"
	"errors"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/resource"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
	"k8s.io/kubectl/pkg/scheme"
	kubectlutil "k8s.io/kubectl/pkg/util"
)

type replaceOptions struct {
	*session
	writing
	deletion    deleteOptions
	files       resource.FilenameOptions
	annotate    bool
	subresource string
}

func newReplace(s *session) *cobra.Command {
	o := &replaceOptions{session: s, deletion: deleteOptions{session: s}}
	cmd := &cobra.Command{
		Use:   "replace -f FILENAME",
		Short: "Replace a resource by file name or stdin",
		Example: `  kubectl-lite replace -f pod.yaml
  kubectl-lite replace --force -f pod.yaml`,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if err := o.complete(cmd); err != nil {
				return err
			}
			if o.deletion.propagation, err = propagationPolicy(o.deletion.cascade); err != nil {
				return err
			}
			if err := o.files.RequireFilenameOrKustomize(); err != nil {
				return err
			}
			if len(args) > 0 {
				return usageErrorf(cmd, "Unexpected args: %v", args)
			}
			return o.run(cmd.Context())
		},
	}
	o.addFlags(cmd, "kubectl-replace")
	o.deletion.addFlags(cmd)
	cmdutil.AddValidateFlags(cmd)
	cmdutil.AddApplyAnnotationVarFlags(cmd, &o.annotate)
	cmdutil.AddFilenameOptionFlags(cmd, &o.files, "The files that contain the configurations to replace.")
	addSubresourceFlag(cmd, &o.subresource, "If specified, replace will operate on the subresource of the requested object.")
	return cmd
}

func (o *replaceOptions) run(ctx context.Context) error {
	namespace, explicit, err := o.namespace()
	if err != nil {
		return err
	}
	schema, err := o.Validator(o.validation)
	if err != nil {
		return err
	}
	infos, err := o.withFiles(o.NewBuilder().Unstructured().Schema(schema).ContinueOnError().
		NamespaceParam(namespace).DefaultNamespace(), explicit, &o.files).Flatten().Do().Infos()
	if err != nil {
		return err
	}
	if len(infos) == 0 {
		return errors.New("no objects passed to replace")
	}
	if o.deletion.force {
		if err := o.deleteFirst(ctx, infos); err != nil {
			return err
		}
	}
	for _, info := range infos {
		if err := o.replace(info); err != nil {
			return err
		}
	}
	return nil
}

// deleteFirst is --force: what is there goes, and what was not there is no fault.
func (o *replaceOptions) deleteFirst(ctx context.Context, infos []*resource.Info) error {
	d := &o.deletion
	d.dryRun, d.ignoreNotFound = o.dryRun, true
	if d.grace == 0 {
		d.grace = 1 // the name must be free before the object is made anew
	}
	present := resource.InfoListVisitor(nil)
	for _, info := range infos {
		there := *info
		switch err := there.Get(); {
		case err == nil:
			present = append(present, &there)
		case !apierrors.IsNotFound(err):
			return err
		}
	}
	if len(present) == 0 {
		return nil
	}
	return d.deleteAll(ctx, present, false)
}

func (o *replaceOptions) replace(info *resource.Info) error {
	if err := kubectlutil.CreateOrUpdateAnnotation(o.annotate, info.Object, scheme.DefaultJSONEncoder()); err != nil {
		return cmdutil.AddSourceToErr("replacing", info.Source, err)
	}
	if o.onlyPretend() {
		return o.show(o.session, info.Object, "replaced")
	}
	var obj runtime.Object
	var err error
	if o.deletion.force && o.dryRun == cmdutil.DryRunNone {
		obj, err = o.helper(info).Create(info.Namespace, true, info.Object)
	} else {
		obj, err = o.helper(info).WithSubresource(o.subresource).Replace(info.Namespace, info.Name, true, info.Object)
	}
	if err != nil {
		return cmdutil.AddSourceToErr("replacing", info.Source, err)
	}
	return o.show(o.session, obj, "replaced")
}
