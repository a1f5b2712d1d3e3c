package api

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
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
		ValidateUpdate: checked2(validatePodUpdate),
		Warnings:       warned(warnPod),
		Status: statusOf(
			func(p *corev1.Pod) *corev1.PodStatus { return &p.Status },
			(*corev1.PodStatus).DeepCopy,
		).startingAs(with(startPod)).checkedBy(checked2(validatePodStatus)),
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
		Cells: row(podCells),
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

// validatePodStatus checks what a kubelet or scheduler reports.
func validatePodStatus(p, old *corev1.Pod) field.ErrorList {
	path := field.NewPath("status")
	var errs field.ErrorList
	if name := p.Status.NominatedNodeName; name != "" {
		errs = append(errs, dnsSubdomain(path.Child("nominatedNodeName"), name)...)
	}
	if p.Spec.NodeName != old.Spec.NodeName {
		errs = append(errs, field.Forbidden(path.Child("nodeName"), "may not be changed directly"))
	}
	if old.Status.QOSClass != "" && p.Status.QOSClass != old.Status.QOSClass {
		errs = append(errs, field.Invalid(path.Child("qosClass"), p.Status.QOSClass, immutableField))
	}
	for i, c := range p.Status.Conditions {
		errs = append(errs, qualifiedName(path.Child("conditions").Index(i).Child("type"), string(c.Type))...)
	}
	for i, ip := range p.Status.PodIPs {
		errs = append(errs, validIP(path.Child("podIPs").Index(i), ip.IP)...)
	}
	for i, ip := range p.Status.HostIPs {
		errs = append(errs, validIP(path.Child("hostIPs").Index(i), ip.IP)...)
	}
	return append(errs, validateStateTransitions(p, old, path)...)
}

// validateStateTransitions keeps a container that ended for good from running again.
func validateStateTransitions(p, old *corev1.Pod, path *field.Path) field.ErrorList {
	if p.Spec.RestartPolicy == corev1.RestartPolicyAlways || hasRestartRules(&p.Spec) {
		return nil
	}
	var errs field.ErrorList
	path = path.Child("containerStatuses")
	for _, was := range old.Status.ContainerStatuses {
		t := was.State.Terminated
		if t == nil || (t.ExitCode != 0 && p.Spec.RestartPolicy == corev1.RestartPolicyOnFailure) {
			continue
		}
		for i, is := range p.Status.ContainerStatuses {
			if is.Name == was.Name && is.State.Terminated == nil {
				errs = append(errs, field.Forbidden(path.Index(i).Child("state"), "may not be transitioned to non-terminated state"))
			}
		}
	}
	return errs
}

func hasRestartRules(spec *corev1.PodSpec) bool {
	for i := range spec.Containers {
		if spec.Containers[i].RestartPolicy != nil || len(spec.Containers[i].RestartPolicyRules) > 0 {
			return true
		}
	}
	return false
}
