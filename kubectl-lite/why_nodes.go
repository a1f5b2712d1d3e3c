package kubectllite

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	resourcehelper "k8s.io/component-helpers/resource"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
)

// mostVerdicts is for how many nodes a verdict is printed.
const mostVerdicts = 20

// printVerdicts says of each node why it does not take the first pod that none takes. Who may not see nodes or other people's
// pods is told what the scheduler said, and no more.
func (o *whyOptions) printVerdicts(ctx context.Context, objects []*unstructured.Unstructured) error {
	pod, err := firstUnschedulable(objects)
	if pod == nil || err != nil {
		return err
	}
	client, err := o.KubernetesClientSet()
	if err != nil {
		return err
	}
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil
	}
	fmt.Fprintf(o.Out, "\nNodes, for Pod/%s:\n", oneLine(pod.Name))
	if len(nodes.Items) == 0 {
		fmt.Fprintln(o.Out, "  there are none")
	}
	pods, err := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"})
	if err != nil {
		pods = &corev1.PodList{}
	}
	taken := map[string]corev1.ResourceList{}
	for i := range pods.Items {
		at := pods.Items[i].Spec.NodeName
		if taken[at] == nil {
			taken[at] = corev1.ResourceList{}
		}
		addResources(taken[at], requestsOf(&pods.Items[i]))
	}
	for i := range nodes.Items {
		if i == mostVerdicts {
			fmt.Fprintf(o.Out, "  … %d more\n", len(nodes.Items)-i)
			break
		}
		fmt.Fprintf(o.Out, "  %s\n", oneLine(nodes.Items[i].Name+" "+nodeVerdict(pod, &nodes.Items[i], taken[nodes.Items[i].Name])))
	}
	return nil
}

func firstUnschedulable(objects []*unstructured.Unstructured) (*corev1.Pod, error) {
	for _, obj := range objects {
		for _, c := range conditionsOf(obj) {
			if obj.GetKind() != "Pod" || c.kind != string(corev1.PodScheduled) || c.status != "False" {
				continue
			}
			pod := &corev1.Pod{}
			return pod, runtime.DefaultUnstructuredConverter.FromUnstructured(obj.Object, pod)
		}
	}
	return nil, nil
}

// requestsOf is what the scheduler reserves for a pod, and the pod's own place among those that a node has.
func requestsOf(pod *corev1.Pod) corev1.ResourceList {
	requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	one := requests[corev1.ResourcePods]
	one.Set(1)
	requests[corev1.ResourcePods] = one
	return requests
}

func addResources(to, more corev1.ResourceList) {
	for name, amount := range more {
		sum := to[name]
		sum.Add(amount)
		to[name] = sum
	}
}

// nodeVerdict is why the node does not take the pod, as far as the two and what runs there tell: the filters that decide most
// often, in the scheduler's order.
func nodeVerdict(pod *corev1.Pod, node *corev1.Node, taken corev1.ResourceList) string {
	var reasons []string
	if node.Spec.Unschedulable {
		reasons = append(reasons, "is cordoned")
	}
	if want := pod.Spec.NodeName; want != "" && want != node.Name {
		reasons = append(reasons, "is not the node that the pod names, "+want)
	}
	blocks := func(taint *corev1.Taint) bool {
		return taint.Effect != corev1.TaintEffectPreferNoSchedule && taint.Key != corev1.TaintNodeUnschedulable
	}
	if taint, found := corev1helpers.FindMatchingUntoleratedTaint(klog.Background(), node.Spec.Taints, pod.Spec.Tolerations, blocks, true); found {
		reasons = append(reasons, "has the taint "+taint.ToString()+", which the pod does not tolerate")
	}
	if matches, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node); err == nil && !matches {
		reasons = append(reasons, "has not the labels that the pod asks for")
	}
	requests := requestsOf(pod)
	for _, name := range slices.Sorted(maps.Keys(requests)) {
		asked := requests[name]
		free := node.Status.Allocatable.Name(name, asked.Format).DeepCopy()
		free.Sub(taken[name])
		if asked.Cmp(free) > 0 && !asked.IsZero() {
			reasons = append(reasons, fmt.Sprintf("has %s %s free, of which the pod asks for %s", free.String(), name, asked.String()))
		}
	}
	if len(reasons) == 0 {
		return "would take it, as far as can be seen from here"
	}
	return strings.Join(reasons, "; ")
}

// ownerChain is who made the object, the nearest first: "ReplicaSet/web-7d9c5b8f4d, Deployment/web".
func (o *whyOptions) ownerChain(ctx context.Context, obj *unstructured.Unstructured) string {
	var chain []string
	client, err := o.quietClient()
	if err != nil {
		return ""
	}
	mapper, err := o.ToRESTMapper()
	if err != nil {
		return ""
	}
	for range 10 { // owners may go round in circles
		owner := metav1.GetControllerOf(obj)
		if owner == nil {
			break
		}
		chain = append(chain, owner.Kind+"/"+owner.Name)
		kind := schema.FromAPIVersionAndKind(owner.APIVersion, owner.Kind)
		mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
		if err != nil {
			break
		}
		if obj, err = client.Resource(mapping.Resource).Namespace(obj.GetNamespace()).Get(ctx, owner.Name, metav1.GetOptions{}); err != nil {
			break // gone, or in no namespace: its name is known
		}
	}
	return strings.Join(chain, ", ")
}
