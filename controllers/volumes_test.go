package controllers_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/coxswain-dev/coxswain/testenv"
)

// volume makes a PersistentVolume of the class "disks".
func (c *clocked) volume(name, size string, edit func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
	v := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeSpec{
			StorageClassName:       "disks",
			Capacity:               corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)},
			AccessModes:            []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/disks/" + name}},
		},
	}
	if edit != nil {
		edit(v)
	}
	v, err := c.client.CoreV1().PersistentVolumes().Create(c.ctx, v, metav1.CreateOptions{})
	require.NoError(c, err)
	return v
}

func claimOf(name, class, size string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class,
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:        corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}},
		},
	}
}

// claim makes a claim on the class "disks".
func (c *clocked) claim(name, size string, edit func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	claim := claimOf(name, "disks", size)
	if edit != nil {
		edit(claim)
	}
	claim, err := c.client.CoreV1().PersistentVolumeClaims("default").Create(c.ctx, claim, metav1.CreateOptions{})
	require.NoError(c, err)
	return claim
}

func (c *cluster) getClaim(name string) *corev1.PersistentVolumeClaim {
	claim, err := c.client.CoreV1().PersistentVolumeClaims("default").Get(c.ctx, name, metav1.GetOptions{})
	require.NoError(c, err)
	return claim
}

func (c *cluster) getVolume(name string) *corev1.PersistentVolume {
	v, err := c.client.CoreV1().PersistentVolumes().Get(c.ctx, name, metav1.GetOptions{})
	require.NoError(c, err)
	return v
}

// awaitClaim waits until a claim has a phase and a volume.
func (c *clocked) awaitClaim(name string, phase corev1.PersistentVolumeClaimPhase, volume string) *corev1.PersistentVolumeClaim {
	c.Helper()
	var claim *corev1.PersistentVolumeClaim
	c.reaches(fmt.Sprintf("claim %s is %s with volume %q", name, phase, volume), func() bool {
		claim = c.getClaim(name)
		return claim.Status.Phase == phase && claim.Spec.VolumeName == volume
	})
	return claim
}

func (c *clocked) awaitVolume(name string, phase corev1.PersistentVolumePhase) *corev1.PersistentVolume {
	c.Helper()
	var v *corev1.PersistentVolume
	c.reaches(fmt.Sprintf("volume %s is %s", name, phase), func() bool {
		v = c.getVolume(name)
		return v.Status.Phase == phase
	})
	return v
}

