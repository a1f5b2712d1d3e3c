package kubectllite

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/resource"
	"k8s.io/client-go/dynamic"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
	"k8s.io/kubectl/pkg/rawhttp"
	"k8s.io/kubectl/pkg/scheme"
	kubectlutil "k8s.io/kubectl/pkg/util"
	"sigs.k8s.io/yaml"

	"github.com/coxswain-dev/coxswain/bounds"
)

const createManager = "kubectl-create"

type createOptions struct {
	*session
	writing
	files    resource.FilenameOptions
	selector string
	raw      string
	annotate bool
	edit     bool
}

func newCreate(s *session) *cobra.Command {
	o := &createOptions{session: s}
	cmd := &cobra.Command{
		Use:   "create -f FILENAME",
		Short: "Create a resource from a file or from stdin",
		Example: `  kubectl-lite create -f pod.yaml
  kubectl-lite create deployment web --image=nginx --replicas=3
  kubectl-lite create configmap settings --from-literal=mode=fast --from-file=conf/`,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageErrorf(cmd, "Unexpected args: %v", args)
			}
			if err := o.files.RequireFilenameOrKustomize(); err != nil {
				return err
			}
			if err := o.complete(cmd); err != nil {
				return err
			}
			return o.run(cmd)
		},
	}
	o.addFlags(cmd, createManager)
	cmd.Flags().BoolVar(&o.edit, "edit", false, "Edit the API resource before creating")
	cmd.Flags().StringVar(&o.raw, "raw", "", "Raw URI to POST to the server.  Uses the transport specified by the kubeconfig file.")
	cmdutil.AddValidateFlags(cmd)
	cmdutil.AddApplyAnnotationVarFlags(cmd, &o.annotate)
	cmdutil.AddFilenameOptionFlags(cmd, &o.files, "to use to create the resource")
	cmdutil.AddLabelSelectorFlagVar(cmd, &o.selector)
	addGenerators(cmd, s, slices.Concat(generators, policyGenerators, roleGenerators, clusterGenerators))
	secret := &cobra.Command{Use: "secret (docker-registry | generic | tls)", Short: "Create a secret using a specified subcommand", RunE: s.needsSubcommand}
	addGenerators(secret, s, secretGenerators)
	service := &cobra.Command{Use: "service", Aliases: []string{"svc"}, Short: "Create a service using a specified subcommand", RunE: s.needsSubcommand}
	addGenerators(service, s, serviceGenerators)
	cmd.AddCommand(secret, service, newCreateToken(s))
	return cmd
}

func (o *createOptions) run(cmd *cobra.Command) error {
	if o.raw != "" {
		if o.edit {
			return errors.New("--raw and --edit are mutually exclusive")
		}
		if len(o.files.Filenames) != 1 {
			return errors.New("--raw can only use a single local file or stdin")
		}
		client, err := o.RESTClient()
		if err != nil {
			return err
		}
		o.bodies.passOn.Store(true)
		return rawhttp.RawPost(client, o.verbatim, o.raw, o.files.Filenames[0])
	}
	namespace, explicit, err := o.namespace()
	if err != nil {
		return err
	}
	schema, err := o.Validator(o.validation)
	if err != nil {
		return err
	}
	create := o.create
	if o.edit {
		ctx, stop := signal.NotifyContext(contextOf(cmd), os.Interrupt, syscall.SIGTERM)
		defer stop()
		editor := &editOptions{session: o.session, writing: o.writing, subject: o.unborn()}
		create = func(info *resource.Info) error { return editor.edit(ctx, info) }
	}
	count := 0
	err = o.withFiles(o.NewBuilder().Unstructured().Schema(schema).ContinueOnError().
		NamespaceParam(namespace).DefaultNamespace(), explicit, &o.files).
		LabelSelectorParam(o.selector).
		Flatten().Do().
		Visit(func(info *resource.Info, err error) error {
			if err != nil {
				return err
			}
			count++
			return create(info)
		})
	if err == nil && count == 0 {
		return errors.New("no objects passed to create")
	}
	return err
}

func (o *createOptions) create(info *resource.Info) error {
	if err := o.post(info); err != nil {
		return err
	}
	return o.show(o.session, info.Object, "created")
}

