package controllertest

import (
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Deploy creates a Deployment with the image "one".
func (c *Cluster) Deploy(name string, replicas int32, edit func(*appsv1.Deployment)) *appsv1.Deployment {
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": name}}, Spec: OnePod(),
			},
			ProgressDeadlineSeconds: new(int32(600)),
			RevisionHistoryLimit:    new(int32(10)),
			Strategy:                RollingUpdate("25%", "25%"),
		},
	}
	if edit != nil {
		edit(d)
	}
	d, err := c.Client.AppsV1().Deployments("default").Create(c.Context(), d, metav1.CreateOptions{})
	require.NoError(c, err)
	return d
}

// RollingUpdate returns a strategy with a maxSurge and a maxUnavailable.
func RollingUpdate(surge, unavailable string) appsv1.DeploymentStrategy {
	s, u := intstr.Parse(surge), intstr.Parse(unavailable)
	return appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType,
		RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &s, MaxUnavailable: &u}}
}

// EditDeployment changes a Deployment as a user does.
func (c *Cluster) EditDeployment(name string, change func(*appsv1.Deployment)) {
	c.Helper()
	Edit(c, c.Client.AppsV1().Deployments("default"), name, change)
}

// Image returns a change of the image in a Deployment's template.
func Image(name string) func(*appsv1.Deployment) {
	return func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = name }
}

// Scale returns a change of a Deployment's replicas.
func Scale(n int32) func(*appsv1.Deployment) {
	return func(d *appsv1.Deployment) { d.Spec.Replicas = &n }
}

// Deployment returns the present state of a Deployment.
func (c *Cluster) Deployment(name string) *appsv1.Deployment {
	d, err := c.Client.AppsV1().Deployments("default").Get(c.Context(), name, metav1.GetOptions{})
	require.NoError(c, err)
	return d
}

// DeploymentCondition returns the condition of a type, or a zero condition.
func DeploymentCondition(d *appsv1.Deployment, t appsv1.DeploymentConditionType) appsv1.DeploymentCondition {
	for _, c := range d.Status.Conditions {
		if c.Type == t {
			return c
		}
	}
	return appsv1.DeploymentCondition{}
}

// AwaitRollout waits as "kubectl rollout status" does.
func (c *Cluster) AwaitRollout(name string) *appsv1.Deployment {
	c.Helper()
	var d *appsv1.Deployment
	defer func() {
		if c.Failed() {
			c.Logf("deployment: %+v", d)
		}
	}()
	c.Eventually("rollout of "+name, func() bool {
		d = c.Deployment(name)
		s, n := d.Status, *d.Spec.Replicas
		return s.ObservedGeneration >= d.Generation && s.UpdatedReplicas == n && s.Replicas == n &&
			s.AvailableReplicas == n &&
			DeploymentCondition(d, appsv1.DeploymentProgressing).Reason == "NewReplicaSetAvailable"
	})
	return d
}

// ReplicaSets returns all ReplicaSets.
func (c *Cluster) ReplicaSets() []appsv1.ReplicaSet {
	list, err := c.Client.AppsV1().ReplicaSets("default").List(c.Context(), metav1.ListOptions{})
	require.NoError(c, err)
	return list.Items
}

// ReplicaSetOf returns the ReplicaSet with an image, or nil.
func (c *Cluster) ReplicaSetOf(image string) *appsv1.ReplicaSet {
	for _, rs := range c.ReplicaSets() {
		if rs.Spec.Template.Spec.Containers[0].Image == image {
			return &rs
		}
	}
	return nil
}

// Replicate creates a ReplicaSet with its name as the image.
func (c *Cluster) Replicate(name string, n int32, edit func(*appsv1.ReplicaSet)) *appsv1.ReplicaSet {
	labels := map[string]string{"app": name}
	rs := &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.ReplicaSetSpec{Replicas: &n, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: name}}}}},
	}
	if edit != nil {
		edit(rs)
	}
	rs, err := c.Client.AppsV1().ReplicaSets("default").Create(c.Context(), rs, metav1.CreateOptions{})
	require.NoError(c, err)
	return rs
}

// AwaitReplicas waits until a ReplicaSet has exactly n pods, all available.
func (c *Cluster) AwaitReplicas(name string, n int32) *appsv1.ReplicaSet {
	c.Helper()
	var rs *appsv1.ReplicaSet
	c.Eventually(name+" has its replicas", func() bool {
		var err error
		rs, err = c.Client.AppsV1().ReplicaSets("default").Get(c.Context(), name, metav1.GetOptions{})
		require.NoError(c, err)
		return rs.Status.ObservedGeneration == rs.Generation && rs.Status.AvailableReplicas == n &&
			rs.Status.Replicas == n
	})
	return rs
}

// CreateStatefulSet creates a StatefulSet with the image "one".
func (c *Cluster) CreateStatefulSet(name string, n int32, edit func(*appsv1.StatefulSet)) *appsv1.StatefulSet {
	labels := map[string]string{"app": name}
	s := &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.StatefulSetSpec{
			Replicas: &n, ServiceName: "peers", Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: OnePod()},
		},
	}
	if edit != nil {
		edit(s)
	}
	s, err := c.Client.AppsV1().StatefulSets("default").Create(c.Context(), s, metav1.CreateOptions{})
	require.NoError(c, err)
	return s
}