func (c *clocked) dropClaim(name string) {
	require.NoError(c, c.client.CoreV1().PersistentVolumeClaims("default").Delete(c.ctx, name, metav1.DeleteOptions{}))
	c.reaches("claim "+name+" is gone", func() bool {
		_, err := c.client.CoreV1().PersistentVolumeClaims("default").Get(c.ctx, name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}

func newVolumes(t *testing.T) *clocked {
	t.Parallel()
	return newClocked(t, 0, "persistentvolume-binder", "pvc-protection", "pv-protection")
}

func TestVolumes_AClaimGetsTheSmallestVolumeThatIsAllItAsksFor(t *testing.T) {
	c := newVolumes(t)
	block, labels := corev1.PersistentVolumeBlock, map[string]string{"tier": "fast"}
	c.volume("tiny", "1Gi", nil)
	c.volume("other-class", "5Gi", func(v *corev1.PersistentVolume) { v.Spec.StorageClassName = "" })
	c.volume("block", "5Gi", func(v *corev1.PersistentVolume) { v.Spec.VolumeMode = &block })
	c.volume("read-only", "5Gi", func(v *corev1.PersistentVolume) {
		v.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany}
	})
	c.volume("fits", "6Gi", nil)
	c.volume("large", "60Gi", nil)
	c.volume("fast", "70Gi", func(v *corev1.PersistentVolume) { v.Labels = labels })
	for _, name := range []string{"tiny", "other-class", "block", "read-only", "fits", "large", "fast"} {
		c.awaitVolume(name, corev1.VolumeAvailable)
	}
	c.awaitVolumesSeen()

	c.claim("a", "5Gi", nil)
	a := c.awaitClaim("a", corev1.ClaimBound, "fits")
	require.Equal(t, "6Gi", a.Status.Capacity.Storage().String())
	require.Equal(t, []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, a.Status.AccessModes)
	require.Equal(t, "yes", a.Annotations["pv.kubernetes.io/bind-completed"])
	require.Equal(t, "yes", a.Annotations["pv.kubernetes.io/bound-by-controller"])
	fits := c.awaitVolume("fits", corev1.VolumeBound)
	require.Equal(t, a.UID, fits.Spec.ClaimRef.UID)

	c.claim("b", "5Gi", func(p *corev1.PersistentVolumeClaim) { p.Spec.VolumeMode = &block })
	c.awaitClaim("b", corev1.ClaimBound, "block")
	c.claim("c", "5Gi", func(p *corev1.PersistentVolumeClaim) { p.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels} })
	c.awaitClaim("c", corev1.ClaimBound, "fast")
	c.claim("d", "5Gi", func(p *corev1.PersistentVolumeClaim) { p.Spec.StorageClassName = new("") })
	c.awaitClaim("d", corev1.ClaimBound, "other-class")

	// One that nothing fits waits, and gets what is made for it later.
	c.claim("e", "500Gi", func(p *corev1.PersistentVolumeClaim) { p.Spec.StorageClassName = new("") })
	c.awaitEvent("FailedBinding", "no persistent volumes available for this claim and no storage class is set")
	require.Equal(t, corev1.ClaimPending, c.getClaim("e").Status.Phase)
	c.volume("huge", "1Ti", func(v *corev1.PersistentVolume) { v.Spec.StorageClassName = "" })
	c.awaitClaim("e", corev1.ClaimBound, "huge")
}

func TestVolumes_WhatUsersHaveBoundIsKept(t *testing.T) {
	c := newVolumes(t)
	// By the volume: it waits for its claim, and no other gets it.
	c.volume("reserved", "5Gi", func(v *corev1.PersistentVolume) {
		v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "default", Name: "mine"}
	})
	c.awaitVolume("reserved", corev1.VolumeAvailable)
	c.claim("other", "1Gi", nil)
	c.awaitEvent("ProvisioningFailed", `storageclass.storage.k8s.io "disks" not found`)
	c.claim("mine", "1Gi", nil)
	c.awaitClaim("mine", corev1.ClaimBound, "reserved")
	v := c.awaitVolume("reserved", corev1.VolumeBound)
	require.NotContains(t, v.Annotations, "pv.kubernetes.io/bound-by-controller")
	require.Equal(t, "", c.getClaim("other").Spec.VolumeName)

	// By the claim, before the volume is there.
	c.claim("early", "1Gi", func(p *corev1.PersistentVolumeClaim) {
		p.Spec.VolumeName, p.Spec.StorageClassName = "late", new("late")
	})
	c.volume("late", "5Gi", func(v *corev1.PersistentVolume) { v.Spec.StorageClassName = "late" })
	c.awaitClaim("early", corev1.ClaimBound, "late")
	require.NotContains(t, c.getClaim("early").Annotations, "pv.kubernetes.io/bound-by-controller")

	// One that somebody else has, or that is too small, is not taken.
	c.claim("thief", "1Gi", func(p *corev1.PersistentVolumeClaim) { p.Spec.VolumeName = "late" })
	c.awaitEvent("FailedBinding", `volume "late" already bound to a different claim.`)
	c.volume("small", "1Gi", func(v *corev1.PersistentVolume) { v.Spec.StorageClassName = "small" })
	c.claim("greedy", "2Gi", func(p *corev1.PersistentVolumeClaim) {
		p.Spec.VolumeName, p.Spec.StorageClassName = "small", new("small")
	})
	c.awaitEvent("VolumeMismatch", `Cannot bind to requested volume "small": requested PV is too small`)
	require.Equal(t, corev1.ClaimPending, c.getClaim("greedy").Status.Phase)
}

func TestVolumes_WhatBecomesOfAVolumeWhoseClaimIsGone(t *testing.T) {
	c := newVolumes(t)
	reclaim := func(p corev1.PersistentVolumeReclaimPolicy) func(*corev1.PersistentVolume) {
		return func(v *corev1.PersistentVolume) {
			v.Spec.PersistentVolumeReclaimPolicy, v.Spec.StorageClassName = p, strings.ToLower(string(p))
		}
	}
	for _, p := range []corev1.PersistentVolumeReclaimPolicy{"Retain", "Delete", "Recycle"} {
		name := strings.ToLower(string(p))
		c.volume(name, "1Gi", reclaim(p))
		c.claim(name, "1Gi", func(claim *corev1.PersistentVolumeClaim) { claim.Spec.StorageClassName = &name })
		c.awaitClaim(name, corev1.ClaimBound, name)
		c.dropClaim(name)
	}
	c.awaitVolume("retain", corev1.VolumeReleased)
	c.awaitVolume("delete", corev1.VolumeFailed)
	c.awaitVolume("recycle", corev1.VolumeFailed)
	c.awaitEvent("VolumeFailedDelete", "no deletable volume plugin matched")
	c.awaitEvent("VolumeFailedRecycle", "No recycler plugin found for the volume!")

	// A claim of the same name is another: it does not get the data.
	c.claim("retain", "1Gi", func(claim *corev1.PersistentVolumeClaim) { claim.Spec.StorageClassName = new("retain") })
	c.awaitEvent("ProvisioningFailed", `"retain" not found`)
	c.reaches("it stays released", func() bool { return c.getVolume("retain").Status.Phase == corev1.VolumeReleased })
	// Until its administrator frees it.
	v := c.getVolume("retain")
	v.Spec.ClaimRef = nil
	_, err := c.client.CoreV1().PersistentVolumes().Update(c.ctx, v, metav1.UpdateOptions{})
	require.NoError(t, err)
	c.awaitClaim("retain", corev1.ClaimBound, "retain")
}

