package node

import (
	"fmt"
	"net/http"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/node/runtime"
)

// containerLogs answers with a container's log. If there is none yet, it reports the reason in the kubelet's words.
func (e *endpoint) containerLogs(w http.ResponseWriter, r *http.Request, pod *corev1.Pod) {
	o, err := parseLogOptions(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	o.Container = r.PathValue("container")
	run, err := e.logRun(pod, o.Container, o.Previous)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	open := func() (runtime.LogReader, error) { return e.runtimeOf(pod).OpenLog(pod, run) }
	first, err := open()
	if err != nil {
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	}
	_ = first.Close()
	w.Header().Set("Content-Type", "text/plain")
	w.WriteHeader(http.StatusOK)
	if f, ok := w.(http.Flusher); ok && o.Follow {
		f.Flush()
	}
	if err := copyLog(r.Context(), w, open, run, o, e.Clock); err != nil {
		e.Log.Debug("cannot copy a log", "pod", pod.Namespace+"/"+pod.Name, "container", o.Container, "err", err)
	}
}

// parseLogOptions parses options that the API server has already validated.
func parseLogOptions(r *http.Request) (*corev1.PodLogOptions, error) {
	q := r.URL.Query()
	o := &corev1.PodLogOptions{Follow: q.Get("follow") == "true", Previous: q.Get("previous") == "true",
		Timestamps: q.Get("timestamps") == "true"}
	for name, field := range map[string]**int64{"sinceSeconds": &o.SinceSeconds, "tailLines": &o.TailLines,
		"limitBytes": &o.LimitBytes} {
		if text := q.Get(name); text != "" {
			n, err := strconv.ParseInt(text, 10, 64)
			if err != nil || n < 0 {
				return nil, fmt.Errorf("invalid %s %q", name, text)
			}
			*field = &n
		}
	}
	if text := q.Get("sinceTime"); text != "" {
		since, err := time.Parse(time.RFC3339, text)
		if err != nil {
			return nil, fmt.Errorf("invalid sinceTime %q", text)
		}
		o.SinceTime = &metav1.Time{Time: since}
	}
	return o, nil
}

// containerStatus returns the latest status of a container; nil if the pod is gone or has no such container. The status
// is at least as recent as the API server's: the pod's state precedes the status that is written, and the state is
// forgotten only after the cache shows how the pod ended. So the state must be read before the cache, and pod, which
// the caller may have found earlier, must not be used. The kubelet's status manager has such a state as well.
func (a *agent) containerStatus(pod *corev1.Pod, name string) *corev1.ContainerStatus {
	if p := a.hostedPod(pod.UID); p != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.state.ContainerStatus(name)
	}
	seen, err := a.nodes[pod.Spec.NodeName].pods.Pods(pod.Namespace).Get(pod.Name)
	if err != nil || seen.UID != pod.UID {
		return nil
	}
	status := &seen.Status
	for _, list := range [][]corev1.ContainerStatus{status.ContainerStatuses, status.InitContainerStatuses,
		status.EphemeralContainerStatuses} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}

// logRun returns the run of a container whose log is requested (validateContainerLogStatus in the kubelet).
func (a *agent) logRun(pod *corev1.Pod, name string, previous bool) (*runtime.LogRun, error) {
	s := a.containerStatus(pod, name)
	if s == nil {
		return nil, fmt.Errorf("container %q in pod %q is not available", name, pod.Name)
	}
	run := &runtime.LogRun{Container: name, Run: s.RestartCount}
	last := s.LastTerminationState.Terminated
	switch {
	case previous && last == nil:
		return nil, fmt.Errorf("previous terminated container %q in pod %q not found", name, pod.Name)
	case previous && s.State.Waiting == nil:
		run.Run--
		ended(run, last)
	case previous, s.State.Waiting != nil && last != nil:
		ended(run, last)
	case s.State.Running != nil:
		run.Started = s.State.Running.StartedAt.Time
		run.Ended = func() (time.Time, bool) { return a.runEnded(pod, name, run.Run) }
	case s.State.Terminated != nil:
		ended(run, s.State.Terminated)
	case s.State.Waiting != nil && s.State.Waiting.Reason == "ErrImagePull":
		return nil, fmt.Errorf("container %q in pod %q is waiting to start: image can't be pulled", name, pod.Name)
	case s.State.Waiting != nil && s.State.Waiting.Reason == "ImagePullBackOff":
		return nil, fmt.Errorf("container %q in pod %q is waiting to start: trying and failing to pull image",
			name, pod.Name)
	case s.State.Waiting != nil:
		return nil, fmt.Errorf("container %q in pod %q is waiting to start: %s", name, pod.Name, s.State.Waiting.Reason)
	}
	return run, nil
}

// ended sets the start and the end of a run.
func ended(l *runtime.LogRun, t *corev1.ContainerStateTerminated) {
	l.Started = t.StartedAt.Time
	l.Ended = func() (time.Time, bool) { return t.FinishedAt.Time, true }
}

// runEnded reports whether a run has ended, and when.
func (a *agent) runEnded(pod *corev1.Pod, name string, run int32) (time.Time, bool) {
	s := a.containerStatus(pod, name)
	if s == nil {
		return a.Clock.Now(), true
	}
	if s.RestartCount == run {
		if s.State.Running != nil {
			return time.Time{}, false
		}
		if ended := s.State.Terminated; ended != nil {
			return ended.FinishedAt.Time, true
		}
	}
	if last := s.LastTerminationState.Terminated; last != nil {
		return last.FinishedAt.Time, true
	}
	return a.Clock.Now(), true
}
