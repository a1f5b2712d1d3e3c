package kubectllite

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/resource"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
	"k8s.io/kubectl/pkg/rawhttp"
)

type deleteOptions struct {
	*session
	files          resource.FilenameOptions
	selector       string
	fieldSelector  string
	all            bool
	allNamespaces  bool
	ignoreNotFound bool
	now            bool
	force          bool
	wait           bool
	interactive    bool
	quiet          bool
	cascade        string
	grace          int
	timeout        time.Duration
	output         string
	raw            string

	dryRun      cmdutil.DryRunStrategy
	propagation metav1.DeletionPropagation
}

func newDelete(s *session) *cobra.Command {
	o := &deleteOptions{session: s}
	cmd := &cobra.Command{
		Use:   "delete ([-f FILENAME] | [-k DIRECTORY] | TYPE [(NAME | -l label | --all)])",
		Short: "Delete resources by file names, stdin, resources and names, or by resources and label selector",
		Example: `  kubectl-lite delete -f shop.yaml
  kubectl-lite delete pod/web-0 --now
  kubectl-lite delete pods,services -l app=web`,
		SuggestFor:            []string{"rm", "remove"},
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.complete(cmd); err != nil {
				return err
			}
			if o.raw != "" {
				return o.deleteRaw()
			}
			return o.run(cmd.Context(), args)
		},
	}
	o.addFlags(cmd)
	flags := cmd.Flags()
	flags.StringVar(&o.fieldSelector, "field-selector", "", "Selector (field query) to filter on, supports '=', '==', and '!='.(e.g. --field-selector key1=value1,key2=value2). The server only supports a limited number of field queries per type.")
	flags.BoolVar(&o.all, "all", false, "Delete all resources, in the namespace of the specified resource types.")
	flags.BoolVarP(&o.allNamespaces, "all-namespaces", "A", false, "If present, list the requested object(s) across all namespaces. Namespace in current context is ignored even if specified with --namespace.")
	flags.BoolVar(&o.ignoreNotFound, "ignore-not-found", false, `Treat "resource not found" as a successful delete. Defaults to "true" when --all is specified.`)
	flags.BoolVar(&o.now, "now", false, "If true, resources are signaled for immediate shutdown (same as --grace-period=1).")
	flags.BoolVarP(&o.interactive, "interactive", "i", false, "If true, delete resource only when user confirms.")
	flags.StringVar(&o.raw, "raw", "", "Raw URI to DELETE to the server.  Uses the transport specified by the kubeconfig file.")
	flags.StringVarP(&o.output, "output", "o", "", `Output mode. Use "-o name" for shorter output (resource/name).`)
	cmdutil.AddLabelSelectorFlagVar(cmd, &o.selector)
	cmdutil.AddFilenameOptionFlags(cmd, &o.files, "containing the resource to delete.")
	cmdutil.AddDryRunFlag(cmd)
	return cmd
}

// addFlags declares how to delete, which apply and replace have as well.
func (o *deleteOptions) addFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&o.cascade, "cascade", "background", `Must be "background", "orphan", or "foreground". Selects the deletion cascading strategy for the dependents (e.g. Pods created by a ReplicationController). Defaults to background.`)
	flags.Lookup("cascade").NoOptDefVal = "background"
	flags.IntVar(&o.grace, "grace-period", -1, "Period of time in seconds given to the resource to terminate gracefully. Ignored if negative. Set to 1 for immediate shutdown. Can only be set to 0 when --force is true (force deletion).")
	flags.BoolVar(&o.force, "force", false, "If true, immediately remove resources from API and bypass graceful deletion. Note that immediate deletion of some resources may result in inconsistency or data loss and requires confirmation.")
	flags.BoolVar(&o.wait, "wait", true, "If true, wait for resources to be gone before returning. This waits for finalizers.")
	flags.DurationVar(&o.timeout, "timeout", 0, "The length of time to wait before giving up on a delete, zero means determine a timeout from the size of the object")
}

func (o *deleteOptions) complete(cmd *cobra.Command) (err error) {
	if o.dryRun, err = cmdutil.GetDryRunStrategy(cmd); err != nil {
		return err
	}
	if o.propagation, err = propagationPolicy(o.cascade); err != nil {
		return err
	}
	if (o.all || o.selector != "" || o.fieldSelector != "") && !cmd.Flags().Changed("ignore-not-found") {
		o.ignoreNotFound = true
	}
	if o.now {
		if o.grace != -1 {
			return errors.New("--now and --grace-period cannot be specified together")
		}
		o.grace = 1
	}
	if o.grace == 0 && !o.force {
		o.grace = 1 // nobody loses data for a zero: --force says that it is meant
	}
	if o.force && o.grace < 0 {
		o.grace = 0
	}
	return o.validate()
}

