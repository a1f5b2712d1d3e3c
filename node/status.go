package node

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/kubectl/pkg/util/qos"

	"github.com/coxswain-dev/coxswain/node/runtime"
)

// addressesOf returns the IPs in a status, the primary one first.
func addressesOf(s *corev1.PodStatus) []string {
	var addresses []string
	for _, ip := range s.PodIPs {
		addresses = append(addresses, ip.IP)
	}
	if len(addresses) == 0 && s.PodIP != "" {
		addresses = []string{s.PodIP}
	}
	return addresses
}

// status is the PodStatus that says what the pod has come to. Conditions keep their time where they
// say the same as before, and those of others (readiness gates, the scheduler's) stay.
func (p *podState) status(now time.Time) *corev1.PodStatus {
	old := &p.pod.Status
	started := metav1.NewTime(p.startTime)
	s := &corev1.PodStatus{
		ObservedGeneration: p.pod.Generation,
		Phase:              p.phase(),
		HostIP:             p.hostIP,
		HostIPs:            []corev1.HostIP{{IP: p.hostIP}},
		StartTime:          &started,
		QOSClass:           old.QOSClass,
		NominatedNodeName:  old.NominatedNodeName,
	}
	if s.QOSClass == "" {
		s.QOSClass = qos.GetPodQOS(p.pod)
	}
	for _, ip := range p.addresses {
		s.PodIPs = append(s.PodIPs, corev1.PodIP{IP: ip})
	}
	if len(p.addresses) > 0 {
		s.PodIP = p.addresses[0]
	}
	if !p.refused { // it has no containers; clients such as kubectl would show them as being created
		p.containerStatuses(s)
	}
	if p.stopped() { // until then it is on its way, which the API calls Running
		s.Reason, s.Message = p.reason, p.message
	}
	s.Conditions = p.conditions(s, metav1.NewTime(now))
	return s
}

func (p *podState) containerStatuses(s *corev1.PodStatus) {
	for _, c := range p.init {
		s.InitContainerStatuses = append(s.InitContainerStatuses, p.containerStatus(c))
	}
	for _, c := range p.app {
		s.ContainerStatuses = append(s.ContainerStatuses, p.containerStatus(c))
	}
	for _, c := range p.ephemeral {
		s.EphemeralContainerStatuses = append(s.EphemeralContainerStatuses, p.containerStatus(c))
	}
	p.shortenMessages(s)
}

// maxPodMessages is how long the termination messages of a pod may be together, the kubelet's
// MaxPodTerminationMessageLogLength.
const maxPodMessages = 12 << 10

// shortenMessages gives the messages of all containers their part of what a pod has for them.
func (p *podState) shortenMessages(s *corev1.PodStatus) {
	most := maxPodMessages / max(1, len(p.init)+len(p.app)+len(p.ephemeral))
	for _, list := range [][]corev1.ContainerStatus{s.InitContainerStatuses, s.ContainerStatuses,
		s.EphemeralContainerStatuses} {
		for i := range list {
			for _, at := range []**corev1.ContainerStateTerminated{&list[i].State.Terminated,
				&list[i].LastTerminationState.Terminated} {
				if t := *at; t != nil && len(t.Message) > most {
					short := *t // others hold what it is from
					short.Message = strings.ToValidUTF8(t.Message[:most], "")
					*at = &short
				}
			}
		}
	}
}

// phase follows the kubelet's rules (getPhase).
func (p *podState) phase() corev1.PodPhase {
	if p.failed {
		return corev1.PodFailed
	}
	if p.stopping || p.ended() {
		if !p.stopped() {
			return corev1.PodRunning
		}
		if p.reason != "" {
			return corev1.PodFailed
		}
		for _, c := range p.app {
			if c.ended == nil || c.ended.ExitCode != 0 {
				return corev1.PodFailed
			}
		}
		return corev1.PodSucceeded
	}
	if !p.initialized {
		return corev1.PodPending
	}
	for _, c := range p.app {
		if c.running == nil && c.ended == nil {
			return corev1.PodPending
		}
	}
	return corev1.PodRunning
}

