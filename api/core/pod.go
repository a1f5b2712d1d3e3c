package core

import (
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kubectl/pkg/util/qos"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/kit/table"
	"github.com/coxswain-dev/coxswain/api/podspec"
)

func pods() *api.Resource {
	return &api.Resource{
		Names: api.Names{
			Version: "v1", Kind: "Pod", Plural: "pods", Namespaced: true,
			ShortNames: []string{"po"},
			Categories: []string{"all"},
		},
		Storage: api.Storage{
			BindsTokens: true,
			New:         func() api.Object { return &corev1.Pod{} },
			NewList:     func() runtime.Object { return &corev1.PodList{} },
			Fields: []string{
				"spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName",
				"spec.hostNetwork", "status.phase", "status.podIP", "status.nominatedNodeName",
			},
			FieldIndex: "spec.nodeName",
			FieldZero:  map[string]string{"spec.hostNetwork": "false"},
		},
		Strategy: api.Strategy{
			ReturnDeleted:  true,
			Default:        api.Typed(podspec.DefaultPod),
			Validate:       api.Check(validatePod),
			ValidateCreate: api.Check(validateNewPod),
			ValidateUpdate: api.CheckUpdate(validatePodUpdate),
			Warnings:       api.Warn(podspec.WarnPod),
			Status: api.StatusOf(
				func(p *corev1.Pod) *corev1.PodStatus { return &p.Status },
				(*corev1.PodStatus).DeepCopy,
			).WithMetadata(api.AllMetadata &^ api.OwnerReferences).StartingAs(api.Typed(startPod)).CheckedBy(
				api.CheckUpdate(validatePodStatus)),
			Subresources: []api.Subresource{
				{Name: "attach", Version: "v1", Kind: "PodAttachOptions", Verbs: []string{"create", "get"},
					Connect:        true,
					ConnectOptions: attachOptions},
				{Name: "exec", Version: "v1", Kind: "PodExecOptions", Verbs: []string{"create", "get"}, Connect: true,
					ConnectOptions: execOptions},
				{Name: "log", Version: "v1", Kind: "Pod", Verbs: []string{"get"}, Connect: true},
				{Name: "portforward", Version: "v1", Kind: "PodPortForwardOptions", Verbs: []string{"create", "get"},
					Connect: true, ConnectOptions: portForwardOptions},
				proxyTo("PodProxyOptions"),
				{Name: "binding", Version: "v1", Kind: "Binding", Verbs: []string{"create"},
					New: func() api.Object { return &corev1.Binding{} }},
				{Name: "eviction", Group: policyv1.GroupName, Version: "v1", Kind: "Eviction",
					Verbs: []string{"create"},
					New:   func() api.Object { return &policyv1.Eviction{} }},
				{
					Name: "ephemeralcontainers", Version: "v1", Kind: "Pod", Verbs: []string{"get", "patch", "update"},
					Copy: api.Typed2(func(dst, src *corev1.Pod) {
						dst.Spec.EphemeralContainers = src.Spec.DeepCopy().EphemeralContainers
						podspec.Default(&dst.Spec) // sets the defaults of new ephemeral containers
					}),
					Validate: api.CheckUpdate(validateEphemeralUpdate),
				},
				{
					Name: "resize", Version: "v1", Kind: "Pod", Verbs: []string{"get", "patch", "update"},
					Copy:     api.Typed2(copyResources),
					Validate: api.CheckUpdate(validateResize),
				},
			},
			Generation:  true,
			DeleteGrace: podGrace,
		},
		Table: api.Table{
			Columns: []metav1.TableColumnDefinition{
				table.Name,
				table.Column("Ready", "string", "The aggregate readiness state of this pod for accepting traffic."),
				table.Column("Status", "string", "The aggregate status of the containers in this pod."),
				table.Column("Restarts", "string",
					"The number of times the containers in this pod have been restarted and "+
						"when the last container in this pod has restarted."),
				table.Age,
				table.Wide("IP", "string", corev1.PodStatus{}.SwaggerDoc()["podIP"]),
				table.Wide("Node", "string", corev1.PodSpec{}.SwaggerDoc()["nodeName"]),
				table.Wide("Nominated Node", "string", corev1.PodStatus{}.SwaggerDoc()["nominatedNodeName"]),
				table.Wide("Readiness Gates", "string", corev1.PodSpec{}.SwaggerDoc()["readinessGates"]),
			},
			Cells:         api.Row(podCells),
			RowConditions: podRowConditions,
		},
	}
}

// startPod sets the initial status of a new pod: pending, with its quality of service class. If it has scheduling
// gates, a condition keeps the scheduler from it.
func startPod(p *corev1.Pod) {
	p.Status.Phase = corev1.PodPending
	p.Status.QOSClass = qos.ComputePodQOS(p)
	if len(p.Spec.SchedulingGates) > 0 {
		p.Status.Conditions = []corev1.PodCondition{{
			Type:    corev1.PodScheduled,
			Status:  corev1.ConditionFalse,
			Reason:  corev1.PodReasonSchedulingGated,
			Message: "Scheduling is blocked due to non-empty scheduling gates",
		}}
	}
}

// podGrace returns the grace period of a deleted pod. It is zero for a pod without a node, or one that has ended,
// since no process has to be stopped. A negative period means immediate deletion, but through the node (1 s).
func podGrace(obj api.Object, requested *int64) int64 {
	p := obj.(*corev1.Pod)
	grace := int64(0)
	switch {
	case requested != nil:
		grace = *requested
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
