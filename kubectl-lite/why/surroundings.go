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
	leases map[string]*unstructured.Unstructured   // of Nodes, by name; likewise
	slices map[string][]*unstructured.Unstructured // EndpointSlices by the namespace/name of their Service; likewise
	called []calledWebhook                         // nil until they are read
	claims map[string]claimState                   // by namespace/name
	placed map[string]bool                         // pods, as namespace/name, that the scheduler has a node for
	now    time.Time                               // by the clock of the cluster
}

func (o *options) surroundings(ctx context.Context) (*surroundings, error) {
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
	return &surroundings{client: client, names: names, seen: map[string]string{}, claims: map[string]claimState{},
		placed: map[string]bool{}, now: clusterTime(ctx, client)}, nil
}

// lookAround finds faults of the objects that pods need: their nodes, claims, ConfigMaps and Secrets. It also inspects
// the pods that a Service selects but does not own, the backends of an Ingress, the Services of webhooks, the Lease of
// a Node, and the pods that wait for the same node as a claim. It returns these pods too.
func (s *surroundings) lookAround(ctx context.Context, objects []*unstructured.Unstructured) (
	found []diagnose.Finding, pods []*unstructured.Unstructured, err error) {
	for _, obj := range objects {
		behind := s.behind
		switch kind := obj.GroupVersionKind().GroupKind(); {
		case kind == schema.GroupKind{Kind: "Service"}:
		case kind == schema.GroupKind{Kind: "PersistentVolumeClaim"}:
			behind = s.behindClaim
		case kind == schema.GroupKind{Kind: "Node"}:
			behind = s.behindNode
		case kind == schema.GroupKind{Group: "networking.k8s.io", Kind: "Ingress"}:
			behind = s.behindIngress
		case isWebhookConfiguration(kind):
			behind = s.behindWebhooks
		default:
			continue
		}
		wrong, selected, err := behind(ctx, obj)
		if err != nil {
			return nil, nil, err
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
			return nil, nil, err
		}
		found = append(found, s.aboutPod(ctx, pod)...)
	}
	return found, pods, nil
}

// settle completes the findings about some objects: it removes findings that others repeat in more detail, and the
// finding that no scheduler runs about a pod that has a node chosen for its volume.
func (s *surroundings) settle(namespace string, findings []diagnose.Finding) []diagnose.Finding {
	return diagnose.Specific(slices.DeleteFunc(findings, func(f diagnose.Finding) bool {
		pod, isPod := strings.CutPrefix(f.Subject, "Pod/")
		return isPod && f.Rank == diagnose.RankUnschedulable && s.placed[namespace+"/"+pod]
	}))
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
		if need.Kind == "PersistentVolumeClaim" {
			add(diagnose.RankMissing, s.claimOf(ctx, pod, need.Name))
			continue
		}
		add(diagnose.RankMissing, s.once(pod.Namespace+"/"+need.Kind+" "+need.Name, func() string {
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

// missing describes a needed object that does not exist, or returns "".
func (s *surroundings) missing(ctx context.Context, namespace string, need diagnose.Need) string {
	absent := fmt.Sprintf("needs %s/%s, which does not exist", need.Kind, need.Name)
	if len(rest.IsValidPathSegmentName(need.Name)) > 0 { // the metadata client would read another path
		return absent
	}
	resource := schema.GroupVersionResource{Version: "v1", Resource: strings.ToLower(need.Kind) + "s"}
	if need.Kind == "ResourceClaim" {
		resource.Group = "resource.k8s.io"
	}
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
