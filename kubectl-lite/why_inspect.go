package kubectllite

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// badConditions are the conditions whose being true or false is a fault, by the kind that has them; without a group and a
// kind, of every object.
var badConditions = []struct {
	of           schema.GroupKind
	kind, status string
	rank         int
	text         string
}{
	{schema.GroupKind{Kind: "Pod"}, "PodScheduled", "False", rankUnschedulable, "cannot be scheduled"},
	{schema.GroupKind{}, "ReplicaFailure", "True", rankRefused, "cannot make its pods"},
	{schema.GroupKind{Group: "batch", Kind: "Job"}, "Failed", "True", rankSummary, "has failed"},
	{schema.GroupKind{Group: "batch", Kind: "Job"}, "Suspended", "True", rankPending, "is suspended"},
	{schema.GroupKind{Group: "autoscaling", Kind: "HorizontalPodAutoscaler"}, "AbleToScale", "False", rankPending, "can not scale"},
	{schema.GroupKind{Group: "autoscaling", Kind: "HorizontalPodAutoscaler"}, "ScalingActive", "False", rankPending, "does not scale"},
	{schema.GroupKind{Kind: "Namespace"}, "NamespaceDeletionDiscoveryFailure", "True", rankStuck, "can not be emptied"},
	{schema.GroupKind{Kind: "Namespace"}, "NamespaceDeletionContentFailure", "True", rankStuck, "can not be emptied"},
	{schema.GroupKind{Kind: "Namespace"}, "NamespaceFinalizersRemaining", "True", rankStuck, "waits for objects with finalizers"},
	{schema.GroupKind{Kind: "Namespace"}, "NamespaceContentRemaining", "True", rankPending, "still holds objects"},
	{schema.GroupKind{Kind: "Node"}, "MemoryPressure", "True", rankPending, "is short of memory"},
	{schema.GroupKind{Kind: "Node"}, "DiskPressure", "True", rankPending, "is short of disk space"},
	{schema.GroupKind{Kind: "Node"}, "PIDPressure", "True", rankPending, "is short of process numbers"},
	{schema.GroupKind{Kind: "Node"}, "NetworkUnavailable", "True", rankPending, "has no network"},
}

// inspect is what an object says about itself that is wrong.
func inspect(obj *unstructured.Unstructured) []finding {
	subject := obj.GetKind() + "/" + obj.GetName()
	var found []finding
	add := func(rank int, format string, args ...any) {
		found = append(found, finding{rank: rank, subject: subject, text: fmt.Sprintf(format, args...)})
	}
	if obj.GetDeletionTimestamp() != nil {
		if finalizers := obj.GetFinalizers(); len(finalizers) > 0 {
			add(rankDeleting, "is being deleted and waits for the finalizers %s", strings.Join(finalizers, ", "))
		} else {
			add(rankDeleting, "is being deleted")
		}
	}
	kind := obj.GroupVersionKind().GroupKind()
	for _, c := range conditionsOf(obj) {
		why := strings.TrimSuffix(cmp.Or(c.message, c.reason), ".")
		for _, bad := range badConditions {
			if c.kind == bad.kind && c.status == bad.status && (bad.of == kind || bad.of.Kind == "") {
				add(bad.rank, "%s", strings.TrimSuffix(bad.text+": "+why, ": "))
			}
		}
		switch {
		case (c.kind == "Progressing" || c.kind == "Available") && c.status == "False":
			add(rankSummary, "%s: %s", strings.ToLower(cmp.Or(c.reason, "not "+c.kind)), why)
		case c.kind == "Ready" && c.status != "True" && kind.Kind != "Pod":
			add(rankPending, "is not ready: %s", why)
		}
	}
	inspectSpec(obj, kind, add)
	if kind == (schema.GroupKind{Kind: "Pod"}) {
		found = append(found, inspectPod(obj)...)
	}
	return found
}

// inspectSpec is what an object was told that keeps it from what one might expect, and what it is known to lack.
func inspectSpec(obj *unstructured.Unstructured, kind schema.GroupKind, add func(int, string, ...any)) {
	is := func(path ...string) bool { yes, _, _ := unstructured.NestedBool(obj.Object, path...); return yes }
	phase, _, _ := unstructured.NestedString(obj.Object, "status", "phase")
	observed, observes, _ := unstructured.NestedInt64(obj.Object, "status", "observedGeneration")
	switch {
	case kind.Group == "apps" && obj.GetGeneration() > 0 && (!observes || observed < obj.GetGeneration()):
		add(rankStuck, "waits for its controller, which has not seen its latest change: is the controller manager running?")
	case kind.Kind == "Deployment" && is("spec", "paused"):
		add(rankPending, "is paused: 'rollout resume' lets it go on")
	case kind.Kind == "CronJob" && is("spec", "suspend"):
		add(rankPending, "is suspended")
	case kind.Kind == "Node" && is("spec", "unschedulable"):
		add(rankPending, "is cordoned: no pods are put on it until 'uncordon'")
	case kind.Kind == "PersistentVolumeClaim" && phase != "Bound", kind.Kind == "PersistentVolume" && phase == "Failed":
		message, _, _ := unstructured.NestedString(obj.Object, "status", "message")
		add(rankPending, "%s", strings.TrimSuffix("is "+cmp.Or(phase, "Pending")+": "+message, ": "))
	}
}