// post sends the object, and has it as the server made it afterwards.
func (o *createOptions) post(info *resource.Info) error {
	if err := kubectlutil.CreateOrUpdateAnnotation(o.annotate, info.Object, scheme.DefaultJSONEncoder()); err != nil {
		return cmdutil.AddSourceToErr("creating", info.Source, err)
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

// unborn is what create --edit opens: a document that is created as it was saved.
func (o *createOptions) unborn() editSubject {
	return editSubject{
		open: func(info *resource.Info) ([]byte, error) { return yaml.Marshal(info.Object) },
		save: func(_ context.Context, _ *editOptions, info *resource.Info, edited []byte) (runtime.Object, error) {
			var content map[string]any
			edited, err := bounds.ExpandYAML(edited)
			if err == nil {
				err = yaml.Unmarshal(edited, &content)
			}
			if err != nil {
				return nil, fmt.Errorf("the edited file had a syntax error: %w", err)
			}
			obj := &unstructured.Unstructured{Object: content}
			if obj.GroupVersionKind() != info.Mapping.GroupVersionKind {
				return nil, errors.New("apiVersion and kind may not be changed")
			}
			info.Object, info.Name = obj, obj.GetName()
			err = o.post(info)
			return info.Object, err
		},
		done: "created",
		new:  true,
	}
}

// generator makes an object of one kind from flags: "create deployment web --image=nginx".
type generator struct {
	use     string
	aliases []string
	short   string
	// resource is where the object is posted to; clusterScoped, that it has no namespace.
	resource      schema.GroupVersionResource
	clusterScoped bool
	// failure begins the message where the server refuses: "failed to create deployment".
	failure string
	// flags declares what the generator takes and returns the function that makes the object once they are parsed.
	flags func(*pflag.FlagSet, *session) build
	// required are flags without which there is nothing to make.
	required []string
}

// build makes an object from its name and what follows "--" on the command line.
type build func(name string, command []string) (runtime.Object, error)

func addGenerators(parent *cobra.Command, s *session, all []generator) {
	for _, g := range all {
		parent.AddCommand(g.newCommand(s))
	}
}

type generateOptions struct {
	*session
	writing
	generator
	annotate bool
	// done is what happened, where that is not "created"; silent, that it is not told.
	done   string
	silent bool
}

func (g generator) newCommand(s *session) *cobra.Command {
	o := &generateOptions{session: s, generator: g}
	cmd := &cobra.Command{Use: g.use, Aliases: g.aliases, Short: g.short, DisableFlagsInUseLine: true}
	o.addFlags(cmd, createManager)
	cmdutil.AddValidateFlags(cmd)
	cmdutil.AddApplyAnnotationVarFlags(cmd, &o.annotate)
	make := g.flags(cmd.Flags(), s)
	for _, name := range g.required {
		if err := cmd.MarkFlagRequired(name); err != nil {
			panic(err) // the table names a flag that its function does not declare
		}
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		name, command, err := nameAndCommand(cmd, args)
		if err != nil {
			return err
		}
		if err := o.complete(cmd); err != nil {
			return err
		}
		obj, err := make(name, command)
		if err != nil {
			return err
		}
		return o.run(cmd.Context(), obj)
	}
	return cmd
}

func nameAndCommand(cmd *cobra.Command, args []string) (name string, command []string, err error) {
	n := cmd.ArgsLenAtDash()
	if n == -1 {
		n = len(args)
	}
	if n != 1 {
		return "", nil, usageErrorf(cmd, "exactly one NAME is required, got %d", n)
	}
	return args[0], args[1:], nil
}

func (o *generateOptions) run(ctx context.Context, obj runtime.Object) error {
	namespace, explicit, err := o.namespace()
	if err != nil {
		return err
	}
	if accessor, err := meta.Accessor(obj); err == nil && explicit && !o.clusterScoped {
		accessor.SetNamespace(namespace)
	}
	if err := kubectlutil.CreateOrUpdateAnnotation(o.annotate, obj, scheme.DefaultJSONEncoder()); err != nil {
		return err
	}
	if !o.onlyPretend() {
		if obj, err = o.post(ctx, namespace, obj); err != nil {
			if o.failure == "" {
				return err
			}
			return fmt.Errorf("%s: %v", o.failure, err)
		}
	}
	if o.silent {
		return nil
	}
	return o.show(o.session, obj, cmp.Or(o.done, "created"))
}

func (o *generateOptions) post(ctx context.Context, namespace string, obj runtime.Object) (runtime.Object, error) {
	client, err := o.DynamicClient()
	if err != nil {
		return nil, err
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	if err != nil {
		return nil, err
	}
	unstructured.RemoveNestedField(content, "status")
	options := metav1.CreateOptions{FieldManager: o.fieldManager, FieldValidation: o.validation}
	if o.dryRun == cmdutil.DryRunServer {
		options.DryRun = []string{metav1.DryRunAll}
	}
	var to dynamic.ResourceInterface = client.Resource(o.resource)
	if !o.clusterScoped {
		to = client.Resource(o.resource).Namespace(namespace)
	}
	return to.Create(ctx, &unstructured.Unstructured{Object: content}, options)
}