func (p *podState) containerStatus(c *containerRun) corev1.ContainerStatus {
	running := c.running != nil
	started := running && !c.starting
	s := corev1.ContainerStatus{
		Name: c.spec.Name, Image: c.spec.Image, ImageID: c.imageID, ContainerID: c.id,
		RestartCount: c.run, Ready: running && c.ready, Started: &started,
	}
	if c.id != "" {
		s.AllocatedResources = c.spec.Resources.Requests
		s.Resources = &corev1.ResourceRequirements{Limits: c.actual.Limits, Requests: c.actual.Requests}
	}
	if c.last != nil {
		s.LastTerminationState.Terminated = c.last
	}
	switch {
	case running:
		s.State.Running = &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(c.started)}
	case c.pull != nil:
		s.State.Waiting = c.pull
		s.LastTerminationState.Terminated = c.ended
	case c.ended != nil && p.restarts(c):
		s.State.Waiting = &corev1.ContainerStateWaiting{
			Reason: "CrashLoopBackOff",
			Message: "back-off " + restartDelay(c.retries-1).String() + " restarting failed container=" + c.spec.Name +
				" pod=" + p.pod.Name + "_" + p.pod.Namespace + "(" + string(p.pod.UID) + ")",
		}
		s.LastTerminationState.Terminated = c.ended
	case c.ended != nil:
		s.State.Terminated = c.ended
		s.Ready = c.isInit && c.ended.ExitCode == 0 // an init container is ready when it has done its work
	case len(p.init) > 0:
		s.State.Waiting = &corev1.ContainerStateWaiting{Reason: "PodInitializing"}
	default:
		s.State.Waiting = &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}
	}
	return s
}

// conditions are in the kubelet's order.
func (p *podState) conditions(s *corev1.PodStatus, now metav1.Time) []corev1.PodCondition {
	own := []corev1.PodCondition{
		{Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionFalse},
		p.initializedCondition(s),
		{Type: corev1.PodReady},
		p.containersReady(s),
		{Type: corev1.PodScheduled, Status: corev1.ConditionTrue},
	}
	if len(p.addresses) > 0 && !p.stopped() {
		own[0].Status = corev1.ConditionTrue
	}
	own[2] = p.readyCondition(own[3])
	if p.disruption != nil && p.stopped() {
		own = append(own, *p.disruption)
	}
	for i := range own {
		own[i].ObservedGeneration = p.pod.Generation
	}
	own = append(own, p.resizeConditions()...)
	for i := range own {
		own[i].LastTransitionTime = now
		if old := findCondition(p.previous(), own[i].Type); old != nil && old.Status == own[i].Status {
			own[i].LastTransitionTime = old.LastTransitionTime
		}
	}
	for _, c := range p.pod.Status.Conditions {
		if findCondition(own, c.Type) == nil && !isResizeCondition(c.Type) {
			own = append(own, c)
		}
	}
	return own
}

// own is a status without the conditions of others: the cache may show one as it was before they wrote it last, and the
// agent would write it back.
func (p *podState) own(s *corev1.PodStatus) *corev1.PodStatus {
	own := *s
	own.Conditions = slices.DeleteFunc(slices.Clone(s.Conditions), func(c corev1.PodCondition) bool {
		if c.Type == corev1.DisruptionTarget {
			return p.disruption == nil || !p.stopped()
		}
		return !slices.Contains(ownConditions, c.Type) && !isResizeCondition(c.Type)
	})
	return &own
}

// previous are the conditions as last written, which a cache may not show yet.
func (p *podState) previous() []corev1.PodCondition {
	if p.sent != nil {
		return p.sent.Conditions
	}
	return p.pod.Status.Conditions
}

// ownConditions are those that the kubelet owns (kubetypes.PodConditionByKubelet), and PodScheduled, which it
// knows to be so.
var ownConditions = []corev1.PodConditionType{
	corev1.PodReadyToStartContainers, corev1.PodInitialized, corev1.PodReady, corev1.ContainersReady,
	corev1.PodScheduled,
}

