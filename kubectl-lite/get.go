package kubectllite

import (
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/cli-runtime/pkg/resource"
	"k8s.io/client-go/rest"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
	"k8s.io/kubectl/pkg/rawhttp"

	"github.com/coxswain-dev/coxswain/kubectl-lite/session"
	"github.com/coxswain-dev/coxswain/kubectl-lite/terminal"
)

type getOptions struct {
	*session.Session
	format readFormat

	files          resource.FilenameOptions
	raw            string
	watch          bool
	watchOnly      bool
	inPlace        bool
	watchEvents    bool
	ignoreNotFound bool
	selector       string
	fieldSelector  string
	allNamespaces  bool
	serverPrint    bool
	chunkSize      int64
	subresource    string
	at             string
	revision       string // of --at
}

func newGet(s *session.Session) *cobra.Command {
	o := &getOptions{Session: s, chunkSize: cmdutil.DefaultChunkSize}
	cmd := &cobra.Command{
		Use:   "get (TYPE[.VERSION][.GROUP] [NAME | -l label] | TYPE[.VERSION][.GROUP]/NAME ...) [flags]",
		Short: "Display one or many resources",
		Example: `  kubectl-lite get pods -o wide
  kubectl-lite get deployments,services -n shop
  kubectl-lite get deploy/web -o jsonpath='{.status.readyReplicas}'
  kubectl-lite get pods -A --sort-by=.metadata.creationTimestamp
  kubectl-lite get pods -w
  kubectl-lite get deploy/web -o yaml --at 5m`,
		SuggestFor:            []string{"list", "ls"},
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.validate(cmd, args); err != nil {
				return err
			}
			switch {
			case o.raw != "":
				return o.getRaw()
			case o.at != "":
				return o.runAt(cmd, args)
			case o.watch || o.watchOnly:
				return o.follow(cmd.Context(), args)
			default:
				return o.run(args)
			}
		},
	}
	o.format.addFlags(cmd)
	flags := cmd.Flags()
	flags.StringVar(&o.raw, "raw", "",
		"Raw URI to request from the server.  Uses the transport specified by the kubeconfig file.")
	flags.BoolVarP(&o.watch, "watch", "w", false, "After listing/getting the requested object, watch for changes.")
	flags.BoolVar(&o.watchOnly, "watch-only", false,
		"Watch for changes to the requested object(s), without listing/getting first.")
	flags.BoolVar(&o.inPlace, "in-place", true, "With --watch on a terminal, keep one line per object up to date. "+
		"False prints every change as a line, as happens where the output is no terminal.")
	flags.BoolVar(&o.watchEvents, "output-watch-events", false, "Output watch event objects when --watch or "+
		"--watch-only is used. Existing objects are output as initial ADDED events.")
	flags.BoolVar(&o.ignoreNotFound, "ignore-not-found", false, "If set to true, suppresses NotFound error for "+
		"specific objects that do not exist. Using this flag with commands that query for collections of "+
		"resources has no effect when no resources are found.")
	flags.StringVar(&o.fieldSelector, "field-selector", "", "Selector (field query) to filter on, supports '=', "+
		"'==', and '!='.(e.g. --field-selector key1=value1,key2=value2). The server only supports a limited "+
		"number of field queries per type.")
	flags.BoolVarP(&o.allNamespaces, "all-namespaces", "A", false, "If present, list the requested object(s) "+
		"across all namespaces. Namespace in current context is ignored even if specified with --namespace.")
	flags.BoolVar(&o.serverPrint, "server-print", true,
		"If true, have the server return the appropriate table output. Supports extension APIs and CRDs.")
	flags.StringVar(&o.at, "at", "", "Show the objects of so long ago (5m), or of a time (RFC 3339), as far back "+
		"as the server's history goes. Takes kinds, or one object.")
	cmdutil.AddFilenameOptionFlags(cmd, &o.files, "identifying the resource to get from a server.")
	cmdutil.AddChunkSizeFlag(cmd, &o.chunkSize)
	cmdutil.AddLabelSelectorFlagVar(cmd, &o.selector)
	cmdutil.AddSubresourceFlags(cmd, &o.subresource, "If specified, gets the subresource of the requested object.")
	return s.Colored(cmd, terminal.PaintTable)
}

