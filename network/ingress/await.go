package ingress

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/internal/backoff"
)

// Await creates the class of the controller, as the default one, and returns once there is an Ingress. Until then it
// has one watch. Its error is that of ctx.
func Await(ctx context.Context, client kubernetes.Interface, log *slog.Logger) error {
	wait := backoff.Doubling(100*time.Millisecond, 30*time.Second)
	for {
		found, err := findIngress(ctx, client)
		if found || ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			log.Warn("failed to watch Ingresses", "err", err)
		} else {
			wait = backoff.Doubling(100*time.Millisecond, 30*time.Second)
		}
		select {
		case <-ctx.Done():
		case <-clock.RealClock{}.After(wait.Step()):
		}
	}
}

// findIngress reports whether there is an Ingress, and waits for one for as long as a watch lasts.
func findIngress(ctx context.Context, client kubernetes.Interface) (bool, error) {
	if err := createDefaultClass(ctx, client); err != nil {
		return false, fmt.Errorf("create the IngressClass %s: %w", ClassName, err)
	}
	all, err := client.NetworkingV1().Ingresses("").List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil || len(all.Items) > 0 {
		return err == nil, err
	}
	events, err := client.NetworkingV1().Ingresses("").Watch(ctx, metav1.ListOptions{
		ResourceVersion: all.ResourceVersion, AllowWatchBookmarks: true})
	if err != nil {
		return false, err
	}
	defer events.Stop()
	for event := range events.ResultChan() {
		switch event.Type {
		case watch.Added:
			return true, nil
		case watch.Error:
			return false, apierrors.FromObject(event.Object)
		}
	}
	return false, nil
}

// createDefaultClass creates the IngressClass of Ingresses without a class, unless a class of the name exists.
func createDefaultClass(ctx context.Context, client kubernetes.Interface) error {
	_, err := client.NetworkingV1().IngressClasses().Create(ctx, &networkingv1.IngressClass{
		ObjectMeta: metav1.ObjectMeta{Name: ClassName,
			Annotations: map[string]string{networkingv1.AnnotationIsDefaultIngressClass: "true"}},
		Spec: networkingv1.IngressClassSpec{Controller: ControllerName},
	}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}