// isDone reports whether an object has done what it was made for.
func isDone(obj *unstructured.Unstructured) bool {
	if obj.GroupVersionKind().GroupKind() == (schema.GroupKind{Kind: "Pod"}) {
		phase, _, _ := unstructured.NestedString(obj.Object, "status", "phase")
		return phase == "Succeeded"
	}
	for _, c := range conditionsOf(obj) {
		if c.kind == "Complete" && c.status == "True" {
			return true
		}
	}
	return false
}

func inspectPod(pod *unstructured.Unstructured) []finding {
	subject := "Pod/" + pod.GetName()
	text := func(path ...string) string { s, _, _ := unstructured.NestedString(pod.Object, path...); return s }
	if text("status", "phase") == "Failed" && text("status", "reason") != "" { // evicted, or refused by its node
		return []finding{{rank: rankCrash, subject: subject, text: strings.TrimSuffix("has failed: "+text("status", "reason")+": "+text("status", "message"), ": ")}}
	}
	var found []finding
	for _, list := range []string{"initContainerStatuses", "containerStatuses"} {
		states, _, _ := unstructured.NestedSlice(pod.Object, "status", list)
		for _, state := range states {
			fields, ok := state.(map[string]any)
			if !ok {
				continue
			}
			name, _ := fields["name"].(string)
			inspectContainer(fields, startsFirst(pod, name), func(rank int, format string, args ...any) {
				found = append(found, finding{rank, subject, fmt.Sprintf(format, args...), name, "", 0})
			})
		}
	}
	if len(found) == 0 {
		found = inspectGates(pod, subject)
	}
	if len(found) == 0 && text("status", "phase") == "Pending" && text("spec", "nodeName") == "" && len(conditionsOf(pod)) == 0 {
		found = append(found, finding{rank: rankUnschedulable, subject: subject,
			text: fmt.Sprintf("waits for the scheduler %s, which has not looked at it: is it running?", cmp.Or(text("spec", "schedulerName"), "default-scheduler"))})
	}
	return found
}

// startsFirst reports whether a container is one that ends before the others begin. One that is restarted always does not: it is
// a sidecar.
func startsFirst(pod *unstructured.Unstructured, name string) bool {
	first, _, _ := unstructured.NestedSlice(pod.Object, "spec", "initContainers")
	for _, item := range first {
		if c, _ := item.(map[string]any); c["name"] == name {
			return c["restartPolicy"] != "Always"
		}
	}
	return false
}

// inspectGates tells of a pod whose containers are ready and that is not, because somebody else has yet to agree.
func inspectGates(pod *unstructured.Unstructured, subject string) (found []finding) {
	status := map[string]string{}
	for _, c := range conditionsOf(pod) {
		status[c.kind] = c.status
	}
	if status["ContainersReady"] != "True" || status["Ready"] == "True" {
		return nil
	}
	gates, _, _ := unstructured.NestedSlice(pod.Object, "spec", "readinessGates")
	for _, item := range gates {
		gate, _ := item.(map[string]any)
		if name, _ := gate["conditionType"].(string); status[name] != "True" {
			found = append(found, finding{rank: rankProbe, subject: subject, text: "waits for its readiness gate " + name})
		}
	}
	return found
}

// restartedLately is how long a failure of a container that runs again is not yet history: the kubelet forgives one after as
// long.
const restartedLately = 10 * time.Minute

func inspectContainer(state map[string]any, startsFirst bool, add func(int, string, ...any)) {
	text := func(path ...string) string { s, _, _ := unstructured.NestedString(state, path...); return s }
	what := "container " + text("name")
	if startsFirst {
		what = "init " + what
	}
	reason, message := text("state", "waiting", "reason"), text("state", "waiting", "message")
	restarts, _ := state["restartCount"].(int64)
	code, ended, _ := unstructured.NestedInt64(state, "lastState", "terminated", "exitCode")
	switch {
	case strings.Contains(reason, "Image") || reason == "RegistryUnavailable":
		add(rankImage, "%s cannot get its image: %s", what, cmp.Or(message, reason))
	case reason == "CrashLoopBackOff" && ended:
		add(rankCrash, "%s keeps ending with exit code %d (%s), %d restarts", what, code, cmp.Or(text("lastState", "terminated", "reason"), "Error"), restarts)
	case strings.HasPrefix(reason, "CreateContainer"), reason == "RunContainerError", reason == "CrashLoopBackOff":
		add(rankCrash, "%s cannot start: %s", what, cmp.Or(message, reason))
	case reason != "" && reason != "PodInitializing":
		add(rankPending, "%s waits: %s", what, cmp.Or(message, reason))
	}
	if code, failed, _ := unstructured.NestedInt64(state, "state", "terminated", "exitCode"); failed && code != 0 {
		add(rankCrash, "%s ended with exit code %d (%s)", what, code, cmp.Or(text("state", "terminated", "reason"), "Error"))
	}
	_, running, _ := unstructured.NestedMap(state, "state", "running")
	ready, _ := state["ready"].(bool)
	switch {
	case running && startsFirst:
		add(rankPending, "%s still runs; the containers after it wait for its end", what)
	case running && !ready:
		add(rankProbe, "%s runs but is not ready: its readiness or startup probe has not passed", what)
	case running && code != 0:
		at, err := time.Parse(time.RFC3339, text("lastState", "terminated", "finishedAt"))
		if err == nil && time.Since(at) < restartedLately {
			add(rankRestart, "%s runs again, %d restarts: it ended %s ago with exit code %d (%s)", what, restarts, since(at), code,
				cmp.Or(text("lastState", "terminated", "reason"), "Error"))
		}
	}
}
