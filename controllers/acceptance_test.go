package controllers_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/controllers/lib/controllertest"
	"github.com/coxswain-dev/coxswain/testenv"
)

func TestMain(m *testing.M) { controllertest.Main(m) }

func TestControlPlane_RollsOutAndBack(t *testing.T) {
	t.Parallel()
	c := controllertest.NewControlPlane(t)
	c.Deploy("web", 5, nil)
	c.AwaitRollout("web")
	first := c.ReplicaSetOf("one")
	c.EditDeployment("web", controllertest.Image("two"))
	d := c.AwaitRollout("web")
	require.Equal(t, "2", d.Annotations["deployment.kubernetes.io/revision"])
	c.EditDeployment("web", controllertest.Image("one"))
	d = c.AwaitRollout("web")
	require.Equal(t, "3", d.Annotations["deployment.kubernetes.io/revision"])
	again := c.ReplicaSetOf("one")
	require.Equal(t, first.UID, again.UID)
	require.Equal(t, "1", again.Annotations["deployment.kubernetes.io/revision-history"])
	require.Len(t, c.ReplicaSets(), 2)
	c.AwaitEvent("ScalingReplicaSet", "Scaled up replica set "+first.Name+" from 0 to 5")
}

func TestControlPlane_PausesResumesAndScalesInARollout(t *testing.T) {
	t.Parallel()
	c := controllertest.NewControlPlane(t)
	c.Deploy("web", 4, nil)
	c.AwaitRollout("web")
	c.EditDeployment("web", func(d *appsv1.Deployment) { d.Spec.Paused = true })
	c.EditDeployment("web", controllertest.Image("two"))
	c.EditDeployment("web", controllertest.Scale(8))
	c.Eventually("scaled", func() bool {
		d := c.Deployment("web")
		return d.Status.AvailableReplicas == 8 && d.Status.ObservedGeneration == d.Generation
	})
	require.Nil(t, c.ReplicaSetOf("two"))
	c.EditDeployment("web", func(d *appsv1.Deployment) { d.Spec.Paused = false })
	c.Eventually("in the middle", func() bool { return c.ReplicaSetOf("two") != nil })
	c.EditDeployment("web", controllertest.Scale(20))
	c.AwaitRollout("web")
	require.EqualValues(t, 20, c.ReplicaSetOf("two").Status.AvailableReplicas)
}

func TestControlPlane_Recreates(t *testing.T) {
	t.Parallel()
	c := controllertest.NewControlPlane(t)
	c.Deploy("web", 3, func(d *appsv1.Deployment) {
		d.Spec.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}
	})
	c.AwaitRollout("web")
	c.EditDeployment("web", controllertest.Image("two"))
	c.AwaitRollout("web")
	require.EqualValues(t, 0, c.ReplicaSetOf("one").Status.Replicas)
}

func TestControlPlane_CascadesThroughADeployment(t *testing.T) {
	for _, policy := range []metav1.DeletionPropagation{
		metav1.DeletePropagationBackground, metav1.DeletePropagationForeground, metav1.DeletePropagationOrphan,
	} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			c := controllertest.NewControlPlane(t)
			c.Deploy("web", 3, nil)
			c.AwaitRollout("web")
			require.NoError(t, c.Client.AppsV1().Deployments("default").Delete(c.Context(), "web",
				metav1.DeleteOptions{PropagationPolicy: &policy}))
			if policy != metav1.DeletePropagationOrphan {
				c.Eventually("all gone", func() bool { return len(c.ReplicaSets()) == 0 && len(c.Pods()) == 0 })
				return
			}
			c.Eventually("orphaned", func() bool {
				rs := c.ReplicaSets()
				return len(rs) == 1 && len(rs[0].OwnerReferences) == 0
			})
			require.Len(t, c.Pods(), 3)
		})
	}
}

