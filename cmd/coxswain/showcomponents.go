package main

import (
	"context"
	"log/slog"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/apiserver"
	"github.com/coxswain-dev/coxswain/internal/loglines"
	"github.com/coxswain-dev/coxswain/node"
)

// shownComponent returns a component for the first Node to show as a static pod in kube-system, and the logger whose
// lines are the pod's log. The lines also go to the process's log, as far as its level admits them.
func shownComponent(name string, labels map[string]string) (node.Component, *slog.Logger) {
	log := &loglines.Log{}
	own := slog.NewTextHandler(log, nil) // from the level info on
	logger := slog.New(tee{slog.Default().Handler(), own})
	slog.New(own).Info("starting "+name, "version", apiserver.Version)
	pod := &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceSystem, Labels: labels},
		Spec: corev1.PodSpec{
			HostNetwork: true, PriorityClassName: "system-node-critical",
			Containers: []corev1.Container{{Name: name, Image: "coxswain:" + imageTag(apiserver.Version)}},
		},
	}
	return node.Component{Pod: pod, Log: log}, logger
}

// imageTag returns a version as a tag of an image, which cannot contain a plus sign.
func imageTag(version string) string {
	tag := []byte(version)
	for i, c := range tag {
		if c == '+' {
			tag[i] = '_'
		}
	}
	return string(tag)
}

func controlPlaneLabels(name string) map[string]string {
	return map[string]string{"component": name, "tier": "control-plane"}
}

// tee passes log records to two handlers.
type tee [2]slog.Handler

// Enabled implements slog.Handler.
func (t tee) Enabled(ctx context.Context, level slog.Level) bool {
	return t[0].Enabled(ctx, level) || t[1].Enabled(ctx, level)
}

// Handle implements slog.Handler.
func (t tee) Handle(ctx context.Context, r slog.Record) error {
	var first error
	for _, h := range t {
		if h.Enabled(ctx, r.Level) {
			if err := h.Handle(ctx, r.Clone()); first == nil {
				first = err
			}
		}
	}
	return first
}

// WithAttrs implements slog.Handler.
func (t tee) WithAttrs(attrs []slog.Attr) slog.Handler {
	return tee{t[0].WithAttrs(attrs), t[1].WithAttrs(attrs)}
}

// WithGroup implements slog.Handler.
func (t tee) WithGroup(name string) slog.Handler {
	return tee{t[0].WithGroup(name), t[1].WithGroup(name)}
}