func (o *deleteOptions) validate() error {
	switch {
	case o.output != "" && o.output != "name":
		return fmt.Errorf("unexpected -o output mode: %v. We only support '-o name'", o.output)
	case o.all && o.fieldSelector != "":
		return errors.New("cannot set --all and --field-selector at the same time")
	case o.grace > 0 && o.force:
		return errors.New("--force and --grace-period greater than 0 cannot be specified together")
	case o.grace == 0 && o.force:
		o.warn("Immediate deletion does not wait for confirmation that the running resource has been terminated. The resource may continue to run on the cluster indefinitely.")
	}
	if o.raw == "" {
		return nil
	}
	switch {
	case o.interactive:
		return errors.New("--interactive can not be used with --raw")
	case len(o.files.Filenames) > 1:
		return errors.New("--raw can only use a single local file or stdin")
	case o.output != "":
		return errors.New("--raw and --output are mutually exclusive")
	}
	if _, err := url.ParseRequestURI(o.raw); err != nil {
		return fmt.Errorf("--raw must be a valid URL path: %v", err)
	}
	return nil
}

func propagationPolicy(cascade string) (metav1.DeletionPropagation, error) {
	switch cascade {
	case "background", "true":
		return metav1.DeletePropagationBackground, nil
	case "foreground":
		return metav1.DeletePropagationForeground, nil
	case "orphan", "false":
		return metav1.DeletePropagationOrphan, nil
	}
	return "", fmt.Errorf(`invalid cascade value (%v). Must be "background", "foreground", or "orphan"`, cascade)
}

func (o *deleteOptions) deleteRaw() error {
	client, err := o.RESTClient()
	if err != nil {
		return err
	}
	body := ""
	if len(o.files.Filenames) == 1 {
		body = o.files.Filenames[0]
	}
	o.bodies.passOn.Store(true)
	return rawhttp.RawDelete(client, o.verbatim, o.raw, body)
}

func (o *deleteOptions) find(args []string) (found *resource.Result, explicit bool, err error) {
	namespace, explicit, err := o.namespace()
	if err != nil {
		return nil, false, err
	}
	found = o.withFiles(o.NewBuilder().Unstructured().ContinueOnError().
		NamespaceParam(namespace).DefaultNamespace(), explicit, &o.files).
		LabelSelectorParam(o.selector).
		FieldSelectorParam(o.fieldSelector).
		SelectAllParam(o.all).
		AllNamespaces(o.allNamespaces).
		ResourceTypeOrNameArgs(false, args...).RequireObject(false).
		Flatten().Do()
	if o.ignoreNotFound {
		found = found.IgnoreErrors(apierrors.IsNotFound)
	}
	return found, explicit, found.Err()
}

func (o *deleteOptions) run(ctx context.Context, args []string) error {
	found, explicit, err := o.find(args)
	if err != nil {
		return err
	}
	if o.interactive {
		infos, err := found.Infos()
		if err != nil {
			return err
		}
		if len(infos) == 0 {
			fmt.Fprintln(o.Out, "No resources found")
			return nil
		}
		if !o.confirmed(infos) {
			fmt.Fprintln(o.Out, "deletion is cancelled")
			return nil
		}
	}
	return o.deleteAll(ctx, found, explicit && !o.allNamespaces)
}

// deleteAll asks the server to delete everything, then waits until all of it is gone: the slow ones end side by side.
func (o *deleteOptions) deleteAll(ctx context.Context, objects resource.Visitor, warnClusterScope bool) error {
	var deleted []*deletedObject
	gone := 0
	err := objects.Visit(func(info *resource.Info, err error) error {
		if err != nil {
			return err
		}
		if warnClusterScope && info.Mapping.Scope.Name() == meta.RESTScopeNameRoot {
			o.warn("deleting cluster-scoped resources, not scoped to the provided namespace")
			warnClusterScope = false
		}
		if o.dryRun == cmdutil.DryRunClient {
			deleted = append(deleted, &deletedObject{info: info})
			o.tell(info)
			return nil
		}
		uid, err := o.deleteOne(info)
		if err != nil {
			if o.ignoreNotFound && apierrors.IsNotFound(err) {
				gone++
				return nil
			}
			return cmdutil.AddSourceToErr("deleting", info.Source, err)
		}
		deleted = append(deleted, &deletedObject{info: info, uid: uid})
		o.tell(info)
		return nil
	})
	if err != nil {
		return err
	}
	if gone+len(deleted) == 0 {
		fmt.Fprintln(o.Out, "No resources found")
		return nil
	}
	if !o.wait || o.dryRun != cmdutil.DryRunNone {
		return nil
	}
	return o.awaitAll(ctx, deleted)
}

