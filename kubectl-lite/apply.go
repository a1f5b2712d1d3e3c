package kubectllite

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/resource"
	"k8s.io/kubectl/pkg/cmd/apply"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
	kubectlutil "k8s.io/kubectl/pkg/util"

	"github.com/coxswain-dev/coxswain/kubectl-lite/session"
)

// The field managers of kubectl's apply. The owner of a field is known by its manager's name: with the same names,
// kubectl and kubectl-lite can apply to the same object in turns.
const (
	clientSideManager = "kubectl-client-side-apply"
	serverSideManager = "kubectl"
)

type applyOptions struct {
	*session.Session
	writing
	deletion       deletion
	files          resource.FilenameOptions
	selector       string
	overwrite      bool
	serverSide     bool
	forceConflicts bool
	subresource    string
	record         *genericclioptions.RecordFlags
	recorder       genericclioptions.Recorder
	prune          pruning
}

func newApply(s *session.Session) *cobra.Command {
	o := &applyOptions{Session: s, record: genericclioptions.NewRecordFlags()}
	cmd := &cobra.Command{
		Use:   "apply (-f FILENAME | -k DIRECTORY)",
		Short: "Apply a configuration to a resource by file name or stdin",
		Example: `  kubectl-lite apply -f shop.yaml
  kubectl-lite apply -R -f manifests/
  cat pod.yaml | kubectl-lite apply -f -
  kubectl-lite apply --server-side -f shop.yaml`,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return session.UsageErrorf(cmd, "Unexpected args: %v", args)
			}
			if err := o.complete(cmd); err != nil {
				return err
			}
			return o.run(cmd.Context())
		},
	}
	o.addFlags(cmd, clientSideManager)
	o.deletion.addFlags(cmd)
	cmd.Flags().BoolVar(&o.overwrite, "overwrite", true, "Automatically resolve conflicts between the modified "+
		"and live configuration by using values from the modified configuration")
	// The flag has no effect: patches of built-in kinds are made by their Go types, which equal the server's schema.
	cmd.Flags().Bool("openapi-patch", true, "If true, use openapi to calculate diff when the openapi presents and "+
		"the resource can be found in the openapi spec. Otherwise, fall back to use baked-in types.")
	o.record.AddFlags(cmd)
	cmdutil.AddValidateFlags(cmd)
	cmdutil.AddServerSideApplyFlags(cmd)
	cmdutil.AddFilenameOptionFlags(cmd, &o.files, "that contains the configuration to apply")
	cmdutil.AddLabelSelectorFlagVar(cmd, &o.selector)
	cmdutil.AddSubresourceFlags(cmd, &o.subresource,
		"If specified, apply will operate on the subresource of the requested "+
			"object.  Only allowed when using --server-side.")
	o.prune.addFlags(cmd)
	for _, sub := range []mounted{apply.NewCmdApplyViewLastApplied, apply.NewCmdApplySetLastApplied,
		apply.NewCmdApplyEditLastApplied} {
		cmd.AddCommand(mount(sub)(s))
	}
	return cmd
}

func (o *applyOptions) complete(cmd *cobra.Command) (err error) {
	if err := o.writing.complete(cmd); err != nil {
		return err
	}
	o.record.Complete(cmd)
	if o.recorder, err = o.record.ToRecorder(); err != nil {
		return err
	}
	o.serverSide, o.forceConflicts = cmdutil.GetServerSideApplyFlag(cmd), cmdutil.GetForceConflictsFlag(cmd)
	if o.serverSide && !cmd.Flags().Changed("field-manager") {
		o.fieldManager = serverSideManager
	}
	if err := o.deletion.complete(); err != nil {
		return err
	}
	switch {
	case o.forceConflicts && !o.serverSide:
		return errors.New("--force-conflicts only works with --server-side")
	case o.dryRun == cmdutil.DryRunClient && o.serverSide:
		return errors.New("--dry-run=client doesn't work with --server-side (did you mean --dry-run=server instead?)")
	case o.deletion.force && o.serverSide:
		return errors.New("--force cannot be used with --server-side")
	case o.deletion.force && o.dryRun == cmdutil.DryRunServer:
		return errors.New("--dry-run=server cannot be used with --force")
	case o.subresource != "" && !o.serverSide:
		return errors.New("--subresource can only be specified for --server-side")
	}
	if err := o.files.RequireFilenameOrKustomize(); err != nil {
		return err
	}
	return o.prune.validate(o.selector, o.serverSide)
}

