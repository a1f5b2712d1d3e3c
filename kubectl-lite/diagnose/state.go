package diagnose

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// states describe healthy objects in more detail than "ready", by kind. They return "" for the general words.
var states = map[schema.GroupKind]func(s *reader, now time.Time) string{
	{Kind: "Pod"}:                                     podState,
	{Group: "batch", Kind: "Job"}:                     jobState,
	{Group: "batch", Kind: "CronJob"}:                 cronJobState,
	{Group: "apps", Kind: "Deployment"}:               scaleState,
	{Group: "apps", Kind: "ReplicaSet"}:               scaleState,
	{Group: "apps", Kind: "StatefulSet"}:              scaleState,
	{Kind: "ReplicationController"}:                   scaleState,
	{Group: "apps", Kind: "DaemonSet"}:                daemonState,
	{Kind: "Service"}:                                 serviceState,
	{Group: "networking.k8s.io", Kind: "Ingress"}:     ingressState,
	{Group: "policy", Kind: "PodDisruptionBudget"}:    budgetState,
	{Group: "resource.k8s.io", Kind: "ResourceClaim"}: resourceClaimState,
}

// State describes an object without faults, as the words after its name: "is ready", "runs: 1 of 3 complete". now is
// the time by the clock of the cluster.
func State(obj *unstructured.Unstructured, now time.Time) string {
	if describe := states[obj.GroupVersionKind().GroupKind()]; describe != nil {
		if state := describe(&reader{obj.Object}, now); state != "" {
			return state
		}
		return "is ready"
	}
	ready, _ := Readiness(obj)
	status, _, _ := unstructured.NestedMap(obj.Object, "status")
	phase, _, _ := unstructured.NestedString(status, "phase")
	switch {
	case ready != "-":
		return "is ready"
	case phase != "":
		return "is " + phase
	case len(status) == 0:
		return "exists; it reports no status"
	}
	return "reports no fault"
}

// reader reads fields of an object. A field that is absent, or of another type, is empty.
type reader struct{ content map[string]any }

func (r *reader) number(path ...string) int64 {
	n, _, _ := unstructured.NestedInt64(r.content, path...)
	return n
}

func (r *reader) text(path ...string) string {
	s, _, _ := unstructured.NestedString(r.content, path...)
	return s
}

func (r *reader) has(path ...string) bool {
	_, found, err := unstructured.NestedFieldNoCopy(r.content, path...)
	return found && err == nil
}

func (r *reader) list(path ...string) []any {
	list, _, _ := unstructured.NestedSlice(r.content, path...)
	return list
}

func podState(r *reader, _ time.Time) string {
	if r.text("status", "phase") == "Succeeded" {
		return "has succeeded"
	}
	return ""
}

// jobState counts the pods of a Job. A Job without completions is done when any of its pods has succeeded and all have
// ended.
func jobState(r *reader, _ time.Time) string {
	if IsTrue(&unstructured.Unstructured{Object: r.content}, "Complete") {
		return fmt.Sprintf("is complete: %d pods succeeded", r.number("status", "succeeded"))
	}
	text := fmt.Sprintf("runs: %d", r.number("status", "succeeded"))
	if r.has("spec", "completions") {
		text += fmt.Sprintf(" of %d", r.number("spec", "completions"))
	}
	text += fmt.Sprintf(" complete, %d active", r.number("status", "active"))
	if failed := r.number("status", "failed"); failed > 0 {
		text += fmt.Sprintf(", %d failed (at most %d may)", failed, r.number("spec", "backoffLimit"))
	}
	return text
}

func cronJobState(r *reader, now time.Time) string {
	last, err := time.Parse(time.RFC3339, r.text("status", "lastScheduleTime"))
	if err != nil {
		return "has not started a Job yet: its schedule is " + r.text("spec", "schedule")
	}
	text := fmt.Sprintf("started its last Job %s ago", age(last, now))
	if active := len(r.list("status", "active")); active > 0 {
		text += fmt.Sprintf("; %d still run", active)
	}
	if success, err := time.Parse(time.RFC3339, r.text("status", "lastSuccessfulTime")); err != nil {
		text += "; none has succeeded yet"
	} else {
		text += fmt.Sprintf("; the last success is %s old", age(success, now))
	}
	return text
}

func scaleState(r *reader, _ time.Time) string {
	if r.has("spec", "replicas") && r.number("spec", "replicas") == 0 {
		return "is scaled to zero"
	}
	return ""
}

func daemonState(r *reader, _ time.Time) string {
	if r.number("status", "desiredNumberScheduled") == 0 {
		return "runs no pods: no node fits its selector, affinity and tolerations"
	}
	return ""
}

func serviceState(r *reader, _ time.Time) string {
	if r.text("spec", "type") == "ExternalName" {
		return "is another name of " + r.text("spec", "externalName") + ", which is not checked"
	}
	return ""
}

func ingressState(r *reader, _ time.Time) string {
	if len(r.list("status", "loadBalancer", "ingress")) == 0 {
		return "has Services that are ready, but no address: no controller has reported one"
	}
	return ""
}

func budgetState(r *reader, _ time.Time) string {
	if r.number("status", "expectedPods") == 0 {
		return "protects no pods: its selector matches none"
	}
	return fmt.Sprintf("allows %d disruptions: %d pods are healthy and %d must be",
		r.number("status", "disruptionsAllowed"), r.number("status", "currentHealthy"),
		r.number("status", "desiredHealthy"))
}

func resourceClaimState(r *reader, _ time.Time) string {
	if !r.has("status", "allocation") {
		return "is not allocated yet: the scheduler allocates it for the first pod that uses it"
	}
	return fmt.Sprintf("is allocated; %d use it", len(r.list("status", "reservedFor")))
}
