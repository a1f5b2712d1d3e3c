package podstate

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubectl/pkg/util/qos"
)

// Status returns the PodStatus that follows from the state. Conditions keep their time where they are the same in
// previous, the conditions as last written, or else in the pod as last seen. Conditions that others write (readiness
// gates, the scheduler's) stay.
func (p *Pod) Status(now time.Time, previous []corev1.PodCondition) *corev1.PodStatus {
	old := &p.pod.Status
	started := metav1.NewTime(p.startTime)
	s := &corev1.PodStatus{
		ObservedGeneration: p.pod.Generation,
		Phase:              p.Phase(),
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
	if !p.rejected { // a rejected pod has no containers; clients such as kubectl would show them as being created
		p.containerStatuses(s)
	}
	if p.Stopped() { // until then the pod is still running, for clients
		s.Reason, s.Message = p.reason, p.message
	}
	if previous == nil {
		previous = old.Conditions
	}
	s.Conditions = p.conditions(s, previous, metav1.NewTime(now))
	return s
}

func (p *Pod) containerStatuses(s *corev1.PodStatus) {
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

// maxPodMessages limits the length of a pod's termination messages together: the kubelet's
// MaxPodTerminationMessageLogLength.
const maxPodMessages = 12 << 10

// shortenMessages cuts the termination messages of all containers to equal shares of the limit.
func (p *Pod) shortenMessages(s *corev1.PodStatus) {
	limit := maxPodMessages / max(1, len(p.init)+len(p.app)+len(p.ephemeral))
	for _, list := range [][]corev1.ContainerStatus{s.InitContainerStatuses, s.ContainerStatuses,
		s.EphemeralContainerStatuses} {
		for i := range list {
			for _, state := range []**corev1.ContainerStateTerminated{&list[i].State.Terminated,
				&list[i].LastTerminationState.Terminated} {
				if t := *state; t != nil && len(t.Message) > limit {
					short := *t // the container keeps the whole message
					short.Message = strings.ToValidUTF8(t.Message[:limit], "")
					*state = &short
				}
			}
		}
	}
}

// Phase follows the kubelet's rules (getPhase).
func (p *Pod) Phase() corev1.PodPhase {
	if p.failed {
		return corev1.PodFailed
	}
	if p.stopping || p.Ended() {
		if !p.Stopped() {
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
		if c.phase != running && c.ended == nil {
			return corev1.PodPending
		}
	}
	return corev1.PodRunning
}

// ContainerStatus returns the status of a container, or nil if the pod has none of that name.
func (p *Pod) ContainerStatus(name string) *corev1.ContainerStatus {
	c := p.find(name)
	if c == nil {
		return nil
	}
	s := p.containerStatus(c)
	return &s
}

func (p *Pod) containerStatus(c *container) corev1.ContainerStatus {
	runs := c.phase == running
	started := runs && !c.starting
	s := corev1.ContainerStatus{
		Name: c.spec.Name, Image: c.spec.Image, ImageID: c.imageID, ContainerID: c.id,
		RestartCount: c.run, Ready: runs && c.ready, Started: &started,
	}
	if c.id != "" {
		s.AllocatedResources = c.spec.Resources.Requests
		s.Resources = &corev1.ResourceRequirements{Limits: c.actual.Limits, Requests: c.actual.Requests}
	}
	if c.last != nil {
		s.LastTerminationState.Terminated = c.last
	}
	switch {
	case runs:
		s.State.Running = &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(c.started)}
	case c.waiting != nil:
		s.State.Waiting = c.waiting
		s.LastTerminationState.Terminated = c.ended
	case c.ended != nil && p.restarts(c):
		s.State.Waiting = p.waitingForRestart(c)
		s.LastTerminationState.Terminated = c.ended
	case c.ended != nil:
		s.State.Terminated = c.ended
		s.Ready = c.isInit && c.ended.ExitCode == 0 // an init container is ready when it has succeeded
	default:
		s.State.Waiting = &corev1.ContainerStateWaiting{Reason: p.creating()}
	}
	return s
}

// creating returns the reason of a container that waits for its start.
func (p *Pod) creating() string {
	if len(p.init) > 0 {
		return "PodInitializing"
	}
	return "ContainerCreating"
}

// waitingForRestart returns the state between two runs of a container: its back-off or, where there was none, the
// pull and the start of the next run.
func (p *Pod) waitingForRestart(c *container) *corev1.ContainerStateWaiting {
	if c.phase != idle && !c.reported {
		return &corev1.ContainerStateWaiting{Reason: p.creating()}
	}
	return &corev1.ContainerStateWaiting{
		Reason: "CrashLoopBackOff",
		Message: "back-off " + restartDelay(c.retries-1).String() + " restarting failed container=" + c.spec.Name +
			" pod=" + p.pod.Name + "_" + p.pod.Namespace + "(" + string(p.pod.UID) + ")",
	}
}
