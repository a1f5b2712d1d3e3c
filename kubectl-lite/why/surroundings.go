package why

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/kubectl-lite/diagnose"
	"github.com/coxswain-dev/coxswain/kubectl-lite/terminal"
)

// surroundings reads the objects that pods need and do not own. It reads each once. An object that the user may not
// read counts as healthy.
type surroundings struct {
	client kubernetes.Interface
	names  metadata.Interface                      // for ConfigMaps and Secrets: only their existence matters
	seen   map[string]string                       // the results of once, by key
	pods   map[string][]*unstructured.Unstructured // all pods by namespace, if all were read; otherwise nil
	called []calledWebhook                         // nil until they are read
	// endpoints are the numbers of ready endpoints, by namespace and Service, if all were read.
	endpoints map[string]map[string]int
}

func (o *options) surroundings() (*surroundings, error) {
	client, err := o.KubernetesClientSet()
	if err != nil {
		return nil, err
	}
	config, err := o.ToRESTConfig()
	if err != nil {
		return nil, err
	}
	names, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return &surroundings{client: client, names: names, seen: map[string]string{},
		endpoints: map[string]map[string]int{}}, nil
}

// lookAround finds faults of the objects that pods need: their nodes, claims, ConfigMaps and Secrets. It also inspects
// the pods that a Service selects but does not own, the backends of an Ingress, and the Services of webhooks.
func (s *surroundings) lookAround(ctx context.Context, objects []*unstructured.Unstructured) (
	found []diagnose.Finding, err error) {
	var pods []*unstructured.Unstructured
	for _, obj := range objects {
		behind := s.behind
		switch kind := obj.GroupVersionKind().GroupKind(); {
		case kind == schema.GroupKind{Kind: "Service"}:
		case kind == schema.GroupKind{Group: "networking.k8s.io", Kind: "Ingress"}:
			behind = s.behindIngress
		case isWebhookConfiguration(kind):
			behind = s.behindWebhooks
		default:
			continue
		}
		wrong, selected, err := behind(ctx, obj)
		if err != nil {
			return nil, err
		}
		found = append(found, wrong...)
		if s.pods == nil { // otherwise they are among objects
			pods = append(pods, selected...)
		}
	}
	for _, obj := range slices.Concat(objects, pods) {
		if obj.GroupVersionKind().GroupKind() != (schema.GroupKind{Kind: "Pod"}) {
			continue
		}
		pod := &corev1.Pod{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(obj.Object, pod); err != nil {
			return nil, err
		}
		found = append(found, s.aboutPod(ctx, pod)...)
	}
	return found, nil
}

// behind returns the pods that a Service selects, and their faults.
func (s *surroundings) behind(ctx context.Context, service *unstructured.Unstructured) (
	found []diagnose.Finding, pods []*unstructured.Unstructured, err error) {
	subject := "Service/" + service.GetName()
	selector, _, _ := unstructured.NestedStringMap(service.Object, "spec", "selector")
	if len(selector) == 0 {
		return nil, nil, nil // another controller writes its endpoints
	}
	if pods, err = s.selected(ctx, service.GetNamespace(), labels.SelectorFromSet(selector)); err != nil {
		return nil, nil, err
	}
	var ready []*unstructured.Unstructured
	for _, pod := range pods {
		if s.pods == nil { // otherwise the caller inspects all pods
			found = append(found, diagnose.Inspect(pod, time.Now())...)
		}
		if diagnose.IsTrue(pod, string(corev1.PodReady)) {
			ready = append(ready, pod)
		}
	}
	switch {
	case len(pods) == 0:
		found = append(found, diagnose.Finding{Rank: diagnose.RankMissing, Subject: subject,
			Text: "selects no pods: none here has " +
				"the labels " + labels.Set(selector).String()})
	case len(ready) == 0:
		found = append(found,
			diagnose.Finding{Rank: diagnose.RankSummary, Subject: subject,
				Text: fmt.Sprintf("has no pod that is ready, of %d that it selects", len(pods))})
	default:
		found = append(found, s.withoutEndpoints(ctx, service, ready)...)
	}
	return found, pods, nil
}

// selected returns the pods of a namespace that match a selector.
func (s *surroundings) selected(ctx context.Context, namespace string, selector labels.Selector) (
	pods []*unstructured.Unstructured, err error) {
	if s.pods != nil {
		for _, pod := range s.pods[namespace] {
			if selector.Matches(labels.Set(pod.GetLabels())) {
				pods = append(pods, pod)
			}
		}
		return pods, nil
	}
	list, err := s.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector.String()})
	if err != nil {
		return nil, err
	}
	for i := range list.Items {
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&list.Items[i])
		if err != nil {
			return nil, err
		}
		pod := &unstructured.Unstructured{Object: content}
		pod.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
		pods = append(pods, pod)
	}
	return pods, nil
}

