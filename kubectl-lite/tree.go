package kubectllite

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/coxswain-dev/coxswain/kubectl-lite/diagnose"
)

type treeOptions struct {
	*session
	depth int
	watch bool
}

func newTree(s *session) *cobra.Command {
	o := &treeOptions{session: s}
	cmd := &cobra.Command{
		Use:   "tree (TYPE NAME | TYPE/NAME)",
		Short: "Show what an object owns, down to the pods, with readiness and age",
		Example: `  kubectl-lite tree deployment/web
  kubectl-lite tree cronjob nightly
  kubectl-lite tree deploy/web -w`,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usageErrorf(cmd, "an object is required")
			}
			return o.run(cmd.Context(), args)
		},
	}
	cmd.Flags().BoolVarP(&o.watch, "watch", "w", false, "Keep the tree up to date, on a terminal.")
	cmd.Flags().IntVar(&o.depth, "depth", 0, "How many generations to show, zero means all.")
	return s.colored(cmd, paintTable)
}

func (o *treeOptions) run(ctx context.Context, args []string) error {
	root, err := o.oneObject(args)
	if err != nil {
		return err
	}
	if o.watch {
		if !o.canLive() {
			return errors.New("--watch needs a terminal to draw on")
		}
		return o.follow(ctx, root)
	}
	all, err := o.descendants(ctx, root)
	if err != nil {
		return err
	}
	w := printers.GetNewTabWriter(o.Out)
	o.printTree(w, all, root)
	return w.Flush()
}

func (o *treeOptions) printTree(w io.Writer, all diagnose.Family, root *unstructured.Unstructured) {
	fmt.Fprintln(w, "NAME\tREADY\tSTATUS\tAGE")
	(&treePrinter{w: w, all: all, depth: o.depth, shown: map[types.UID]bool{}}).print(root, "", "", 1)
}

// oneObject is the one object that the arguments name.
func (s *session) oneObject(args []string) (*unstructured.Unstructured, error) {
	namespace, _, err := s.namespace()
	if err != nil {
		return nil, err
	}
	infos, err := s.NewBuilder().Unstructured().NamespaceParam(namespace).DefaultNamespace().
		ResourceTypeOrNameArgs(false, args...).Latest().Flatten().Do().Infos()
	if err != nil {
		return nil, err
	}
	if len(infos) != 1 {
		return nil, errors.New("exactly one object is required")
	}
	obj, ok := infos[0].Object.(*unstructured.Unstructured)
	if !ok {
		return nil, fmt.Errorf("unexpected type %T", infos[0].Object)
	}
	return obj, nil
}

// descendants reads every kind that may be owned and sorts the objects under their owners. What the user may
// not see is left out. An owner in no namespace may own objects anywhere.
func (s *session) descendants(ctx context.Context, root *unstructured.Unstructured) (diagnose.Family, error) {
	resources, err := s.ownable(root.GetNamespace() != "")
	if err != nil {
		return nil, err
	}
	objects, err := s.everything(ctx, resources, root.GetNamespace())
	return diagnose.Owned(objects), err
}

// everything lists the objects of some kinds in a namespace, or anywhere where that is "". It leaves out those
// that the user may not see.
func (s *session) everything(ctx context.Context, resources []schema.GroupVersionResource,
	namespace string) (found []*unstructured.Unstructured, err error) {
	client, err := s.quietClient()
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	var running sync.WaitGroup
	errs := newErrorSet(nil)
	for _, r := range resources {
		running.Go(func() {
			var from dynamic.ResourceInterface = client.Resource(r)
			if namespace != "" {
				from = client.Resource(r).Namespace(namespace)
			}
			list, err := from.List(ctx, metav1.ListOptions{ResourceVersion: "0"})
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				if !apierrors.IsForbidden(err) && !apierrors.IsNotFound(err) && !apierrors.IsMethodNotSupported(err) {
					errs.add(err)
				}
				return
			}
			for i := range list.Items {
				found = append(found, &list.Items[i])
			}
		})
	}
	running.Wait()
	return found, errs.err()
}

// quietClient reads kinds that the user did not ask for: a warning that one of them is deprecated would be noise.
func (s *session) quietClient() (dynamic.Interface, error) {
	config, err := s.ToRESTConfig()
	if err != nil {
		return nil, err
	}
	config = rest.CopyConfig(config)
	config.WarningHandler, config.WarningHandlerWithContext = rest.NoWarnings{}, nil
	return dynamic.NewForConfig(config)
}

// ownable are the resources that can be listed and whose objects may have owners.
func (s *session) ownable(namespacedOnly bool) ([]schema.GroupVersionResource, error) {
	client, err := s.ToDiscoveryClient()
	if err != nil {
		return nil, err
	}
	lists, err := client.ServerPreferredResources()
	if err != nil && !discovery.IsGroupDiscoveryFailedError(err) {
		return nil, err
	}
	var found []schema.GroupVersionResource
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return nil, err
		}
		for _, r := range list.APIResources {
			if r.Kind == "Event" || strings.Contains(r.Name, "/") || !slices.Contains(r.Verbs, "list") ||
				namespacedOnly && !r.Namespaced {
				continue
			}
			found = append(found, gv.WithResource(r.Name))
		}
	}
	return found, nil
}

// treePrinter prints a family. Each object's children are shown once: an object may have several owners, and owner
// references may form a cycle.
type treePrinter struct {
	w     io.Writer
	all   diagnose.Family
	depth int
	shown map[types.UID]bool
}

func (p *treePrinter) print(obj *unstructured.Unstructured, lead, below string, depth int) {
	ready, status := diagnose.Readiness(obj)
	fmt.Fprintf(p.w, "%s%s\t%s\t%s\t%s\n", lead, oneLine(obj.GetKind()+"/"+obj.GetName()), oneLine(ready),
		oneLine(status), since(obj.GetCreationTimestamp().Time))
	if p.depth > 0 && depth > p.depth || p.shown[obj.GetUID()] {
		return
	}
	p.shown[obj.GetUID()] = true
	children := p.all[obj.GetUID()]
	for i, child := range children {
		if i == len(children)-1 {
			p.print(child, below+"└─", below+"  ", depth+1)
			continue
		}
		p.print(child, below+"├─", below+"│ ", depth+1)
	}
}