func (o *applyOptions) run(ctx context.Context) error {
	infos, namespace, err := o.documents()
	if len(infos) == 0 && err == nil {
		return errors.New("no objects passed to apply")
	}
	errs := []error{err} // one for each object, even with equal texts
	applied := newAppliedSet(namespace)
	var shown []runtime.Object
	for _, info := range infos {
		done, err := o.apply(ctx, info)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		applied.add(info)
		o.warnIfDeleting(info)
		if *o.print.OutputFormat != "" && *o.print.OutputFormat != "name" {
			shown = append(shown, info.Object)
			continue
		}
		errs = append(errs, o.show(o.Session, info.Object, done))
	}
	errs = append(errs, o.showTogether(shown))
	if all := utilerrors.NewAggregate(errs); all != nil {
		if len(all.Errors()) == 1 {
			return all.Errors()[0]
		}
		return all
	}
	return o.prune.run(ctx, o, applied)
}

func (o *applyOptions) documents() (infos []*resource.Info, namespace string, err error) {
	namespace, explicit, err := o.Namespace()
	if err != nil {
		return nil, "", err
	}
	schema, err := o.Validator(o.validation)
	if err != nil {
		return nil, "", err
	}
	found := o.WithFiles(o.NewBuilder().Unstructured().Schema(schema).ContinueOnError().
		NamespaceParam(namespace).DefaultNamespace(), explicit, &o.files).
		LabelSelectorParam(o.selector).
		Flatten().Do()
	infos, err = found.Infos()
	if !explicit {
		namespace = ""
	}
	return infos, namespace, err
}

// showTogether prints the applied objects in the format of -o: one object alone, several as a List.
func (o *applyOptions) showTogether(objs []runtime.Object) error {
	switch len(objs) {
	case 0:
		return nil
	case 1:
		return o.show(o.Session, objs[0], "")
	}
	list := &unstructured.UnstructuredList{Object: map[string]any{
		"kind": "List", "apiVersion": "v1", "metadata": map[string]any{},
	}}
	for _, obj := range objs {
		if u, ok := obj.(*unstructured.Unstructured); ok {
			list.Items = append(list.Items, *u)
		}
	}
	return o.show(o.Session, list, "")
}

// apply applies one document and returns a word for the change. Afterwards info holds the object of the server.
func (o *applyOptions) apply(ctx context.Context, info *resource.Info) (done string, err error) {
	if accessor, err := meta.Accessor(info.Object); err == nil && info.Name == "" && accessor.GetGenerateName() != "" {
		return "", fmt.Errorf("from %s: cannot use generate name with apply", accessor.GetGenerateName())
	}
	if err := o.recorder.Record(info.Object); err != nil {
		return "", fmt.Errorf("record the command in %s: %w", info.ObjectName(), err)
	}
	if o.serverSide {
		return "serverside-applied", o.applyOnServer(info)
	}
	modified, err := kubectlutil.GetModifiedConfiguration(info.Object, true, unstructured.UnstructuredJSONScheme)
	if err != nil {
		return "", cmdutil.AddSourceToErr(fmt.Sprintf("retrieving modified configuration from:\n%s\nfor:",
			info.String()), info.Source, err)
	}
	document := info.Object.DeepCopyObject()
	if err := info.Get(); err != nil {
		if !apierrors.IsNotFound(err) {
			return "", cmdutil.AddSourceToErr(fmt.Sprintf("retrieving current configuration of:\n%s\nfrom server for:",
				info.String()), info.Source, err)
		}
		info.Object = document
		return "created", o.create(info)
	}
	return o.patch(ctx, info, modified)
}

// create creates the object with its document in an annotation, for the comparison of the next apply.
func (o *applyOptions) create(info *resource.Info) error {
	if err := kubectlutil.CreateApplyAnnotation(info.Object, unstructured.UnstructuredJSONScheme); err != nil {
		return cmdutil.AddSourceToErr("creating", info.Source, err)
	}
	if u, ok := info.Object.(*unstructured.Unstructured); ok {
		// A null means "delete this field" in a patch; a new object has no field that it could delete.
		dropNulls(u.Object)
	}
	if o.onlyPretend() {
		return nil
	}
	obj, err := o.helper(info).Create(info.Namespace, true, info.Object)
	if err != nil {
		return cmdutil.AddSourceToErr("creating", info.Source, err)
	}
	return info.Refresh(obj, true)
}

// dropNulls removes the fields of a JSON value that are null.
func dropNulls(value any) {
	switch value := value.(type) {
	case map[string]any:
		for k, v := range value {
			if v == nil {
				delete(value, k)
				continue
			}
			dropNulls(v)
		}
	case []any:
		for _, v := range value {
			dropNulls(v)
		}
	}
}

