package diagnose

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/duration"
)

// badConditions are the conditions that report a fault, by the kind that has them; without a group and a kind, of
// every object.
var badConditions = []struct {
	of           schema.GroupKind
	kind, status string
	rank         Rank
	text         string
}{
	{schema.GroupKind{Kind: "Pod"}, "PodScheduled", "False", RankUnschedulable, "cannot be scheduled"},
	{schema.GroupKind{}, "ReplicaFailure", "True", RankRefused, "cannot make its pods"},
	{schema.GroupKind{Group: "batch", Kind: "Job"}, "Failed", "True", RankSummary, "has failed"},
	{schema.GroupKind{Group: "batch", Kind: "Job"}, "Suspended", "True", RankPending, "is suspended"},
	{schema.GroupKind{Group: "autoscaling", Kind: "HorizontalPodAutoscaler"}, "AbleToScale", "False", RankPending,
		"can not scale"},
	{schema.GroupKind{Group: "autoscaling", Kind: "HorizontalPodAutoscaler"}, "ScalingActive", "False", RankPending,
		"does not scale"},
	{schema.GroupKind{Group: "policy", Kind: "PodDisruptionBudget"}, "DisruptionAllowed", "Unknown", RankPending,
		"has an unknown number of healthy pods"},
	{schema.GroupKind{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition"}, "NamesAccepted", "False",
		RankRefused, "has names that are taken"},
	{schema.GroupKind{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition"}, "Established", "False",
		RankPending, "is not served"},
	{schema.GroupKind{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition"}, "NonStructuralSchema", "True",
		RankPending, "has a schema that is not structural"},
	{schema.GroupKind{Group: "certificates.k8s.io", Kind: "CertificateSigningRequest"}, "Denied", "True", RankRefused,
		"was denied"},
	{schema.GroupKind{Group: "certificates.k8s.io", Kind: "CertificateSigningRequest"}, "Failed", "True", RankRefused,
		"could not be signed"},
	{schema.GroupKind{Kind: "Namespace"}, "NamespaceDeletionDiscoveryFailure", "True", RankStuck, "can not be emptied"},
	{schema.GroupKind{Kind: "Namespace"}, "NamespaceDeletionContentFailure", "True", RankStuck, "can not be emptied"},
	{schema.GroupKind{Kind: "Namespace"}, "NamespaceFinalizersRemaining", "True", RankStuck,
		"waits for objects with finalizers"},
	{schema.GroupKind{Kind: "Namespace"}, "NamespaceContentRemaining", "True", RankPending, "still holds objects"},
	{schema.GroupKind{Kind: "Node"}, "MemoryPressure", "True", RankPending, "is short of memory"},
	{schema.GroupKind{Kind: "Node"}, "DiskPressure", "True", RankPending, "is short of disk space"},
	{schema.GroupKind{Kind: "Node"}, "PIDPressure", "True", RankPending, "is short of process numbers"},
	{schema.GroupKind{Kind: "Node"}, "NetworkUnavailable", "True", RankPending, "has no network"},
}

// Inspect returns the faults in an object's own status and spec. now is the time by the clock of the cluster.
func Inspect(obj *unstructured.Unstructured, now time.Time) []Finding {
	subject := obj.GetKind() + "/" + obj.GetName()
	var found []Finding
	add := func(rank Rank, format string, args ...any) {
		found = append(found, Finding{Rank: rank, Subject: subject, Text: fmt.Sprintf(format, args...)})
	}
	if obj.GetDeletionTimestamp() != nil {
		if finalizers := obj.GetFinalizers(); len(finalizers) > 0 {
			add(RankDeleting, "is being deleted and waits for the finalizers %s", strings.Join(finalizers, ", "))
		} else {
			add(RankDeleting, "is being deleted")
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
			add(RankSummary, "%s", strings.TrimSuffix(strings.ToLower(cmp.Or(c.reason, "not "+c.kind))+": "+why, ": "))
		case c.kind == "Ready" && c.status != "True" && kind.Kind != "Pod":
			add(RankPending, "%s", strings.TrimSuffix("is not ready: "+why, ": "))
		}
	}
	inspectSpec(obj, kind, add)
	inspectProgress(obj, kind, add)
	if kind == (schema.GroupKind{Kind: "Pod"}) {
		found = append(found, inspectPod(obj, now)...)
	}
	return found
}

// alwaysObserved are kinds with a controller that writes status.observedGeneration as soon as it sees an object.
var alwaysObserved = map[schema.GroupKind]bool{
	{Group: "apps", Kind: "Deployment"}: true, {Group: "apps", Kind: "ReplicaSet"}: true,
	{Group: "apps", Kind: "StatefulSet"}: true, {Group: "apps", Kind: "DaemonSet"}: true,
	{Kind: "ReplicationController"}: true, {Group: "policy", Kind: "PodDisruptionBudget"}: true,
	{Group: "autoscaling", Kind: "HorizontalPodAutoscaler"}: true,
}

// inspectSpec finds settings that stop an object, such as spec.paused, and the lack of a controller or volume.
func inspectSpec(obj *unstructured.Unstructured, kind schema.GroupKind, add func(Rank, string, ...any)) {
	is := func(path ...string) bool { yes, _, _ := unstructured.NestedBool(obj.Object, path...); return yes }
	phase, _, _ := unstructured.NestedString(obj.Object, "status", "phase")
	observed, observes, _ := unstructured.NestedInt64(obj.Object, "status", "observedGeneration")
	switch {
	case obj.GetGeneration() > observed && alwaysObserved[kind]:
		add(RankStuck, "waits for its controller, which has not seen its latest change: is the controller manager "+
			"running?")
	case obj.GetGeneration() > observed && observes:
		add(RankStuck, "waits for its controller, which has not seen its latest change")
	case kind.Kind == "Deployment" && is("spec", "paused"):
		add(RankPending, "is paused: 'rollout resume' lets it go on")
	case kind.Kind == "CronJob" && is("spec", "suspend"):
		add(RankPending, "is suspended")
	case kind.Kind == "Node" && is("spec", "unschedulable"):
		add(RankPending, "is cordoned: no pods are put on it until 'uncordon'")
	case kind == (schema.GroupKind{Kind: "PersistentVolumeClaim"}) && phase != "Bound",
		kind == (schema.GroupKind{Kind: "PersistentVolume"}) && phase == "Failed":
		message, _, _ := unstructured.NestedString(obj.Object, "status", "message")
		add(RankPending, "%s", strings.TrimSuffix("is "+cmp.Or(phase, "Pending")+": "+message, ": "))
	}
}

func inspectPod(pod *unstructured.Unstructured, now time.Time) []Finding {
	subject := "Pod/" + pod.GetName()
	text := func(path ...string) string { s, _, _ := unstructured.NestedString(pod.Object, path...); return s }
	if text("status", "phase") == "Failed" && text("status", "reason") != "" { // evicted, or refused by its node
		return []Finding{{Rank: RankCrash, Subject: subject,
			Text: strings.TrimSuffix("has failed: "+text("status", "reason")+": "+text("status", "message"), ": ")}}
	}
	var found []Finding
	for _, list := range []string{"initContainerStatuses", "containerStatuses"} {
		states, _, _ := unstructured.NestedSlice(pod.Object, "status", list)
		for _, state := range states {
			fields, ok := state.(map[string]any)
			if !ok {
				continue
			}
			name, _ := fields["name"].(string)
			inspectContainer(fields, startsFirst(pod, name), now, func(rank Rank, format string, args ...any) {
				found = append(found, Finding{Rank: rank, Subject: subject, Text: fmt.Sprintf(format, args...),
					Container: name})
			})
		}
	}
	if len(found) == 0 {
		found = inspectGates(pod, subject)
	}
	if len(found) == 0 && text("status", "phase") == "Pending" && text("spec", "nodeName") == "" &&
		len(conditionsOf(pod)) == 0 {
		found = append(found, Finding{Rank: RankUnschedulable, Subject: subject,
			Text: fmt.Sprintf("waits for the scheduler %s, which has not looked at it: is it running?",
				cmp.Or(text("spec", "schedulerName"), "default-scheduler"))})
	}
	if _, reported, _ := unstructured.NestedSlice(pod.Object, "status", "containerStatuses"); len(found) == 0 &&
		!reported && text("status", "phase") == "Pending" && text("spec", "nodeName") != "" {
		found = append(found, Finding{Rank: RankPending, Subject: subject,
			Text: "waits for the agent of Node/" + text("spec", "nodeName") + ", which has not reported on it yet"})
	}
	return found
}

// startsFirst reports whether a container must end before the others start: an init container that is no sidecar.
func startsFirst(pod *unstructured.Unstructured, name string) bool {
	first, _, _ := unstructured.NestedSlice(pod.Object, "spec", "initContainers")
	for _, item := range first {
		if c, _ := item.(map[string]any); c["name"] == name {
			return c["restartPolicy"] != "Always"
		}
	}
	return false
}

// inspectGates finds the readiness gates of a pod that is not ready although its containers are.
func inspectGates(pod *unstructured.Unstructured, subject string) (found []Finding) {
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
			found = append(found, Finding{Rank: RankProbe, Subject: subject, Text: "waits for its readiness gate " +
				name})
		}
	}
	return found
}

// restartedLately is how long the failure of a container that runs again is reported. The kubelet resets its back-off
// after the same time.
const restartedLately = 10 * time.Minute

func inspectContainer(state map[string]any, startsFirst bool, now time.Time, add func(Rank, string, ...any)) {
	text := func(path ...string) string { s, _, _ := unstructured.NestedString(state, path...); return s }
	container := "container " + text("name")
	if startsFirst {
		container = "init " + container
	}
	reason, message := text("state", "waiting", "reason"), text("state", "waiting", "message")
	restarts, _ := state["restartCount"].(int64)
	code, ended, _ := unstructured.NestedInt64(state, "lastState", "terminated", "exitCode")
	switch {
	case strings.Contains(reason, "Image") || reason == "RegistryUnavailable":
		add(RankImage, "%s cannot get its image: %s", container, cmp.Or(message, reason))
	case reason == "CrashLoopBackOff" && ended:
		add(RankCrash, "%s keeps ending with exit code %d (%s), %d restarts", container, code,
			cmp.Or(text("lastState", "terminated", "reason"), "Error"), restarts)
	case strings.HasPrefix(reason, "CreateContainer"), reason == "RunContainerError", reason == "CrashLoopBackOff":
		add(RankCrash, "%s cannot start: %s", container, cmp.Or(message, reason))
	case reason != "" && reason != "PodInitializing":
		add(RankPending, "%s waits: %s", container, cmp.Or(message, reason))
	}
	if code, failed, _ := unstructured.NestedInt64(state, "state", "terminated", "exitCode"); failed && code != 0 {
		add(RankCrash, "%s ended with exit code %d (%s)", container, code,
			cmp.Or(text("state", "terminated", "reason"), "Error"))
	}
	_, running, _ := unstructured.NestedMap(state, "state", "running")
	ready, _ := state["ready"].(bool)
	switch {
	case running && startsFirst:
		add(RankPending, "%s still runs; the containers after it wait for its end", container)
	case running && !ready:
		add(RankProbe, "%s runs but is not ready: its readiness or startup probe has not passed", container)
	case running && code != 0:
		end, err := time.Parse(time.RFC3339, text("lastState", "terminated", "finishedAt"))
		if err == nil && now.Sub(end) < restartedLately {
			add(RankRestart, "%s runs again, %d restarts: it ended %s ago with exit code %d (%s)", container, restarts,
				duration.HumanDuration(now.Sub(end)), code,
				cmp.Or(text("lastState", "terminated", "reason"), "Error"))
		}
	}
}
