package kubectllite

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
	"k8s.io/kubectl/pkg/metricsutil"
	"k8s.io/metrics/pkg/apis/metrics"

	"github.com/coxswain-dev/coxswain/bounds"
)

var metricsAPI = schema.GroupVersion{Group: "metrics.k8s.io", Version: "v1beta1"}

func newTop(s *session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "top", Short: "Display resource (CPU/memory) usage",
		RunE: s.needsSubcommand,
	}
	cmd.AddCommand(newTopPod(s), newTopNode(s))
	return cmd
}

// topOptions are what both kinds share.
type topOptions struct {
	*session
	selector  string
	sortBy    string
	noHeaders bool
	showSwap  bool
}

func (o *topOptions) add(cmd *cobra.Command) {
	cmdutil.AddLabelSelectorFlagVar(cmd, &o.selector)
	cmd.Flags().StringVar(&o.sortBy, "sort-by", "", "If non-empty, sort the list by this field: cpu or memory.")
	cmd.Flags().BoolVar(&o.noHeaders, "no-headers", false, "If present, print output without headers.")
	cmd.Flags().BoolVar(&o.showSwap, "show-swap", false, "Print resources related to swap memory.")
}

// check returns the name that was asked for, "" for all.
func (o *topOptions) check(cmd *cobra.Command, args []string, selectorFlag string) (name string, err error) {
	if len(args) > 1 {
		return "", cmdutil.UsageErrorf(cmd, "%s", cmd.Use)
	}
	if o.sortBy != "" && o.sortBy != "cpu" && o.sortBy != "memory" {
		return "", errors.New("--sort-by accepts only cpu or memory")
	}
	if len(args) == 0 {
		_, err := labels.Parse(o.selector)
		return "", err
	}
	if o.selector != "" {
		return "", fmt.Errorf("only one of NAME or %s can be provided", selectorFlag)
	}
	return args[0], nil
}

// measured reads the metrics of one object, or of all that the selector selects.
func (o *topOptions) measured(ctx context.Context, resource, namespace, name string, each func(*unstructured.Unstructured) error) error {
	discovery, err := o.ToDiscoveryClient()
	if err != nil {
		return err
	}
	if _, err := discovery.ServerResourcesForGroupVersion(metricsAPI.String()); err != nil {
		return errors.New("Metrics API not available") //nolint:staticcheck // kubectl's words
	}
	client, err := o.DynamicClient()
	if err != nil {
		return err
	}
	var from dynamic.ResourceInterface = client.Resource(metricsAPI.WithResource(resource))
	if namespace != "" {
		from = client.Resource(metricsAPI.WithResource(resource)).Namespace(namespace)
	}
	if name != "" {
		one, err := from.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		return each(one)
	}
	list, err := from.List(ctx, metav1.ListOptions{LabelSelector: o.selector})
	if err != nil {
		return err
	}
	for i := range list.Items {
		if err := each(&list.Items[i]); err != nil {
			return err
		}
	}
	return nil
}

// usageOf reads a ResourceList of an object. Of the metrics nothing else is printed.
func usageOf(fields map[string]any) (corev1.ResourceList, error) {
	usage := corev1.ResourceList{}
	amounts, _, err := unstructured.NestedStringMap(fields, "usage")
	for name, text := range amounts {
		amount, failed := bounds.ParseQuantity(text)
		err = errors.Join(err, failed)
		usage[corev1.ResourceName(name)] = amount
	}
	return usage, err
}

func newTopNode(s *session) *cobra.Command {
	o := &topOptions{session: s}
	var showCapacity bool
	cmd := &cobra.Command{
		Use: "node [NAME | -l label]", Aliases: []string{"nodes", "no"}, Short: "Display resource (CPU/memory) usage of nodes",
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := o.check(cmd, args, "--selector")
			if err != nil {
				return err
			}
			return o.nodes(contextOf(cmd), name, showCapacity)
		},
	}
	o.add(cmd)
	cmd.Flags().BoolVar(&showCapacity, "show-capacity", false, "Print node resources based on Capacity instead of Allocatable(default) of the nodes.")
	return cmd
}

func (o *topOptions) nodes(ctx context.Context, name string, showCapacity bool) error {
	var items []metrics.NodeMetrics
	err := o.measured(ctx, "nodes", "", name, func(u *unstructured.Unstructured) error {
		usage, err := usageOf(u.Object)
		items = append(items, metrics.NodeMetrics{ObjectMeta: metav1.ObjectMeta{Name: u.GetName()}, Usage: usage})
		return err
	})
	if err != nil {
		return err
	}
	if len(items) == 0 {
		return errors.New("metrics not available yet")
	}
	client, err := o.KubernetesClientSet()
	if err != nil {
		return err
	}
	nodes := &corev1.NodeList{Items: make([]corev1.Node, 1)}
	if name == "" {
		nodes, err = client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: o.selector})
	} else if node, failed := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{}); failed == nil {
		nodes.Items[0] = *node
	} else {
		err = failed
	}
	if err != nil {
		return err
	}
	printer, available := metricsutil.NewTopCmdPrinter(o.Out, o.showSwap), map[string]corev1.ResourceList{}
	for i := range nodes.Items {
		n := &nodes.Items[i]
		available[n.Name] = n.Status.Allocatable
		if showCapacity {
			available[n.Name] = n.Status.Capacity
		}
		if swap := n.Status.NodeInfo.Swap; swap == nil || swap.Capacity == nil {
			printer.RegisterMissingResource(n.Name, metricsutil.ResourceSwap)
		} else if available[n.Name] != nil {
			available[n.Name]["swap"] = *apiresource.NewQuantity(*swap.Capacity, apiresource.BinarySI)
		}
	}
	return printer.PrintNodeMetrics(items, available, o.noHeaders, o.sortBy)
}