// patch changes an existing object to the modified document.
func (o *applyOptions) patch(ctx context.Context, info *resource.Info, modified []byte) (done string, err error) {
	o.warnIfNeverApplied(info)
	p := &applyPatch{helper: o.helper(info), info: info, modified: modified, overwrite: o.overwrite}
	patch, obj, err := p.send(o.onlyPretend())
	if o.deletion.force && (apierrors.IsConflict(err) || apierrors.IsInvalid(err)) {
		obj, err = o.deleteAndCreate(ctx, info, modified)
	}
	if err != nil {
		return "", cmdutil.AddSourceToErr(fmt.Sprintf("applying patch:\n%s\nto:\n%v\nfor:", patch, info),
			info.Source, err)
	}
	if err := info.Refresh(obj, true); err != nil {
		return "", err
	}
	if string(patch) == "{}" {
		return "unchanged", nil
	}
	return "configured", nil
}

// deleteAndCreate implements --force: it replaces an object whose change the server rejects (an immutable field).
func (o *applyOptions) deleteAndCreate(ctx context.Context, info *resource.Info,
	modified []byte) (runtime.Object, error) {
	if err := o.deletion.remove(ctx, o.Session, info); err != nil {
		return nil, err
	}
	obj, _, err := unstructured.UnstructuredJSONScheme.Decode(modified, nil, nil)
	if err != nil {
		return nil, err
	}
	created, err := o.helper(info).Create(info.Namespace, true, obj)
	if err == nil {
		return created, nil
	}
	// If the new object cannot be created, restore the old one.
	if restored, again := o.helper(info).Create(info.Namespace, true, info.Object); again == nil {
		return restored, fmt.Errorf("replace by force, the former object was restored: %w", err)
	}
	return nil, err
}

func (o *applyOptions) warnIfNeverApplied(info *resource.Info) {
	accessor, err := meta.Accessor(info.Object)
	if err != nil {
		return
	}
	if _, ok := accessor.GetAnnotations()[lastApplied]; !ok {
		fmt.Fprintf(o.ErrOut, "Warning: resource %[1]s is missing the %[2]s annotation which is required by %[3]s "+
			"apply. %[3]s apply should only be used on resources created declaratively by either %[3]s create "+
			"--save-config or %[3]s apply. The missing annotation will be patched automatically.\n",
			info.ObjectName(), lastApplied, Name)
	}
}

func (o *applyOptions) warnIfDeleting(info *resource.Info) {
	accessor, err := meta.Accessor(info.Object)
	if err != nil || accessor.GetDeletionTimestamp() == nil {
		return
	}
	fmt.Fprintf(o.ErrOut, "Warning: Detected changes to resource %s which is currently being deleted.\n",
		accessor.GetName())
}

// applyOnServer implements --server-side: the server merges, and tracks the owner of every field.
func (o *applyOptions) applyOnServer(info *resource.Info) error {
	document, err := runtime.Encode(unstructured.UnstructuredJSONScheme, info.Object)
	if err != nil {
		return cmdutil.AddSourceToErr("serverside-apply", info.Source, err)
	}
	send := func() (runtime.Object, error) {
		return o.helper(info).WithSubresource(o.subresource).Patch(info.Namespace, info.Name, types.ApplyPatchType,
			document,
			&metav1.PatchOptions{Force: &o.forceConflicts})
	}
	obj, err := send()
	switch {
	case apierrors.IsConflict(err):
		return fmt.Errorf("%v\n%s", err, conflictAdvice)
	case apierrors.ReasonForError(err) == metav1.StatusReasonUnsupportedMediaType:
		return fmt.Errorf("Server-side apply not available on the server: (%v)", err) //nolint:staticcheck // kubectl's words
	case err != nil:
		return err
	}
	if err := info.Refresh(obj, true); err != nil || o.dryRun != cmdutil.DryRunNone {
		return err
	}
	moved, err := o.adoptClientSideFields(info)
	if err != nil {
		fmt.Fprintf(o.ErrOut, "Warning: server-side apply could not take over the fields of client-side apply: %v\n",
			err)
		return nil
	}
	if moved {
		// Now that its fields belong to this manager, a second apply removes the ones that the document dropped.
		if obj, err = send(); err != nil {
			return err
		}
		return info.Refresh(obj, true)
	}
	return nil
}

// conflictAdvice follows the list of fields that other managers own.
const conflictAdvice = `Please review the fields above--they currently have other managers. Here
are the ways you can resolve this warning:
* If you intend to manage all of these fields, please re-run the apply
  command with the ` + "`--force-conflicts`" + ` flag.
* If you do not intend to manage all of the fields, please edit your
  manifest to remove references to the fields that should keep their
  current managers.
* You may co-own fields by updating your manifest to match the existing
  value; in this case, you'll become the manager if the other manager(s)
  stop managing the field (remove it from their configuration).
See https://kubernetes.io/docs/reference/using-api/server-side-apply/#conflicts`