// overwritten reports that somebody has since changed what is the agent's to say. The node controller does,
// when heartbeats are missing: the pods of the node are not ready then, and nobody but the agent says so when
// they are again. The kubelet compares in the same way (needsReconcile of its status manager).
func (p *podState) overwritten() bool {
	if p.sent == nil || phaseEnded(p.pod.Status.Phase) {
		return false // a pod that was said to have ended does not live again
	}
	if order, err := resourceversion.CompareResourceVersion(p.pod.ResourceVersion, p.sentVersion); err != nil ||
		order <= 0 {
		return false // what was seen is no newer than what was written
	}
	for _, t := range ownConditions {
		seen, sent := findCondition(p.pod.Status.Conditions, t), findCondition(p.sent.Conditions, t)
		if (seen == nil) != (sent == nil) || seen != nil && seen.Status != sent.Status {
			return true
		}
	}
	return p.pod.Status.Phase != p.sent.Phase
}

func (p *podState) initializedCondition(s *corev1.PodStatus) corev1.PodCondition {
	c := corev1.PodCondition{Type: corev1.PodInitialized, Status: corev1.ConditionTrue}
	if s.Phase == corev1.PodSucceeded {
		c.Reason = "PodCompleted"
		return c
	}
	if p.initialized || len(p.init) == 0 {
		return c
	}
	var names []string
	for i := range s.InitContainerStatuses {
		if !s.InitContainerStatuses[i].Ready {
			names = append(names, s.InitContainerStatuses[i].Name)
		}
	}
	c.Status, c.Reason = corev1.ConditionFalse, "ContainersNotInitialized"
	c.Message = "containers with incomplete status: [" + strings.Join(names, " ") + "]"
	return c
}

func (p *podState) containersReady(s *corev1.PodStatus) corev1.PodCondition {
	c := corev1.PodCondition{Type: corev1.ContainersReady, Status: corev1.ConditionFalse}
	switch s.Phase {
	case corev1.PodSucceeded:
		c.Reason = "PodCompleted"
		return c
	case corev1.PodFailed:
		c.Reason = "PodFailed"
		return c
	}
	var unready []string
	for i, run := range p.init {
		if runtime.IsSidecar(run.spec) && !s.InitContainerStatuses[i].Ready {
			unready = append(unready, run.spec.Name)
		}
	}
	for i := range s.ContainerStatuses {
		if !s.ContainerStatuses[i].Ready {
			unready = append(unready, s.ContainerStatuses[i].Name)
		}
	}
	if len(unready) > 0 {
		c.Reason = "ContainersNotReady"
		c.Message = "containers with unready status: [" + strings.Join(unready, " ") + "]"
		return c
	}
	c.Status = corev1.ConditionTrue
	return c
}

// readyCondition adds to the containers' readiness what the pod's readiness gates ask for.
func (p *podState) readyCondition(containers corev1.PodCondition) corev1.PodCondition {
	c := containers
	c.Type = corev1.PodReady
	if c.Status != corev1.ConditionTrue {
		return c
	}
	var open []string
	for _, gate := range p.pod.Spec.ReadinessGates {
		condition := findCondition(p.pod.Status.Conditions, gate.ConditionType)
		switch {
		case condition == nil:
			open = append(open, `corresponding condition of pod readiness gate "`+string(gate.ConditionType)+
				`" does not exist.`)
		case condition.Status != corev1.ConditionTrue:
			open = append(open, `the status of pod readiness gate "`+string(gate.ConditionType)+`" is not "True", but `+
				string(condition.Status))
		}
	}
	if len(open) > 0 {
		c.Status, c.Reason, c.Message = corev1.ConditionFalse, "ReadinessGatesNotReady", strings.Join(open, ", ")
	}
	return c
}

func findCondition(conditions []corev1.PodCondition, t corev1.PodConditionType) *corev1.PodCondition {
	for i := range conditions {
		if conditions[i].Type == t {
			return &conditions[i]
		}
	}
	return nil
}
