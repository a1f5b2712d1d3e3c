package why

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/coxswain-dev/coxswain/kubectl-lite/diagnose"
	"github.com/coxswain-dev/coxswain/kubectl-lite/terminal"
)

// maxVerdicts limits the number of verdicts.
const maxVerdicts = 20

// printVerdicts prints for each node why the first unschedulable pod does not fit on it. It prints no verdicts if the
// user may not list nodes.
func (o *options) printVerdicts(ctx context.Context, objects []*unstructured.Unstructured) error {
	pod, err := diagnose.FirstUnschedulable(objects)
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
	fmt.Fprintf(o.Out, "\nNodes, for Pod/%s:\n", terminal.OneLine(pod.Name))
	if len(nodes.Items) == 0 {
		fmt.Fprintln(o.Out, "  there are none")
	}
	pods, err := client.CoreV1().Pods("").List(ctx,
		metav1.ListOptions{FieldSelector: "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"})
	if err != nil {
		pods = &corev1.PodList{}
	}
	reserved := diagnose.Reserved(pods.Items)
	for i := range nodes.Items {
		if i == maxVerdicts {
			fmt.Fprintf(o.Out, "  … %d more\n", len(nodes.Items)-i)
			break
		}
		name := nodes.Items[i].Name
		fmt.Fprintf(o.Out, "  %s\n",
			terminal.OneLine(name+" "+diagnose.NodeVerdict(pod, &nodes.Items[i], reserved[name])))
	}
	return nil
}

// ownerChain returns the object's owners, the nearest first: "ReplicaSet/web-7d9c5b8f4d, Deployment/web".
func (o *options) ownerChain(ctx context.Context, obj *unstructured.Unstructured) string {
	var chain []string
	client, err := o.QuietClient()
	if err != nil {
		return ""
	}
	mapper, err := o.ToRESTMapper()
	if err != nil {
		return ""
	}
	for range 10 { // owners may form a cycle
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
		if obj, err = client.Resource(mapping.Resource).Namespace(obj.GetNamespace()).Get(ctx, owner.Name,
			metav1.GetOptions{}); err != nil {
			break // it is deleted or has no namespace; its name is in the chain
		}
	}
	return strings.Join(chain, ", ")
}