func (o *getOptions) validate(cmd *cobra.Command, args []string) error {
	if o.watchEvents && !o.watch && !o.watchOnly {
		return errors.New("--output-watch-events option can only be used with --watch or --watch-only")
	}
	if o.raw != "" {
		return o.validateRaw(args)
	}
	if err := o.format.validate(); err != nil {
		return err
	}
	if err := o.validateAt(); err != nil {
		return err
	}
	if o.format.sortBy != "" {
		switch {
		case o.watch:
			fmt.Fprintln(o.ErrOut, "warning: --watch requested, --sort-by will be ignored for watch events received")
		case o.watchOnly:
			fmt.Fprintln(o.ErrOut, "warning: --watch-only requested, --sort-by will be ignored")
		}
	}
	if len(args) == 0 && !o.watch && !o.watchOnly && cmdutil.IsFilenameSliceEmpty(o.files.Filenames,
		o.files.Kustomize) {
		fmt.Fprintf(o.ErrOut, "You must specify the type of resource to get. %s\n\n", cmdutil.SuggestAPIResources(Name))
		return session.UsageErrorf(cmd, "Required resource not specified.\nUse %q for a detailed description of that "+
			"resource (e.g. %s explain pods).",
			Name+" explain <resource>", Name)
	}
	return nil
}

func (o *getOptions) validateRaw(args []string) error {
	switch {
	case len(args) > 0:
		return errors.New("arguments may not be passed when --raw is specified")
	case o.watch || o.watchOnly || o.selector != "":
		return errors.New(
			"--raw may not be specified with other flags that filter the server request or alter the output")
	case o.format.output() != "":
		return errors.New("--raw and --output are mutually exclusive")
	}
	if _, err := url.ParseRequestURI(o.raw); err != nil {
		return fmt.Errorf("--raw must be a valid URL path: %v", err)
	}
	return nil
}

func (o *getOptions) getRaw() error {
	client, err := o.RESTClient()
	if err != nil {
		return err
	}
	o.PassOnAnswers()
	return rawhttp.RawGet(client, o.Verbatim, o.raw)
}

// query builds the request that get and get -w share.
func (o *getOptions) query(namespace string, explicit bool, args []string) *resource.Builder {
	chunk := o.chunkSize
	if o.format.sortBy != "" || o.revision != "" {
		chunk = 0
	}
	return o.WithFiles(o.NewBuilder().Unstructured().
		NamespaceParam(namespace).DefaultNamespace().AllNamespaces(o.allNamespaces), explicit &&
		!o.allNamespaces, &o.files).
		LabelSelectorParam(o.selector).
		FieldSelectorParam(o.fieldSelector).
		Subresource(o.subresource).
		RequestChunksOf(chunk).
		ResourceTypeOrNameArgs(true, args...).
		Latest().
		TransformRequests(o.askForTable, o.askForRevision)
}

// askForTable makes the server answer with a table.
func (o *getOptions) askForTable(req *rest.Request) {
	if !o.serverPrint || !o.format.human() {
		return
	}
	req.SetHeader("Accept", strings.Join([]string{
		"application/json;as=Table;v=v1;g=meta.k8s.io",
		"application/json;as=Table;v=v1beta1;g=meta.k8s.io",
		"application/json",
	}, ","))
	if o.format.sortBy != "" {
		req.Param("includeObject", "Object")
	}
}