// aboutPod finds faults of the objects that a pod needs.
func (s *surroundings) aboutPod(ctx context.Context, pod *corev1.Pod) (found []diagnose.Finding) {
	subject := "Pod/" + pod.Name
	add := func(rank diagnose.Rank, text string) {
		if text != "" {
			found = append(found, diagnose.Finding{Rank: rank, Subject: subject, Text: text})
		}
	}
	if pod.Spec.NodeName != "" {
		add(diagnose.RankNode, s.once("node "+pod.Spec.NodeName, func() string {
			return s.node(ctx, pod.Spec.NodeName)
		}))
	}
	if diagnose.PodReady(pod) || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return found
	}
	for _, need := range diagnose.NeedsOf(pod) {
		add(diagnose.RankMissing, s.once(pod.Namespace+"/"+need.Kind+" "+need.Name, func() string {
			if need.Kind == "PersistentVolumeClaim" {
				return s.claim(ctx, pod.Namespace, need.Name)
			}
			return s.missing(ctx, pod.Namespace, need)
		}))
	}
	return found
}

// once calls look for the first call with a key, and returns the same result for later ones.
func (s *surroundings) once(key string, look func() string) string {
	if _, found := s.seen[key]; !found {
		s.seen[key] = look()
	}
	return s.seen[key]
}

// node describes the fault of the node that a pod is on, or returns "".
func (s *surroundings) node(ctx context.Context, name string) string {
	node, err := s.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return fmt.Sprintf("is on Node/%s, which does not exist", name)
	}
	if err != nil {
		return ""
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
			return fmt.Sprintf("is on Node/%s, which is not ready: %s", name, strings.TrimSuffix(c.Message, "."))
		}
	}
	return ""
}

// waitingForPod are the reasons of events of a claim that waits for the scheduler.
var waitingForPod = map[string]bool{"WaitForFirstConsumer": true, "WaitForPodScheduled": true}

// claim describes the fault of a PersistentVolumeClaim, or returns "".
func (s *surroundings) claim(ctx context.Context, namespace, name string) string {
	claim, err := s.client.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return fmt.Sprintf("needs PersistentVolumeClaim/%s, which does not exist", name)
	}
	if err != nil || claim.Status.Phase == corev1.ClaimBound {
		return ""
	}
	events, err := s.client.CoreV1().Events(namespace).List(ctx,
		metav1.ListOptions{FieldSelector: fields.Set{"involvedObject.uid": string(claim.UID)}.String()})
	if err != nil {
		events = &corev1.EventList{}
	}
	slices.SortFunc(events.Items, func(a, b corev1.Event) int {
		return diagnose.EventTime(b).Compare(diagnose.EventTime(a))
	})
	text := fmt.Sprintf("needs PersistentVolumeClaim/%s, which is %s", name, claim.Status.Phase)
	if class := ptr.Deref(claim.Spec.StorageClassName, ""); class != "" && s.noStorageClass(ctx, class) {
		return text + fmt.Sprintf(": StorageClass/%s does not exist", class)
	}
	if len(events.Items) == 0 {
		return text
	}
	if waitingForPod[events.Items[0].Reason] {
		return ""
	}
	return text + ": " + strings.TrimSpace(events.Items[0].Message)
}

func (s *surroundings) noStorageClass(ctx context.Context, name string) bool {
	_, err := s.client.StorageV1().StorageClasses().Get(ctx, name, metav1.GetOptions{})
	return apierrors.IsNotFound(err)
}

// missing describes a needed object that does not exist, or returns "".
func (s *surroundings) missing(ctx context.Context, namespace string, need diagnose.Need) string {
	absent := fmt.Sprintf("needs %s/%s, which does not exist", need.Kind, need.Name)
	if len(rest.IsValidPathSegmentName(need.Name)) > 0 { // the metadata client would read another path
		return absent
	}
	resource := schema.GroupVersionResource{Version: "v1", Resource: strings.ToLower(need.Kind) + "s"}
	if _, err := s.names.Resource(resource).Namespace(namespace).Get(ctx, need.Name,
		metav1.GetOptions{}); apierrors.IsNotFound(err) {
		return absent
	}
	return ""
}

// lastWords is how many lines of a crashed container's log are shown.
const lastWords = 3

// lastBytes is how many bytes at the end of the log are read for them.
const lastBytes = 4096

// printLastWords prints the end of a container's log if its crash is the likely cause.
func (o *options) printLastWords(ctx context.Context, namespace string, findings []diagnose.Finding) {
	if len(findings) == 0 || findings[0].Rank != diagnose.RankCrash || findings[0].Container == "" {
		return
	}
	client, err := o.KubernetesClientSet()
	if err != nil {
		return
	}
	pod := strings.TrimPrefix(findings[0].Subject, "Pod/")
	for _, previous := range []bool{true, false} {
		stream, err := client.CoreV1().Pods(namespace).GetLogs(pod, &corev1.PodLogOptions{
			Container: findings[0].Container, Previous: previous, TailLines: ptr.To(int64(lastWords)),
			LimitBytes: ptr.To(int64(lastBytes)),
		}).Stream(ctx)
		if err != nil {
			continue // it never ran, or its log was removed
		}
		text, _ := io.ReadAll(io.LimitReader(stream, lastBytes)) // the server may ignore the limit
		stream.Close()                                           //nolint:errcheck // it was only read
		if len(text) == 0 {
			continue
		}
		fmt.Fprintf(o.Out, "\nLast words of container %s:\n", terminal.OneLine(findings[0].Container))
		for _, line := range strings.Split(strings.TrimRight(string(text), "\n"), "\n") {
			fmt.Fprintln(o.Out, "  "+line)
		}
		return
	}
}
