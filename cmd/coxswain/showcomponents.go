package main

import (
	"log/slog"
	"strings"

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
	logger := slog.New(slog.NewMultiHandler(slog.Default().Handler(), own))
	slog.New(own).Info("starting "+name, "version", apiserver.Version)
	tag := strings.ReplaceAll(apiserver.Version, "+", "_") // an image's tag has no plus sign
	pod := &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceSystem, Labels: labels},
		Spec: corev1.PodSpec{
			HostNetwork: true, PriorityClassName: "system-node-critical",
			Containers: []corev1.Container{{Name: name, Image: "coxswain:" + tag}},
		},
	}
	return node.Component{Pod: pod, Log: log}, logger
}

func controlPlaneLabels(name string) map[string]string {
	return map[string]string{"component": name, "tier": "control-plane"}
}