func TestVolumes_AClaimThatLosesItsVolumeIsLost(t *testing.T) {
	c := newVolumes(t)
	c.volume("disk", "1Gi", nil)
	c.claim("data", "1Gi", nil)
	c.awaitClaim("data", corev1.ClaimBound, "disk")
	require.NoError(t, c.client.CoreV1().PersistentVolumes().Delete(c.ctx, "disk", metav1.DeleteOptions{}))
	// Its protection holds it as long as it is bound; who takes that away loses data.
	c.reaches("the volume is gone", func() bool {
		v, err := c.client.CoreV1().PersistentVolumes().Get(c.ctx, "disk", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return true
		}
		require.NoError(c, err)
		v.Finalizers = nil
		_, _ = c.client.CoreV1().PersistentVolumes().Update(c.ctx, v, metav1.UpdateOptions{})
		return false
	})
	c.awaitClaim("data", corev1.ClaimLost, "disk")
	c.awaitEvent("ClaimLost", "Bound claim has lost its PersistentVolume. Data on the volume is lost!")
	c.volume("disk", "1Gi", nil)
	c.awaitClaim("data", corev1.ClaimBound, "disk")
}

func TestVolumes_ClaimsWaitForTheirFirstConsumerAndGetTheDefaultClass(t *testing.T) {
	c := newVolumes(t)
	c.volume("disk", "1Gi", nil)
	c.awaitVolume("disk", corev1.VolumeAvailable)
	c.claim("data", "1Gi", func(p *corev1.PersistentVolumeClaim) { p.Spec.StorageClassName = nil })
	c.awaitEvent("FailedBinding", "no storage class is set")
	waits := storagev1.VolumeBindingWaitForFirstConsumer
	_, err := c.client.StorageV1().StorageClasses().Create(c.ctx, &storagev1.StorageClass{
		ObjectMeta:  metav1.ObjectMeta{Name: "disks", Annotations: map[string]string{"storageclass.kubernetes.io/is-default-class": "true"}},
		Provisioner: "example.com/disks", VolumeBindingMode: &waits,
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	c.reaches("it has the class that came later", func() bool {
		class := c.getClaim("data").Spec.StorageClassName
		return class != nil && *class == "disks"
	})
	c.awaitEvent("WaitForFirstConsumer", "waiting for first consumer to be created before binding")

	// The scheduler chooses a node where there is no volume: the provisioner is called.
	v := c.getVolume("disk")
	v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "elsewhere", Name: "else"}
	_, err = c.client.CoreV1().PersistentVolumes().Update(c.ctx, v, metav1.UpdateOptions{})
	require.NoError(t, err)
	c.awaitVolumesSeen()
	editing(c.cluster, "data", c.client.CoreV1().PersistentVolumeClaims("default"), func(claim *corev1.PersistentVolumeClaim) {
		metav1.SetMetaDataAnnotation(&claim.ObjectMeta, "volume.kubernetes.io/selected-node", "node-0")
	})
	c.reaches("the provisioner is named", func() bool {
		return c.getClaim("data").Annotations["volume.kubernetes.io/storage-provisioner"] == "example.com/disks"
	})
	c.awaitEvent("ExternalProvisioning", "Waiting for a volume to be created either by the external provisioner 'example.com/disks'")
}

// awaitVolumesSeen waits until the binder has seen all volumes as they are now: it has seen one that was made after.
func (c *clocked) awaitVolumesSeen() {
	c.volume("last", "1Gi", func(v *corev1.PersistentVolume) { v.Spec.StorageClassName = "last" })
	c.awaitVolume("last", corev1.VolumeAvailable)
}

func TestVolumes_StatefulSetGetsFoldersOfItsNodes(t *testing.T) {
	t.Parallel()
	config := testenv.Start(t, testenv.OrExternal(), testenv.WithNodes(2))
	client := kubernetes.NewForConfigOrDie(config)
	c := &cluster{TB: t, config: config, client: client, ctx: t.Context()}
	c.eventually("the default class", func() bool {
		class, err := client.StorageV1().StorageClasses().Get(c.ctx, "local", metav1.GetOptions{})
		return err == nil && class.Annotations["storageclass.kubernetes.io/is-default-class"] == "true"
	})
	claim := claimOf("data", "local", "1Gi")
	claim.Namespace, claim.Spec.StorageClassName = "", nil
	labels := map[string]string{"app": "db"}
	pod := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}}
	pod.Spec.Containers = []corev1.Container{{Name: "c", Image: "db"}}
	pod.Spec.Volumes = []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{
		VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"kind": "scratch"}}, Spec: claim.Spec,
		},
	}}}}
	_, err := client.AppsV1().StatefulSets("default").Create(c.ctx, &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: "db"},
		Spec: appsv1.StatefulSetSpec{
			Replicas: new(int32(3)), ServiceName: "db", Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: pod,
			VolumeClaimTemplates: []corev1.PersistentVolumeClaim{*claim},
			PersistentVolumeClaimRetentionPolicy: &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{
				WhenDeleted: appsv1.DeletePersistentVolumeClaimRetentionPolicyType,
			},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	c.eventually("ready", func() bool {
		set, err := client.AppsV1().StatefulSets("default").Get(c.ctx, "db", metav1.GetOptions{})
		require.NoError(t, err)
		return set.Status.ReadyReplicas == 3
	})
	for i := range 3 {
		pod, err := client.CoreV1().Pods("default").Get(c.ctx, fmt.Sprintf("db-%d", i), metav1.GetOptions{})
		require.NoError(t, err)
		for _, name := range []string{"data-" + pod.Name, pod.Name + "-scratch"} {
			claim := c.getClaim(name)
			require.Equal(t, corev1.ClaimBound, claim.Status.Phase)
			v := c.getVolume(claim.Spec.VolumeName)
			require.Equal(t, pod.Spec.NodeName, v.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Values[0])
			require.Contains(t, v.Spec.HostPath.Path, "/"+v.Name+"_default_"+name)
		}
		require.True(t, metav1.IsControlledBy(c.getClaim(pod.Name+"-scratch"), pod))
	}

	// A claim can grow, and the volume with it.
	editing(c, "data-db-0", client.CoreV1().PersistentVolumeClaims("default"), func(claim *corev1.PersistentVolumeClaim) {
		claim.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("3Gi")
	})
	c.eventually("grown", func() bool { return c.getClaim("data-db-0").Status.Capacity.Storage().String() == "3Gi" })
	require.Equal(t, "3Gi", c.getVolume(c.getClaim("data-db-0").Spec.VolumeName).Spec.Capacity.Storage().String())
	c.awaitEvent("VolumeResizeSuccessful", "Resize volume succeeded")

	// With the set go its claims, and with these the volumes.
	require.NoError(t, client.AppsV1().StatefulSets("default").Delete(c.ctx, "db", metav1.DeleteOptions{}))
	c.eventually("no volume is left", func() bool {
		volumes, err := client.CoreV1().PersistentVolumes().List(c.ctx, metav1.ListOptions{})
		require.NoError(t, err)
		return len(volumes.Items) == 0
	})
}