// deletedObject is an object that the server promised to delete. Another object may take its name; the uid tells them apart.
type deletedObject struct {
	info *resource.Info
	uid  types.UID
}

func (o *deleteOptions) deleteOne(info *resource.Info) (types.UID, error) {
	options := &metav1.DeleteOptions{PropagationPolicy: &o.propagation}
	if o.grace >= 0 {
		seconds := int64(o.grace)
		options.GracePeriodSeconds = &seconds
	}
	answer, err := resource.NewHelper(info.Client, info.Mapping).
		DryRun(o.dryRun == cmdutil.DryRunServer).
		DeleteWithOptions(info.Namespace, info.Name, options)
	if err != nil {
		return "", err
	}
	return uidOf(answer), nil
}

// uidOf reads the uid from the answer to a delete: a Status with details, or the object while it is still going.
func uidOf(answer runtime.Object) types.UID {
	switch answer := answer.(type) {
	case *metav1.Status:
		if answer.Details != nil {
			return answer.Details.UID
		}
	case *unstructured.Unstructured:
		if answer.GetKind() == "Status" {
			uid, _, _ := unstructured.NestedString(answer.Object, "details", "uid")
			return types.UID(uid)
		}
		return answer.GetUID()
	}
	return ""
}

func (o *deleteOptions) awaitAll(ctx context.Context, deleted []*deletedObject) error {
	ctx, cancel := withOptionalTimeout(ctx, o.timeout)
	defer cancel()
	for _, d := range deleted {
		client, err := o.objectClient(d.info)
		if err != nil {
			return err
		}
		err = observe(ctx, client, d.info.Name, func(obj *unstructured.Unstructured) (bool, error) {
			return obj == nil || d.uid != "" && obj.GetUID() != d.uid, nil
		})
		if apierrors.IsForbidden(err) || apierrors.IsMethodNotSupported(err) || apierrors.IsNotFound(err) {
			continue // who may delete need not be allowed to look; a kind may go with its last object
		}
		if err != nil {
			if errors.Is(err, context.DeadlineExceeded) {
				return fmt.Errorf("timed out waiting for the condition on %s/%s", d.info.Mapping.Resource.Resource, d.info.Name)
			}
			return err
		}
	}
	return nil
}

// tell says that an object was deleted. There is no object to print, so this does what the name printer would.
func (o *deleteOptions) tell(info *resource.Info) {
	if o.quiet {
		return
	}
	kind := kindName(info.Mapping)
	if o.output == "name" {
		fmt.Fprintf(o.Out, "%s/%s\n", kind, info.Name)
		return
	}
	done := "deleted"
	if o.grace == 0 {
		done = "force deleted"
	}
	if info.Namespaced() {
		done += fmt.Sprintf(" from %s namespace", info.Namespace)
	}
	w := writing{dryRun: o.dryRun}
	fmt.Fprintf(o.Out, "%s %q %s\n", kind, info.Name, w.operation(done))
}

// kindName is how kubectl names an object's kind: "pod", "deployment.apps".
func kindName(mapping *meta.RESTMapping) string {
	kind := mapping.GroupVersionKind
	if kind.Group == "" {
		return strings.ToLower(kind.Kind)
	}
	return strings.ToLower(kind.Kind) + "." + kind.Group
}

func (o *deleteOptions) confirmed(infos []*resource.Info) bool {
	fmt.Fprintf(o.Out, "You are about to delete the following %d resource(s):\n", len(infos))
	for _, info := range infos {
		fmt.Fprintf(o.Out, "%s/%s\n", kindName(info.Mapping), info.Name)
	}
	fmt.Fprint(o.Out, "Do you want to continue? (y/N): ")
	line, _ := bufio.NewReader(o.In).ReadString('\n')
	return strings.EqualFold(strings.TrimSpace(line), "y")
}