type topPodOptions struct {
	topOptions
	fieldSelector                  string
	allNamespaces, containers, sum bool
	namespace                      string // "" is all of them
}

func newTopPod(s *session) *cobra.Command {
	o := &topPodOptions{topOptions: topOptions{session: s}}
	cmd := &cobra.Command{
		Use: "pod [NAME | -l label]", Aliases: []string{"pods", "po"}, Short: "Display resource (CPU/memory) usage of pods",
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := o.check(cmd, args, "selector")
			if err != nil {
				return err
			}
			return o.pods(contextOf(cmd), name)
		},
	}
	o.add(cmd)
	cmd.Flags().StringVar(&o.fieldSelector, "field-selector", "", "Selector (field query) to filter on, supports '=', '==', and '!='.")
	cmd.Flags().BoolVar(&o.containers, "containers", false, "If present, print usage of containers within a pod.")
	cmd.Flags().BoolVar(&o.sum, "sum", false, "Print the sum of the resource usage")
	cmd.Flags().BoolVarP(&o.allNamespaces, "all-namespaces", "A", false, "If present, list the requested object(s) across all namespaces. Namespace in current context is ignored even if specified with --namespace.")
	return cmd
}

func (o *topPodOptions) pods(ctx context.Context, name string) error {
	namespace, _, err := o.session.namespace()
	if err != nil {
		return err
	}
	if o.namespace = namespace; o.allNamespaces {
		o.namespace = ""
	}
	var items []metrics.PodMetrics
	if err := o.measured(ctx, "pods", o.namespace, name, func(u *unstructured.Unstructured) error {
		m, err := podMetricsOf(u)
		items = append(items, m)
		return err
	}); err != nil {
		return err
	}
	client, err := o.KubernetesClientSet()
	if err != nil {
		return err
	}
	if o.fieldSelector != "" && len(items) > 0 {
		if items, err = o.only(ctx, client, items); err != nil {
			return err
		}
	}
	if len(items) == 0 {
		if err := o.whyNothing(ctx, client); err != nil {
			return err
		}
		if o.allNamespaces {
			fmt.Fprintln(o.ErrOut, "No resources found")
		} else {
			fmt.Fprintf(o.ErrOut, "No resources found in %s namespace.\n", namespace)
		}
	}
	return metricsutil.NewTopCmdPrinter(o.Out, o.showSwap).
		PrintPodMetrics(items, o.containers, o.allNamespaces, o.noHeaders, o.sortBy, o.sum)
}

func podMetricsOf(u *unstructured.Unstructured) (metrics.PodMetrics, error) {
	m := metrics.PodMetrics{ObjectMeta: metav1.ObjectMeta{Name: u.GetName(), Namespace: u.GetNamespace()}}
	containers, _, err := unstructured.NestedSlice(u.Object, "containers")
	for _, c := range containers {
		fields, _ := c.(map[string]any)
		usage, failed := usageOf(fields)
		container, _, _ := unstructured.NestedString(fields, "name")
		m.Containers, err = append(m.Containers, metrics.ContainerMetrics{Name: container, Usage: usage}), errors.Join(err, failed)
	}
	return m, err
}

func (o *topPodOptions) list(ctx context.Context, client kubernetes.Interface) (*corev1.PodList, error) {
	return client.CoreV1().Pods(o.namespace).List(ctx, metav1.ListOptions{LabelSelector: o.selector, FieldSelector: o.fieldSelector})
}

// only keeps the metrics of the pods that the field selector selects: metrics have no fields to select by.
func (o *topPodOptions) only(ctx context.Context, client kubernetes.Interface, items []metrics.PodMetrics) ([]metrics.PodMetrics, error) {
	pods, err := o.list(ctx, client)
	if err != nil {
		return nil, err
	}
	selected := map[string]bool{}
	for i := range pods.Items {
		selected[pods.Items[i].Namespace+"/"+pods.Items[i].Name] = true
	}
	var kept []metrics.PodMetrics
	for _, m := range items {
		if selected[m.Namespace+"/"+m.Name] {
			kept = append(kept, m)
		}
	}
	return kept, nil
}

// newPod is the age up to which a pod need not have metrics yet.
const newPod = 2 * time.Minute

// whyNothing is nil where there are no pods that could have metrics.
func (o *topPodOptions) whyNothing(ctx context.Context, client kubernetes.Interface) error {
	pods, err := o.list(ctx, client)
	if err != nil || len(pods.Items) == 0 {
		return err
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		if age := time.Since(pod.CreationTimestamp.Time); age > newPod {
			return fmt.Errorf("Metrics not available for pod %s/%s, age: %s", pod.Namespace, pod.Name, age) //nolint:staticcheck // kubectl's words
		}
	}
	return errors.New("metrics not available yet")
}
