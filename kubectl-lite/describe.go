package kubectllite

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/cli-runtime/pkg/resource"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
	"k8s.io/kubectl/pkg/describe"
)

type describeOptions struct {
	*session
	files         resource.FilenameOptions
	selector      string
	allNamespaces bool
	settings      describe.DescriberSettings
	eventsChosen  bool
}

func newDescribe(s *session) *cobra.Command {
	o := &describeOptions{session: s, settings: describe.DescriberSettings{ShowEvents: true, ChunkSize: cmdutil.DefaultChunkSize}}
	cmd := &cobra.Command{
		Use:   "describe (-f FILENAME | TYPE [NAME_PREFIX | -l label] | TYPE/NAME)",
		Short: "Show details of a specific resource or group of resources",
		Example: `  kubectl-lite describe node node-0
  kubectl-lite describe pods/web-7d9c
  kubectl-lite describe pods -l app=web`,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.eventsChosen = cmd.Flags().Changed("show-events")
			if len(args) == 0 && cmdutil.IsFilenameSliceEmpty(o.files.Filenames, o.files.Kustomize) {
				return fmt.Errorf("You must specify the type of resource to describe. %s\n", cmdutil.SuggestAPIResources(Name)) //nolint:staticcheck // kubectl's words
			}
			return o.run(args)
		},
	}
	cmdutil.AddFilenameOptionFlags(cmd, &o.files, "containing the resource to describe")
	cmdutil.AddLabelSelectorFlagVar(cmd, &o.selector)
	cmdutil.AddChunkSizeFlag(cmd, &o.settings.ChunkSize)
	cmd.Flags().BoolVarP(&o.allNamespaces, "all-namespaces", "A", false, "If present, list the requested object(s) across all namespaces. Namespace in current context is ignored even if specified with --namespace.")
	cmd.Flags().BoolVar(&o.settings.ShowEvents, "show-events", true, "If true, display events related to the described object.")
	return cmd
}

func (o *describeOptions) run(args []string) error {
	namespace, explicit, err := o.namespace()
	if err != nil {
		return err
	}
	found := o.withFiles(o.NewBuilder().Unstructured().ContinueOnError().
		NamespaceParam(namespace).DefaultNamespace().AllNamespaces(o.allNamespaces), explicit && !o.allNamespaces, &o.files).
		LabelSelectorParam(o.selector).
		ResourceTypeOrNameArgs(true, args...).
		RequestChunksOf(o.settings.ChunkSize).
		Flatten().Do()
	if err := found.Err(); err != nil {
		return err
	}
	infos, missing := found.Infos()
	if (missing != nil || len(infos) > 1) && !o.eventsChosen {
		o.settings.ShowEvents = false
	}
	if apierrors.IsNotFound(missing) && len(args) == 2 {
		return o.byPrefix(namespace, args[0], args[1], missing)
	}
	errs := newErrorSet(missing)
	written := 0
	for _, info := range infos {
		text, err := o.describe(info)
		if err != nil {
			errs.add(err)
			continue
		}
		if written > 0 {
			fmt.Fprint(o.Out, "\n\n")
		}
		fmt.Fprint(o.Out, text)
		written++
	}
	if len(infos) == 0 && missing == nil {
		o.sayNothingFound(namespace, !o.allNamespaces)
	}
	return errs.err()
}

func (o *describeOptions) describe(info *resource.Info) (string, error) {
	describer, err := describe.DescriberFn(o.Factory, info.ResourceMapping())
	if err != nil {
		return "", err
	}
	return describer.Describe(info.Namespace, info.Name, o.settings)
}

// byPrefix describes all objects whose name begins with the one asked for, which itself does not exist.
func (o *describeOptions) byPrefix(namespace, kind, prefix string, notFound error) error {
	infos, err := o.NewBuilder().Unstructured().
		NamespaceParam(namespace).DefaultNamespace().
		ResourceTypeOrNameArgs(true, kind).SingleResourceType().
		RequestChunksOf(o.settings.ChunkSize).
		Flatten().Do().Infos()
	if err != nil {
		return err
	}
	matched := false
	for _, info := range infos {
		if !strings.HasPrefix(info.Name, prefix) {
			continue
		}
		matched = true
		text, err := o.describe(info)
		if err != nil {
			return err
		}
		fmt.Fprintf(o.Out, "%s\n", text)
	}
	if !matched {
		return notFound
	}
	return nil
}

// sayNothingFound tells on the error stream that a list was empty, so that an empty output is never a riddle.
func (s *session) sayNothingFound(namespace string, inNamespace bool) {
	if inNamespace {
		fmt.Fprintf(s.ErrOut, "No resources found in %s namespace.\n", namespace)
		return
	}
	fmt.Fprintln(s.ErrOut, "No resources found")
}

// errorSet collects errors, each text once.
type errorSet struct {
	seen sets.Set[string]
	all  []error
}

func newErrorSet(first error) *errorSet {
	s := &errorSet{seen: sets.New[string]()}
	s.add(first)
	return s
}

func (s *errorSet) add(err error) {
	if err == nil || s.seen.Has(err.Error()) {
		return
	}
	s.seen.Insert(err.Error())
	s.all = append(s.all, err)
}

func (s *errorSet) err() error { return utilerrors.NewAggregate(s.all) }