func (o *getOptions) run(args []string) error {
	namespace, explicit, err := o.Namespace()
	if err != nil {
		return err
	}
	found := o.query(namespace, explicit, args).ContinueOnError().Flatten().Do()
	if o.ignoreNotFound {
		found.IgnoreErrors(apierrors.IsNotFound)
	}
	if err := found.Err(); err != nil {
		return err
	}
	if !o.format.human() {
		return o.printObjects(found)
	}
	if o.canStream(args) {
		return o.streamTable(namespace, found)
	}
	return o.printTables(namespace, found)
}

// printTables prints one table per kind, separated by empty lines.
func (o *getOptions) printTables(namespace string, found *resource.Result) error {
	infos, err := found.Infos()
	errs := session.NewErrorSet(err)
	if infos, err = sortInfos(infos, o.format.sortBy); err != nil {
		return err
	}
	out := &paragraphs{out: o.Out}
	tabs := printers.GetNewTabWriter(out)
	withKind := severalKinds(infos)
	inNamespace := !o.allNamespaces
	var printer printers.ResourcePrinter
	for i, info := range infos {
		inNamespace = inNamespace && info.Namespaced()
		if i == 0 || info.Mapping.Resource != infos[i-1].Mapping.Resource {
			if err := tabs.Flush(); err != nil {
				return err
			}
			tabs.SetRememberedWidths(nil)
			if i > 0 && !o.format.noHeaders {
				out.next()
			}
			printer = o.format.table(info.Mapping, o.allNamespaces && info.Namespaced(), withKind)
		}
		if err := printer.PrintObj(info.Object, tabs); err != nil {
			errs.Add(err)
		}
	}
	if err := tabs.Flush(); err != nil {
		return err
	}
	if out.written == 0 && !o.ignoreNotFound && errs.Err() == nil {
		sayNothingFound(o.Session, namespace, inNamespace)
	}
	return errs.Err()
}

// printObjects prints the object if exactly one was named, or a List of all objects.
func (o *getOptions) printObjects(found *resource.Result) error {
	var single bool
	infos, err := found.IntoSingleItemImplied(&single).Infos()
	if err != nil && single {
		return err
	}
	errs := session.NewErrorSet(err)
	if len(infos) == 0 && o.ignoreNotFound {
		return utilerrors.Reduce(errs.Err())
	}
	printer, err := o.format.objects()
	if err != nil {
		return err
	}
	single = single || len(o.files.Filenames) == 1 && session.IsURL(o.files.Filenames[0])
	var obj runtime.Object
	if single && len(infos) == 1 {
		obj = infos[0].Object
	} else {
		if infos, err = sortInfos(infos, o.format.sortBy); err != nil {
			return err
		}
		obj = listOf(infos)
	}
	errs.Add(printer.PrintObj(obj, o.OutFor(o.format.print)))
	return utilerrors.Reduce(errs.Err())
}

// listOf returns a v1 List of the objects, as kubectl prints objects of several kinds.
func listOf(infos []*resource.Info) *unstructured.UnstructuredList {
	list := &unstructured.UnstructuredList{Object: map[string]any{
		"kind":       "List",
		"apiVersion": "v1",
		"metadata":   map[string]any{"resourceVersion": ""},
	}}
	for _, info := range infos {
		switch obj := info.Object.(type) {
		case *unstructured.Unstructured:
			list.Items = append(list.Items, *obj)
		case *unstructured.UnstructuredList:
			list.Items = append(list.Items, obj.Items...)
		}
	}
	return list
}

func severalKinds(infos []*resource.Info) bool {
	for _, info := range infos {
		if info.Mapping.GroupVersionKind != infos[0].Mapping.GroupVersionKind {
			return true
		}
	}
	return false
}

// sayNothingFound explains an empty output, on the error stream.
func sayNothingFound(s *session.Session, namespace string, inNamespace bool) {
	if inNamespace {
		fmt.Fprintf(s.ErrOut, "No resources found in %s namespace.\n", namespace)
		return
	}
	fmt.Fprintln(s.ErrOut, "No resources found")
}
