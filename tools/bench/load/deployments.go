package load

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// deployment measures the time until all replicas of a Deployment are Ready. This involves the whole control plane:
// controllers, scheduler, nodes.
func deployment(ctx context.Context, s *Session) (Result, error) {
	return s.deployed(ctx, 1, int32(s.options.Replicas), nil)
}

// Size of workload deployments.
const (
	manyDeployments = 100
	fewReplicas     = 20
)

// deployments creates many Deployments at once.
func deployments(ctx context.Context, s *Session) (Result, error) {
	return s.deployed(ctx, manyDeployments, fewReplicas, nil)
}

// cluster fills the nodes with Deployments of clusterReplicas at once. It does not remove them, since that would take
// as long again.
func cluster(ctx context.Context, s *Session) (Result, error) {
	client, err := kubernetes.NewForConfig(s.target.config)
	if err != nil {
		return Result{}, err
	}
	names := s.newNames(max(1, s.options.Objects/clusterReplicas))
	replicas := s.options.Objects / len(names)
	limit := patience + time.Duration(s.options.Objects)*50*time.Millisecond
	return s.measure(func() ([]time.Duration, error) {
		return timeAll(names, func(name string) error { return s.deploy(ctx, client, name, int32(replicas), limit) })
	})
}

const clusterReplicas = 1000

// rollout measures a rolling update of a Ready Deployment with the default strategy.
func rollout(ctx context.Context, s *Session) (Result, error) {
	return s.deployed(ctx, 1, int32(s.options.Replicas),
		[]byte(`{"spec":{"template":{"spec":{"containers":[{"name":"web","image":"registry.example.com/shop/web:1.4.3"}]}}}}`))
}

// deployed measures the time until n Deployments are complete, from their creation or, if there is a patch, from the
// patch.
func (s *Session) deployed(ctx context.Context, n int, replicas int32, patch []byte) (Result, error) {
	client, err := kubernetes.NewForConfig(s.target.config)
	if err != nil {
		return Result{}, err
	}
	names := s.newNames(n)
	create := func(name string) error { return s.deploy(ctx, client, name, replicas, patience) }
	step := create
	if patch != nil {
		for _, name := range names {
			if err := create(name); err != nil {
				return Result{}, err
			}
		}
		step = func(name string) error { return s.patchDeployment(ctx, client, name, patch) }
	}
	r, err := s.measure(func() ([]time.Duration, error) { return timeAll(names, step) })
	if err != nil {
		return r, err
	}
	for _, name := range names {
		if err := s.removeDeployment(ctx, client, name); err != nil {
			return r, err
		}
	}
	return r, nil
}

func (s *Session) newNames(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("deployment-%d", s.created.Add(1))
	}
	return names
}

// timeAll calls f for all names concurrently, and returns the time until all calls have returned.
func timeAll(names []string, f func(name string) error) ([]time.Duration, error) {
	start := time.Now()
	errs := make([]error, len(names))
	var all sync.WaitGroup
	for i, name := range names {
		all.Go(func() { errs[i] = f(name) })
	}
	all.Wait()
	return []time.Duration{time.Since(start)}, errors.Join(errs...)
}

// deploy creates a Deployment and waits until it is complete, but no longer than limit.
func (s *Session) deploy(ctx context.Context, client kubernetes.Interface, name string, replicas int32,
	limit time.Duration) error {
	made, err := client.AppsV1().Deployments(s.passing).Create(ctx, newDeployment(name, replicas),
		metav1.CreateOptions{})
	if err != nil {
		return err
	}
	return s.awaitComplete(ctx, client, made, limit)
}

func (s *Session) patchDeployment(ctx context.Context, client kubernetes.Interface, name string, patch []byte) error {
	patched, err := client.AppsV1().Deployments(s.passing).Patch(ctx, name, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{})
	if err != nil {
		return err
	}
	return s.awaitComplete(ctx, client, patched, patience)
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
					Containers: []corev1.Container{{Name: "web",
						Image: "registry.example.com/shop/web:1.4.2"}},
				},
			},
		},
	}
}

// patience is how long a Deployment may take.
const patience = 5 * time.Minute

func (s *Session) awaitComplete(ctx context.Context, client kubernetes.Interface, d *appsv1.Deployment,
	limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	w, err := client.AppsV1().Deployments(d.Namespace).Watch(ctx, metav1.ListOptions{
		FieldSelector: "metadata.name=" + d.Name, ResourceVersion: d.ResourceVersion,
	})
	if err != nil {
		return err
	}
	defer w.Stop()
	var status appsv1.DeploymentStatus
	for e := range w.ResultChan() {
		current, ok := e.Object.(*appsv1.Deployment)
		if !ok {
			return fmt.Errorf("unexpected event: %v", e)
		}
		n := *d.Spec.Replicas
		if status = current.Status; status.ObservedGeneration >= d.Generation && status.UpdatedReplicas == n &&
			status.Replicas == n && status.ReadyReplicas == n {
			return nil
		}
	}
	return fmt.Errorf("%d of %d replicas were ready when the watch ended", status.ReadyReplicas, *d.Spec.Replicas)
}

// removeDeployment deletes a Deployment, and waits until its pods are gone.
func (s *Session) removeDeployment(ctx context.Context, client kubernetes.Interface, name string) error {
	background := metav1.DeletePropagationBackground
	if err := client.AppsV1().Deployments(s.passing).Delete(ctx, name,
		metav1.DeleteOptions{PropagationPolicy: &background}); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		remaining, err := client.CoreV1().Pods(s.passing).List(ctx,
			metav1.ListOptions{LabelSelector: "app=" + name, Limit: 1})
		if err != nil || len(remaining.Items) == 0 {
			return err
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("wait for pods of %s to be deleted: %w", name, ctx.Err())
		}
	}
}
