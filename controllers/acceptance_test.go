package controllers_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/coxswain-dev/coxswain/testenv"
)

// newControlPlane is a whole control plane of ours: the API server, the scheduler and a node
// beside the controllers.
func newControlPlane(t testing.TB) *cluster {
	config := testenv.Start(t, testenv.OrExternal(), testenv.WithNodes(20))
	config = rest.CopyConfig(config)
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	c := &cluster{TB: t, config: config, client: client, ctx: t.Context()}
	c.eventually("the default namespace", func() bool {
		_, err := client.CoreV1().Namespaces().Get(c.ctx, "default", metav1.GetOptions{})
		return err == nil
	})
	return c
}

func TestControlPlane_RollsOutAndBack(t *testing.T) {
	t.Parallel()
	c := newControlPlane(t)
	c.deploy("web", 5, nil)
	c.awaitRollout("web")
	first := c.replicaSet("one")
	c.edit("web", image("two"))
	d := c.awaitRollout("web")
	require.Equal(t, "2", d.Annotations["deployment.kubernetes.io/revision"])
	c.edit("web", image("one"))
	d = c.awaitRollout("web")
	require.Equal(t, "3", d.Annotations["deployment.kubernetes.io/revision"])
	again := c.replicaSet("one")
	require.Equal(t, first.UID, again.UID)
	require.Equal(t, "1", again.Annotations["deployment.kubernetes.io/revision-history"])
	require.Len(t, c.replicaSets(), 2)
	c.awaitEvent("ScalingReplicaSet", "Scaled up replica set "+first.Name+" from 0 to 5")
}

func TestControlPlane_PausesResumesAndScalesInARollout(t *testing.T) {
	t.Parallel()
	c := newControlPlane(t)
	c.deploy("web", 4, nil)
	c.awaitRollout("web")
	c.edit("web", func(d *appsv1.Deployment) { d.Spec.Paused = true })
	c.edit("web", image("two"))
	c.edit("web", scale(8))
	c.eventually("scaled", func() bool {
		d := c.deployment("web")
		return d.Status.AvailableReplicas == 8 && d.Status.ObservedGeneration == d.Generation
	})
	require.Nil(t, c.replicaSet("two"))
	c.edit("web", func(d *appsv1.Deployment) { d.Spec.Paused = false })
	c.eventually("in the middle", func() bool { return c.replicaSet("two") != nil })
	c.edit("web", scale(20))
	c.awaitRollout("web")
	require.EqualValues(t, 20, c.replicaSet("two").Status.AvailableReplicas)
}

func TestControlPlane_Recreates(t *testing.T) {
	t.Parallel()
	c := newControlPlane(t)
	c.deploy("web", 3, func(d *appsv1.Deployment) {
		d.Spec.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}
	})
	c.awaitRollout("web")
	c.edit("web", image("two"))
	c.awaitRollout("web")
	require.EqualValues(t, 0, c.replicaSet("one").Status.Replicas)
}

func TestControlPlane_CascadesThroughADeployment(t *testing.T) {
	for _, policy := range []metav1.DeletionPropagation{
		metav1.DeletePropagationBackground, metav1.DeletePropagationForeground, metav1.DeletePropagationOrphan,
	} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			c := newControlPlane(t)
			c.deploy("web", 3, nil)
			c.awaitRollout("web")
			require.NoError(t, c.client.AppsV1().Deployments("default").Delete(c.ctx, "web", metav1.DeleteOptions{PropagationPolicy: &policy}))
			if policy != metav1.DeletePropagationOrphan {
				c.eventually("all gone", func() bool { return len(c.replicaSets()) == 0 && len(c.pods()) == 0 })
				return
			}
			c.eventually("orphaned", func() bool { rs := c.replicaSets(); return len(rs) == 1 && len(rs[0].OwnerReferences) == 0 })
			require.Len(t, c.pods(), 3)
		})
	}
}

func TestControlPlane_DeletesAFullNamespace(t *testing.T) {
	t.Parallel()
	c := newControlPlane(t)
	c.createNamespace("full")
	for i := range 300 {
		c.object("full", fmt.Sprintf("cm-%d", i))
	}
	for i := range 50 {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pod-%d", i)},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "one"}}}}
		_, err := c.client.CoreV1().Pods("full").Create(c.ctx, pod, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	c.deleteNamespace("full")
	c.awaitNamespaceGone("full")
}

// BenchmarkControlPlane is one Deployment of 1,000 from nothing to ready, over all parts of
// the control plane.
func BenchmarkControlPlane(b *testing.B) {
	c := newControlPlane(b)
	for i := 0; b.Loop(); i++ {
		name := fmt.Sprint("web-", i)
		c.deploy(name, 1000, nil)
		c.awaitRollout(name)
		b.StopTimer()
		require.NoError(b, c.client.AppsV1().Deployments("default").Delete(c.ctx, name, metav1.DeleteOptions{}))
		c.eventually("gone", func() bool { return len(c.pods()) == 0 && len(c.replicaSets()) == 0 })
		b.StartTimer()
	}
}

func TestControlPlane_EveryNamespaceHasWhatPodsNeed(t *testing.T) {
	t.Parallel()
	c := newControlPlane(t)
	c.createNamespace("new")
	for _, namespace := range []string{"default", "new"} {
		has := func() bool {
			_, noAccount := c.client.CoreV1().ServiceAccounts(namespace).Get(c.ctx, "default", metav1.GetOptions{})
			cm := c.get(namespace, "kube-root-ca.crt")
			return noAccount == nil && cm != nil && cm.Data["ca.crt"] == string(c.config.CAData)
		}
		c.eventually("default account and root CA", has)
		require.NoError(t, c.client.CoreV1().ServiceAccounts(namespace).Delete(c.ctx, "default", metav1.DeleteOptions{}))
		cm := c.get(namespace, "kube-root-ca.crt")
		cm.Data = map[string]string{"ca.crt": "forged"}
		_, err := c.client.CoreV1().ConfigMaps(namespace).Update(c.ctx, cm, metav1.UpdateOptions{})
		require.NoError(t, err)
		c.eventually("restored", has)
	}
}
