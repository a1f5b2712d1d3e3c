package api

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

func pods() *Resource {
	return &Resource{
		Version: "v1", Kind: "Pod", Plural: "pods", Namespaced: true,
		ShortNames: []string{"po"},
		Categories: []string{"all"},
		New:        func() Object { return &corev1.Pod{} },
		NewList:    func() runtime.Object { return &corev1.PodList{} },

		Default:        with(defaultPod),
		Validate:       checked(validatePod),
		ValidateCreate: checked(validateNewPod),
		ValidateUpdate: checked2(validatePodUpdate),
		Warnings:       warned2(warnPod),
		Status: statusOf(
			func(p *corev1.Pod) *corev1.PodStatus { return &p.Status },
			(*corev1.PodStatus).DeepCopy,
		).withMetadata(AllMetadata &^ OwnerReferences).startingAs(with(startPod)).checkedBy(checked2(validatePodStatus)),
		Parts: []Subresource{
			{Name: "attach", Version: "v1", Kind: "PodAttachOptions", Verbs: []string{"create", "get"}, Connect: true},
			{Name: "exec", Version: "v1", Kind: "PodExecOptions", Verbs: []string{"create", "get"}, Connect: true},
			{Name: "log", Version: "v1", Kind: "Pod", Verbs: []string{"get"}, Connect: true},
			{Name: "portforward", Version: "v1", Kind: "PodPortForwardOptions", Verbs: []string{"create", "get"}, Connect: true},
			proxyTo("PodProxyOptions"),
			{Name: "binding", Version: "v1", Kind: "Binding", Verbs: []string{"create"}},
			{Name: "eviction", Group: "policy", Version: "v1", Kind: "Eviction", Verbs: []string{"create"}},
			{
				Name: "ephemeralcontainers", Version: "v1", Kind: "Pod", Verbs: []string{"get", "patch", "update"},
				Copy: with2(func(to, from *corev1.Pod) {
					to.Spec.EphemeralContainers = from.Spec.DeepCopy().EphemeralContainers
					defaultPodSpec(&to.Spec) // the new ones
				}),
				Validate: checked2(validateEphemeralUpdate),
			},
			{
				Name: "resize", Version: "v1", Kind: "Pod", Verbs: []string{"get", "patch", "update"},
				Copy:     with2(copyResources),
				Validate: checked2(validateResize),
			},
		},
		Generation:  true,
		DeleteGrace: podGrace,
		Fields: []string{
			"spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName",
			"spec.hostNetwork", "status.phase", "status.podIP", "status.nominatedNodeName",
		},
		FieldIndex: "spec.nodeName",
		FieldZero:  map[string]string{"spec.hostNetwork": "false"},

		Columns: []metav1.TableColumnDefinition{
			nameColumn,
			column("Ready", "string", "The aggregate readiness state of this pod for accepting traffic."),
			column("Status", "string", "The aggregate status of the containers in this pod."),
			column("Restarts", "string", "The number of times the containers in this pod have been restarted and when the last container in this pod has restarted."),
			ageColumn,
			wide("IP", "string", corev1.PodStatus{}.SwaggerDoc()["podIP"]),
			wide("Node", "string", corev1.PodSpec{}.SwaggerDoc()["nodeName"]),
			wide("Nominated Node", "string", corev1.PodStatus{}.SwaggerDoc()["nominatedNodeName"]),
			wide("Readiness Gates", "string", corev1.PodSpec{}.SwaggerDoc()["readinessGates"]),
		},
		Cells:         row(podCells),
		RowConditions: podRowConditions,
	}
}

// proxyTo is the subresource through which requests reach what is behind the server.
func proxyTo(kind string) Subresource {
	return Subresource{Name: "proxy", Version: "v1", Kind: kind, Verbs: []string{"create", "delete", "get", "patch", "update"}, Connect: true}
}

// startPod gives a new pod its first status: pending, with its quality of service, and
// held back from the scheduler while it has scheduling gates.
func startPod(p *corev1.Pod) {
	p.Status.Phase = corev1.PodPending
	p.Status.QOSClass = qosClass(&p.Spec)
	if len(p.Spec.SchedulingGates) > 0 {
		p.Status.Conditions = []corev1.PodCondition{{
			Type:    corev1.PodScheduled,
			Status:  corev1.ConditionFalse,
			Reason:  corev1.PodReasonSchedulingGated,
			Message: "Scheduling is blocked due to non-empty scheduling gates",
		}}
	}
}

// podGrace is how long a deleted pod may take to stop. A pod that no node runs, or that has
// ended, has nothing to stop; a negative wish means at once but through the node (1 s).
func podGrace(obj Object, asked *int64) int64 {
	p := obj.(*corev1.Pod)
	grace := int64(0)
	switch {
	case asked != nil:
		grace = *asked
	case p.Spec.TerminationGracePeriodSeconds != nil:
		grace = *p.Spec.TerminationGracePeriodSeconds
	}
	if p.Spec.NodeName == "" || p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded {
		return 0
	}
	if grace < 0 {
		return 1
	}
	return grace
}

// qosClass tells how a pod's requests and limits rank it when a node runs short. Only cpu
// and memory count; resources of the pod as a whole go before those of its containers.
func qosClass(spec *corev1.PodSpec) corev1.PodQOSClass {
	if r := spec.Resources; r != nil && (len(r.Requests) > 0 || len(r.Limits) > 0) {
		return qosOf([]corev1.ResourceRequirements{*r})
	}
	all := make([]corev1.ResourceRequirements, 0, len(spec.Containers)+len(spec.InitContainers))
	for i := range spec.Containers {
		all = append(all, spec.Containers[i].Resources)
	}
	for i := range spec.InitContainers {
		all = append(all, spec.InitContainers[i].Resources)
	}
	return qosOf(all)
}

func qosOf(all []corev1.ResourceRequirements) corev1.PodQOSClass {
	guaranteed, any := true, false
	for _, r := range all {
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			request, limit := r.Requests[name], r.Limits[name]
			any = any || !request.IsZero() || !limit.IsZero()
			if limit.IsZero() || (!request.IsZero() && request.Cmp(limit) != 0) {
				guaranteed = false
			}
		}
	}
	switch {
	case !any:
		return corev1.PodQOSBestEffort
	case guaranteed:
		return corev1.PodQOSGuaranteed
	default:
		return corev1.PodQOSBurstable
	}
}