func TestNodeLocal_TellsWhatAFolderCannotBe(t *testing.T) {
	t.Parallel()
	c := newClocked(t, 1, "persistentvolume-binder", "node-local")
	c.reaches("class", func() bool {
		_, err := c.client.StorageV1().StorageClasses().Get(c.ctx, "local", metav1.GetOptions{})
		return err == nil
	})
	// Without waiting for a pod, a node is chosen; and its own folder, if the class says so.
	at := storagev1.VolumeBindingImmediate
	_, err := c.client.StorageV1().StorageClasses().Create(c.ctx, &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: "disks"}, Provisioner: "coxswain.dev/node-local", VolumeBindingMode: &at,
		Parameters: map[string]string{"path": "/srv"},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	c.claim("now", "1Gi", nil)
	var claim *corev1.PersistentVolumeClaim
	c.reaches("bound", func() bool {
		claim = c.getClaim("now")
		return claim.Status.Phase == corev1.ClaimBound
	})
	require.True(t, strings.HasPrefix(c.getVolume(claim.Spec.VolumeName).Spec.HostPath.Path, "/srv/pvc-"))

	c.claim("shared", "1Gi", func(p *corev1.PersistentVolumeClaim) {
		p.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	})
	c.awaitEvent("ProvisioningFailed", "access mode ReadWriteMany")

	// A node that is gone: the scheduler may choose again.
	c.claim("lost", "1Gi", func(p *corev1.PersistentVolumeClaim) {
		p.Spec.StorageClassName = new("local")
		p.Annotations = map[string]string{"volume.kubernetes.io/selected-node": "no-such-node"}
	})
	c.reaches("free to be scheduled again", func() bool {
		return c.getClaim("lost").Annotations["volume.kubernetes.io/selected-node"] == ""
	})
	c.awaitEvent("ProvisioningFailed", `node "no-such-node" not found`)
}
