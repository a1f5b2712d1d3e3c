package plugins

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/coxswain-dev/coxswain/scheduler/framework"
)

// DefaultBinder binds through the pod's binding subresource.
type DefaultBinder struct{ client kubernetes.Interface }

func newDefaultBinder(args framework.Args, h framework.Handle) (framework.Plugin, error) {
	return DefaultBinder{h.Client()}, args.Decode(&noArgs{})
}

// Name implements framework.Plugin.
func (DefaultBinder) Name() string { return "DefaultBinder" }

// Bind implements framework.BindPlugin. The UID keeps it from binding a later pod of the same name.
func (b DefaultBinder) Bind(ctx context.Context, _ *framework.CycleState, pod *corev1.Pod,
	node string) *framework.Status {
	err := b.client.CoreV1().Pods(pod.Namespace).Bind(ctx, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		Target:     corev1.ObjectReference{Kind: "Node", Name: node},
	}, metav1.CreateOptions{})
	if err != nil {
		return framework.AsError(b.Name(), err)
	}
	return nil
}
