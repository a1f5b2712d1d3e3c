package load

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

func listRevision(list []byte) (string, error) {
	var head struct {
		Metadata metav1.ListMeta
		Items    ignored
	}
	err := json.Unmarshal(list, &head)
	return head.Metadata.ResourceVersion, err
}

// informer starts informers, one after the other, as a controller does: most of the time is
// client-go's decoding.
func informer(ctx context.Context, s *Session) (Result, error) {
	if err := s.fill(ctx); err != nil {
		return Result{}, err
	}
	return s.measure(func() ([]time.Duration, error) {
		var took []time.Duration
		for end := time.Now().Add(s.options.Duration); time.Now().Before(end); {
			began := time.Now()
			if err := s.startInformer(ctx); err != nil {
				return nil, err
			}
			took = append(took, time.Since(began))
		}
		slices.Sort(took)
		return took, nil
	})
}

func (s *Session) startInformer(ctx context.Context) error {
	client, err := kubernetes.NewForConfig(rest.CopyConfig(s.target.config))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(s.standing))
	defer factory.Shutdown()
	defer cancel()
	pods := factory.Core().V1().Pods()
	synced := pods.Informer().HasSyncedChecker()
	factory.Start(ctx.Done())
	select {
	case <-synced.Done():
	case <-ctx.Done():
		return ctx.Err()
	}
	if n := len(pods.Informer().GetStore().ListKeys()); n < s.objects {
		return fmt.Errorf("the informer has %d of %d pods", n, s.objects)
	}
	return nil
}

// deployment waits until all replicas of a Deployment are Ready. That is the work of the
// whole control plane: controllers, scheduler, nodes.
func deployment(ctx context.Context, s *Session) (Result, error) {
	client, err := kubernetes.NewForConfig(s.target.config)
	if err != nil {
		return Result{}, err
	}
	deployments := client.AppsV1().Deployments(s.passing)
	name := fmt.Sprintf("deployment-%d", s.created.Add(1))
	r, err := s.measure(func() ([]time.Duration, error) {
		began := time.Now()
		made, err := deployments.Create(ctx, newDeployment(name, int32(s.options.Replicas)), metav1.CreateOptions{})
		if err != nil {
			return nil, err
		}
		if err := s.awaitReady(ctx, client, made); err != nil {
			return nil, err
		}
		return []time.Duration{time.Since(began)}, nil
	})
	if err != nil {
		return r, err
	}
	return r, s.removeDeployment(ctx, client, name)
}

func newDeployment(name string, replicas int32) *appsv1.Deployment {
	labels := map[string]string{"app": name}
	none := int64(0)
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					TerminationGracePeriodSeconds: &none,
					Containers:                    []corev1.Container{{Name: "web", Image: "registry.example.com/shop/web:1.4.2"}},
				},
			},
		},
	}
}

// patience is how long a Deployment may take before it is given up.
const patience = 5 * time.Minute

func (s *Session) awaitReady(ctx context.Context, client kubernetes.Interface, d *appsv1.Deployment) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	w, err := client.AppsV1().Deployments(d.Namespace).Watch(ctx, metav1.ListOptions{
		FieldSelector: "metadata.name=" + d.Name, ResourceVersion: d.ResourceVersion,
	})
	if err != nil {
		return err
	}
	defer w.Stop()
	ready := int32(0)
	for e := range w.ResultChan() {
		now, ok := e.Object.(*appsv1.Deployment)
		if !ok {
			return fmt.Errorf("unexpected event: %v", e)
		}
		if ready = now.Status.ReadyReplicas; ready == *d.Spec.Replicas {
			return nil
		}
	}
	return fmt.Errorf("%d of %d replicas were ready when the watch ended", ready, *d.Spec.Replicas)
}

// removeDeployment makes room for the next run.
func (s *Session) removeDeployment(ctx context.Context, client kubernetes.Interface, name string) error {
	background := metav1.DeletePropagationBackground
	if err := client.AppsV1().Deployments(s.passing).Delete(ctx, name, metav1.DeleteOptions{PropagationPolicy: &background}); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		left, err := client.CoreV1().Pods(s.passing).List(ctx, metav1.ListOptions{LabelSelector: "app=" + name, Limit: 1})
		if err != nil || len(left.Items) == 0 {
			return err
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("pods of %s are left: %w", name, ctx.Err())
		}
	}
}
