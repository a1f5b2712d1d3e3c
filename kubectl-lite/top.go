package kubectllite

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/client-go/dynamic"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
)

var metricsAPI = schema.GroupVersion{Group: "metrics.k8s.io", Version: "v1beta1"}

func newTop(s *session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "top", Short: "Display resource (CPU/memory) usage", Args: unknownCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newTopOf(s, "pods", "pod", "po"), newTopOf(s, "nodes", "node", "no"))
	return cmd
}

type topOptions struct {
	*session
	resource      string
	selector      string
	sortBy        string
	allNamespaces bool
	noHeaders     bool
}

func newTopOf(s *session, resource, verb string, aliases ...string) *cobra.Command {
	o := &topOptions{session: s, resource: resource}
	cmd := &cobra.Command{
		Use: verb + " [NAME | -l label]", Aliases: append(aliases, resource), Short: "Display resource (CPU/memory) usage of " + resource,
		DisableFlagsInUseLine: true,
		RunE:                  func(cmd *cobra.Command, args []string) error { return o.run(contextOf(cmd), args) },
	}
	cmdutil.AddLabelSelectorFlagVar(cmd, &o.selector)
	cmd.Flags().StringVar(&o.sortBy, "sort-by", "", "If non-empty, sort the list by this field: cpu or memory.")
	cmd.Flags().BoolVar(&o.noHeaders, "no-headers", false, "If present, print output without headers")
	if resource == "pods" {
		cmd.Flags().BoolVarP(&o.allNamespaces, "all-namespaces", "A", false, "If present, list the requested object(s) across all namespaces. Namespace in current context is ignored even if specified with --namespace.")
	}
	return cmd
}

// usage is what one pod or node takes.
type usage struct {
	namespace, name string
	cpu, memory     apiresource.Quantity
}

func (o *topOptions) run(ctx context.Context, args []string) error {
	if o.sortBy != "" && o.sortBy != "cpu" && o.sortBy != "memory" {
		return errors.New("--sort-by accepts only cpu or memory")
	}
	items, err := o.measure(ctx, args)
	if err != nil {
		return err
	}
	slices.SortFunc(items, func(a, b usage) int {
		switch o.sortBy {
		case "cpu":
			return b.cpu.Cmp(a.cpu)
		case "memory":
			return b.memory.Cmp(a.memory)
		}
		return cmp.Or(strings.Compare(a.namespace, b.namespace), strings.Compare(a.name, b.name))
	})
	w := printers.GetNewTabWriter(o.Out)
	lead := func(namespace string) string {
		if !o.allNamespaces {
			return ""
		}
		return namespace + "\t"
	}
	if !o.noHeaders {
		fmt.Fprintln(w, lead("NAMESPACE")+"NAME\tCPU(cores)\tMEMORY(bytes)")
	}
	for _, u := range items {
		fmt.Fprintf(w, "%s%s\t%dm\t%dMi\n", lead(u.namespace), u.name, u.cpu.MilliValue(), u.memory.Value()>>20)
	}
	return w.Flush()
}

func (o *topOptions) measure(ctx context.Context, args []string) ([]usage, error) {
	namespace, _, err := o.namespace()
	if err != nil {
		return nil, err
	}
	discovery, err := o.ToDiscoveryClient()
	if err != nil {
		return nil, err
	}
	if _, err := discovery.ServerResourcesForGroupVersion(metricsAPI.String()); err != nil {
		return nil, errors.New("Metrics API not available") //nolint:staticcheck // kubectl's words
	}
	client, err := o.DynamicClient()
	if err != nil {
		return nil, err
	}
	var from dynamic.ResourceInterface = client.Resource(metricsAPI.WithResource(o.resource))
	if o.resource == "pods" && !o.allNamespaces {
		from = client.Resource(metricsAPI.WithResource(o.resource)).Namespace(namespace)
	}
	if len(args) > 0 {
		one, err := from.Get(ctx, args[0], metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		return []usage{usageOf(one)}, nil
	}
	list, err := from.List(ctx, metav1.ListOptions{LabelSelector: o.selector})
	if err != nil {
		return nil, err
	}
	var items []usage
	for i := range list.Items {
		items = append(items, usageOf(&list.Items[i]))
	}
	return items, nil
}

// usageOf adds up an object's containers, or takes the node's own numbers.
func usageOf(obj *unstructured.Unstructured) usage {
	u := usage{namespace: obj.GetNamespace(), name: obj.GetName()}
	add := func(fields map[string]any) {
		for name, sum := range map[string]*apiresource.Quantity{"cpu": &u.cpu, "memory": &u.memory} {
			text, _, _ := unstructured.NestedString(fields, "usage", name)
			if amount, err := apiresource.ParseQuantity(text); err == nil {
				sum.Add(amount)
			}
		}
	}
	add(obj.Object)
	containers, _, _ := unstructured.NestedSlice(obj.Object, "containers")
	for _, c := range containers {
		if fields, ok := c.(map[string]any); ok {
			add(fields)
		}
	}
	return u
}
