package diagnose

import (
	"cmp"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Readiness returns the readiness of an object, such as "2/3" or "True", and a word of status. Both are "-" for an
// object that reports none.
func Readiness(obj *unstructured.Unstructured) (ready, status string) {
	ready, status = "-", "-"
	if obj.GetDeletionTimestamp() != nil {
		status = "Terminating"
	} else if phase, ok, _ := unstructured.NestedString(obj.Object, "status", "phase"); ok {
		status = phase
	}
	if obj.GetKind() == "Pod" {
		return podReadiness(obj, status)
	}
	if want, ok, _ := unstructured.NestedInt64(obj.Object, "spec", "replicas"); ok {
		have, _, _ := unstructured.NestedInt64(obj.Object, "status", "readyReplicas")
		return fmt.Sprintf("%d/%d", have, want), status
	}
	if want, ok, _ := unstructured.NestedInt64(obj.Object, "status", "desiredNumberScheduled"); ok {
		have, _, _ := unstructured.NestedInt64(obj.Object, "status", "numberReady")
		return fmt.Sprintf("%d/%d", have, want), status
	}
	for _, c := range conditionsOf(obj) {
		switch {
		case c.kind == "Ready" || c.kind == "Complete":
			return c.status, cmp.Or(c.reason, status)
		case c.kind == "Failed" && c.status == "True":
			return "False", cmp.Or(c.reason, "Failed")
		}
	}
	return ready, status
}

func podReadiness(pod *unstructured.Unstructured, status string) (string, string) {
	containers, _, _ := unstructured.NestedSlice(pod.Object, "spec", "containers")
	states, _, _ := unstructured.NestedSlice(pod.Object, "status", "containerStatuses")
	n := 0
	for _, state := range states {
		fields, _ := state.(map[string]any)
		if ready, _ := fields["ready"].(bool); ready {
			n++
		}
		if reason, _, _ := unstructured.NestedString(fields, "state", "waiting", "reason"); reason != "" &&
			status != "Terminating" {
			status = reason
		}
	}
	return fmt.Sprintf("%d/%d", n, len(containers)), status
}

// IsReady reports whether an object is ready or done by its own status. An object without a status is ready, and so is
// a Job that runs. An object is not ready during a rollout.
func IsReady(obj *unstructured.Unstructured) bool {
	if isDone(obj) {
		return true
	}
	if Rollout(obj) != "" {
		return false
	}
	ready, _ := Readiness(obj)
	have, want, counted := strings.Cut(ready, "/")
	return ready == "-" || ready == "True" || counted && have == want
}

// isDone reports whether a pod has succeeded, or another object has the condition Complete.
func isDone(obj *unstructured.Unstructured) bool {
	if obj.GroupVersionKind().GroupKind() == (schema.GroupKind{Kind: "Pod"}) {
		phase, _, _ := unstructured.NestedString(obj.Object, "status", "phase")
		return phase == "Succeeded"
	}
	return IsTrue(obj, "Complete")
}

// condition is an entry of status.conditions, in any kind.
type condition struct {
	kind, status, reason, message string
}

func conditionsOf(obj *unstructured.Unstructured) []condition {
	list, _, _ := unstructured.NestedSlice(obj.Object, "status", "conditions")
	var all []condition
	for _, item := range list {
		fields, _ := item.(map[string]any)
		text := func(key string) string { s, _ := fields[key].(string); return s }
		all = append(all, condition{text("type"), text("status"), text("reason"), text("message")})
	}
	return all
}

// IsTrue reports whether an object has a condition that is True.
func IsTrue(obj *unstructured.Unstructured, kind string) bool {
	for _, c := range conditionsOf(obj) {
		if c.kind == kind && c.status == "True" {
			return true
		}
	}
	return false
}
