package node

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/coxswain-dev/coxswain/internal/loglines"
	"github.com/coxswain-dev/coxswain/node/runtime"
	"github.com/coxswain-dev/coxswain/node/simulated"
)

// Component is a part of the control plane that runs in the agent's process. The first Node shows it as a static pod,
// whose log is the component's own. The pod starts again with each process.
type Component struct {
	// Pod is the pod's manifest: its name without that of the Node, and one container.
	Pod *corev1.Pod
	// Log has the component's output.
	Log *loglines.Log
}

// annotationComponent marks the pods of components, with the name of the manifest. Only pods in the agent's record have
// the component's log.
const annotationComponent = "coxswain.dev/component"

// componentManifests returns the manifests of the pods for the components.
func (o *Options) componentManifests() ([]*corev1.Pod, error) {
	var manifests []*corev1.Pod
	for _, c := range o.Components {
		text, err := json.Marshal(c.Pod)
		if err != nil {
			return nil, err
		}
		pod, hash := c.Pod.DeepCopy(), runtime.Digest(string(text))[:32]
		pod.Annotations = withAnnotations(pod.Annotations, annotationComponent, pod.Name, annotationSource, "file",
			annotationHash, hash, corev1.MirrorPodAnnotationKey, hash)
		manifests = append(manifests, pod)
	}
	return manifests, nil
}

// runtimeOf returns the runtime of a pod: components are not programs of the agent's runtime.
func (a *agent) runtimeOf(pod *corev1.Pod) runtime.Runtime {
	if name := pod.Annotations[annotationComponent]; name != "" && a.isStatic(pod) {
		for _, c := range a.Components {
			if c.Pod.Name == name {
				return a.components
			}
		}
	}
	return a.runtime
}

// componentRuntime shows components as simulated containers with their own logs.
type componentRuntime struct {
	runtime.Runtime
	components []Component
}

func newComponentRuntime(components []Component, now func() time.Time) runtime.Runtime {
	return &componentRuntime{simulated.New(simulated.Options{Now: now}), components}
}

// Adopt returns an error: a component ends with its process, and each process counts as a restart.
func (*componentRuntime) Adopt(context.Context, *corev1.Pod, *corev1.Container, *corev1.ContainerStatus) (
	runtime.Container, error) {
	return nil, errors.New("the process of the control plane has ended")
}

// Usage returns an error: the components share one process, so their usage is not known.
func (*componentRuntime) Usage(context.Context, *corev1.Pod, *corev1.Container, time.Time, time.Time) (runtime.Usage,
	error) {
	return runtime.Usage{}, errors.New("the components share a process")
}

// OpenLog opens the component's log. There is none of earlier processes.
func (r *componentRuntime) OpenLog(pod *corev1.Pod, run *runtime.LogRun) (runtime.LogReader, error) {
	if _, ended := run.Ended(); ended {
		return componentLog{new(loglines.Log).Reader()}, nil
	}
	for _, c := range r.components {
		if c.Pod.Name == pod.Annotations[annotationComponent] {
			return componentLog{c.Log.Reader()}, nil
		}
	}
	return nil, errors.New("the component does not run")
}

// componentLog reads the log of a component as that of a container.
type componentLog struct{ *loglines.Reader }

// Next implements runtime.LogReader.
func (l componentLog) Next() (runtime.LogRecord, error) {
	line, err := l.Reader.Next()
	if errors.Is(err, io.EOF) {
		return runtime.LogRecord{}, io.EOF
	}
	return runtime.LogRecord{At: line.At, Text: line.Text, Stream: "stderr"}, err
}

// Close implements runtime.LogReader.
func (componentLog) Close() error { return nil }