func TestControlPlane_DeletesAFullNamespace(t *testing.T) {
	t.Parallel()
	c := controllertest.NewControlPlane(t)
	c.CreateNamespace("full")
	for i := range 300 {
		c.CreateMap("full", fmt.Sprintf("cm-%d", i))
	}
	for i := range 50 {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pod-%d", i)},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "one"}}}}
		_, err := c.Client.CoreV1().Pods("full").Create(c.Context(), pod, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	c.DeleteNamespace("full")
	c.AwaitNamespaceGone("full")
}

// BenchmarkControlPlane brings one Deployment of 1,000 replicas from creation to ready, through all parts of
// the control plane.
func BenchmarkControlPlane(b *testing.B) {
	c := controllertest.NewControlPlane(b)
	for i := 0; b.Loop(); i++ {
		name := fmt.Sprint("web-", i)
		c.Deploy(name, 1000, nil)
		c.AwaitRollout(name)
		b.StopTimer()
		require.NoError(b, c.Client.AppsV1().Deployments("default").Delete(c.Context(), name, metav1.DeleteOptions{}))
		c.Eventually("gone", func() bool { return len(c.Pods()) == 0 && len(c.ReplicaSets()) == 0 })
		b.StartTimer()
	}
}

func TestControlPlane_EveryNamespaceHasWhatPodsNeed(t *testing.T) {
	t.Parallel()
	c := controllertest.NewControlPlane(t)
	c.CreateNamespace("new")
	for _, namespace := range []string{"default", "new"} {
		has := func() bool {
			_, noAccount := c.Client.CoreV1().ServiceAccounts(namespace).Get(c.Context(), "default", metav1.GetOptions{})
			cm := c.Map(namespace, "kube-root-ca.crt")
			return noAccount == nil && cm != nil && cm.Data["ca.crt"] == string(c.Config.CAData)
		}
		c.Eventually("default account and root CA", has)
		require.NoError(t, c.Client.CoreV1().ServiceAccounts(namespace).Delete(c.Context(), "default",
			metav1.DeleteOptions{}))
		cm := c.Map(namespace, "kube-root-ca.crt")
		cm.Data = map[string]string{"ca.crt": "forged"}
		_, err := c.Client.CoreV1().ConfigMaps(namespace).Update(c.Context(), cm, metav1.UpdateOptions{})
		require.NoError(t, err)
		c.Eventually("restored", has)
	}
}

func TestVolumes_StatefulSetGetsDirectoriesOfItsNodes(t *testing.T) {
	t.Parallel()
	config := testenv.Start(t, testenv.OrExternal(), testenv.WithNodes(2))
	c := controllertest.At(t, config)
	client := c.Client
	c.Eventually("the default class", func() bool {
		class, err := client.StorageV1().StorageClasses().Get(c.Context(), "local", metav1.GetOptions{})
		return err == nil && class.Annotations["storageclass.kubernetes.io/is-default-class"] == "true"
	})
	claim := corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data"},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		}}
	labels := map[string]string{"app": "db"}
	pod := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}}
	pod.Spec.Containers = []corev1.Container{{Name: "c", Image: "db"}}
	pod.Spec.Volumes = []corev1.Volume{{Name: "scratch",
		VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{
			VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"kind": "scratch"}}, Spec: claim.Spec,
			},
		}}}}
	_, err := client.AppsV1().StatefulSets("default").Create(c.Context(), &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: "db"},
		Spec: appsv1.StatefulSetSpec{
			Replicas: new(int32(3)), ServiceName: "db", Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template:             pod,
			VolumeClaimTemplates: []corev1.PersistentVolumeClaim{claim},
			PersistentVolumeClaimRetentionPolicy: &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{
				WhenDeleted: appsv1.DeletePersistentVolumeClaimRetentionPolicyType,
			},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	c.Eventually("ready", func() bool {
		set, err := client.AppsV1().StatefulSets("default").Get(c.Context(), "db", metav1.GetOptions{})
		require.NoError(t, err)
		return set.Status.ReadyReplicas == 3
	})
	for i := range 3 {
		pod, err := client.CoreV1().Pods("default").Get(c.Context(), fmt.Sprintf("db-%d", i), metav1.GetOptions{})
		require.NoError(t, err)
		for _, name := range []string{"data-" + pod.Name, pod.Name + "-scratch"} {
			claim := c.Claim(name)
			require.Equal(t, corev1.ClaimBound, claim.Status.Phase)
			v := c.Volume(claim.Spec.VolumeName)
			require.Equal(t, pod.Spec.NodeName,
				v.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Values[0])
			require.Contains(t, v.Spec.HostPath.Path, "/"+v.Name+"_default_"+name)
		}
		require.True(t, metav1.IsControlledBy(c.Claim(pod.Name+"-scratch"), pod))
	}

	// A claim can grow, and the volume with it.
	controllertest.Edit(c, client.CoreV1().PersistentVolumeClaims("default"), "data-db-0",
		func(claim *corev1.PersistentVolumeClaim) {
			claim.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("3Gi")
		})
	c.Eventually("grown", func() bool { return c.Claim("data-db-0").Status.Capacity.Storage().String() == "3Gi" })
	require.Equal(t, "3Gi", c.Volume(c.Claim("data-db-0").Spec.VolumeName).Spec.Capacity.Storage().String())
	c.AwaitEvent("VolumeResizeSuccessful", "Resize volume succeeded")

	// The claims are deleted with the set, and the volumes with the claims.
	require.NoError(t, client.AppsV1().StatefulSets("default").Delete(c.Context(), "db", metav1.DeleteOptions{}))
	c.Eventually("no volume is left", func() bool {
		volumes, err := client.CoreV1().PersistentVolumes().List(c.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		return len(volumes.Items) == 0
	})
}
