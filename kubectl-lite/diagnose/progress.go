package diagnose

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Rollout describes a rollout that has not reached all pods, or returns "".
func Rollout(obj *unstructured.Unstructured) string {
	r := &reader{obj.Object}
	var updated, total int64
	switch obj.GroupVersionKind().GroupKind() {
	case schema.GroupKind{Group: "apps", Kind: "Deployment"}:
		updated, total = r.number("status", "updatedReplicas"), r.number("spec", "replicas")
		if old := r.number("status", "replicas") - updated; updated >= total && old > 0 {
			return fmt.Sprintf("rolls out: %d old pods have not ended", old)
		}
	case schema.GroupKind{Group: "apps", Kind: "StatefulSet"}:
		if r.text("spec", "updateStrategy", "type") == "OnDelete" {
			return ""
		}
		updated = r.number("status", "updatedReplicas")
		total = max(0, r.number("spec", "replicas")-r.number("spec", "updateStrategy", "rollingUpdate", "partition"))
		if r.text("status", "updateRevision") == r.text("status", "currentRevision") {
			return ""
		}
	case schema.GroupKind{Group: "apps", Kind: "DaemonSet"}:
		if r.text("spec", "updateStrategy", "type") == "OnDelete" {
			return ""
		}
		updated = r.number("status", "updatedNumberScheduled")
		total = r.number("status", "desiredNumberScheduled")
	}
	if updated < total {
		return fmt.Sprintf("rolls out: %d of %d pods are updated", updated, total)
	}
	return ""
}

// inspectProgress finds objects that wait for a controller, person or driver, by the absence of a part of their status.
func inspectProgress(obj *unstructured.Unstructured, kind schema.GroupKind, add func(Rank, string, ...any)) {
	r := &reader{obj.Object}
	switch kind {
	case schema.GroupKind{Group: "batch", Kind: "Job"}:
		manager := r.text("spec", "managedBy")
		if !r.has("status", "startTime") && len(conditionsOf(obj)) == 0 && !isSuspended(r) {
			if manager != "" && manager != "kubernetes.io/job-controller" {
				add(RankStuck, "waits for the controller %s, which has not started it", manager)
			} else {
				add(RankStuck, "waits for its controller, which has not started it: is the controller manager "+
					"running?")
			}
		}
	case schema.GroupKind{Kind: "Node"}:
		if !hasCondition(obj, "Ready") {
			add(RankNode, "has no condition Ready: no agent reports its state")
		}
	case schema.GroupKind{Kind: "Service"}:
		if r.text("spec", "type") == "LoadBalancer" && len(r.list("status", "loadBalancer", "ingress")) == 0 {
			add(RankPending, "has no address: no load balancer has taken it")
		}
	case schema.GroupKind{Group: "policy", Kind: "PodDisruptionBudget"}:
		healthy, desired := r.number("status", "currentHealthy"), r.number("status", "desiredHealthy")
		if healthy < desired {
			add(RankSummary, "has %d healthy pods and must have %d", healthy, desired)
		}
	case schema.GroupKind{Group: "certificates.k8s.io", Kind: "CertificateSigningRequest"}:
		switch {
		case hasCondition(obj, "Denied"), hasCondition(obj, "Failed"): // in badConditions
		case !hasCondition(obj, "Approved"):
			add(RankPending, "waits for approval: 'certificate approve %s' grants it", obj.GetName())
		case r.text("status", "certificate") == "":
			add(RankStuck, "is approved, but the signer %s has issued no certificate: is it running?",
				r.text("spec", "signerName"))
		}
	case schema.GroupKind{Group: "storage.k8s.io", Kind: "VolumeAttachment"}:
		if message := r.text("status", "attachError", "message"); message != "" {
			add(RankStuck, "is not attached: %s", strings.TrimSuffix(message, "."))
		} else if attached, _, _ := unstructured.NestedBool(obj.Object, "status", "attached"); !attached {
			add(RankPending, "is not attached yet: %s has not confirmed it", r.text("spec", "attacher"))
		}
	}
}

func isSuspended(r *reader) bool {
	suspended, _, _ := unstructured.NestedBool(r.content, "spec", "suspend")
	return suspended
}

func hasCondition(obj *unstructured.Unstructured, kind string) bool {
	for _, c := range conditionsOf(obj) {
		if c.kind == kind {
			return true
		}
	}
	return false
}
