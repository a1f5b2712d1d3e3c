package why

import (
	"context"
	"fmt"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/kubectl-lite/diagnose"
)

// clusterTime returns the time by the API server's clock, to the second: this machine's clock may differ, and the clock
// of a test cluster may stand still. A SelfSubjectReview is the cheapest answer with a time, and every user may create
// one. Without an answer it is this machine's time.
func clusterTime(ctx context.Context, client kubernetes.Interface) time.Time {
	review, err := client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{},
		metav1.CreateOptions{})
	if err != nil || review.CreationTimestamp.IsZero() {
		return time.Now()
	}
	return review.CreationTimestamp.Time
}

// missedRenewals is how many renewals of a Lease in sequence are missing when its Node counts as silent.
const missedRenewals = 2

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
	if silence := s.silence(ctx, node); silence != "" {
		return fmt.Sprintf("is on Node/%s, which %s", name, silence)
	}
	return ""
}

// behindNode finds out whether a Node's agent is silent.
func (s *surroundings) behindNode(ctx context.Context, obj *unstructured.Unstructured) (
	found []diagnose.Finding, _ []*unstructured.Unstructured, err error) {
	node := &corev1.Node{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(obj.Object, node); err != nil {
		return nil, nil, err
	}
	text := s.silence(ctx, node)
	if text == "" {
		return nil, nil, nil
	}
	if diagnose.IsTrue(obj, string(corev1.NodeReady)) {
		text += "; it counts as Ready until its grace period ends"
	}
	return []diagnose.Finding{{Rank: diagnose.RankNode, Subject: "Node/" + node.Name, Text: text}}, nil, nil
}

// silence describes a Lease that is not renewed, or returns "". A Node without a Lease, or with one that the user
// may not read, is not silent.
func (s *surroundings) silence(ctx context.Context, node *corev1.Node) string {
	return s.once("lease "+node.Name, func() string {
		lease, err := s.lease(ctx, node.Name)
		if err != nil || lease.Spec.RenewTime == nil {
			return ""
		}
		last := lease.Spec.RenewTime.Time
		for _, c := range node.Status.Conditions { // a post of the status is a sign of life too
			if c.Type == corev1.NodeReady && c.LastHeartbeatTime.After(last) && c.Status == corev1.ConditionTrue {
				last = c.LastHeartbeatTime.Time
			}
		}
		// A kubelet renews its Lease four times in the Lease's duration (KEP-589).
		every := time.Duration(ptr.Deref(lease.Spec.LeaseDurationSeconds, 40)) * time.Second / 4
		silent := s.now.Sub(last)
		if silent <= missedRenewals*every {
			return ""
		}
		return fmt.Sprintf("is silent: its Lease was renewed %s ago, and should be every %s",
			duration.HumanDuration(silent), duration.HumanDuration(every))
	})
}

// lease returns the Lease of a Node.
func (s *surroundings) lease(ctx context.Context, node string) (*coordinationv1.Lease, error) {
	if obj := s.leases[node]; obj != nil {
		lease := &coordinationv1.Lease{}
		return lease, runtime.DefaultUnstructuredConverter.FromUnstructured(obj.Object, lease)
	}
	return s.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, node, metav1.GetOptions{})
}
