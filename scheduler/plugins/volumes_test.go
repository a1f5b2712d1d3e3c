package plugins

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/scheduler/framework"
)

// claim returns a claim of a class, bound to a volume if volumeName is set.
func claim(name, class, volumeName string, modes ...corev1.PersistentVolumeAccessMode) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name)},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class, VolumeName: volumeName, AccessModes: append(modes, corev1.ReadWriteOnce),
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending},
	}
	if volumeName != "" {
		c.Status.Phase = corev1.ClaimBound
		c.Annotations = map[string]string{volume.AnnBindCompleted: "yes"}
	}
	return c
}

// localVolume returns a volume that only one node can reach.
func localVolume(name, class, node string, labels ...string) *corev1.PersistentVolume {
	v := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}},
		Spec: corev1.PersistentVolumeSpec{
			StorageClassName: class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Gi")},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: "csi.example.com", VolumeHandle: "handle-" + name}},
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeAvailable},
	}
	if node != "" {
		v.Spec.NodeAffinity =
			&corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname,
					Operator: corev1.NodeSelectorOpIn, Values: []string{node}}}}}}}
	}
	for i := 0; i < len(labels); i += 2 {
		v.Labels[labels[i]] = labels[i+1]
	}
	return v
}

func storageClass(name, provisioner string, mode storagev1.VolumeBindingMode) *storagev1.StorageClass {
	return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: provisioner,
		VolumeBindingMode: &mode}
}

// uses returns a pod with these claims.
func uses(name string, claims ...string) *corev1.Pod {
	p := pod(name, func(s *corev1.PodSpec) {
		for _, c := range claims {
			s.Volumes = append(s.Volumes, corev1.Volume{Name: c, VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: c}}})
		}
	})
	p.Namespace = "default"
	return p
}

func TestVolumeBinding_Filter(t *testing.T) {
	t.Parallel()
	const wait, none = storagev1.VolumeBindingWaitForFirstConsumer, "kubernetes.io/no-provisioner"
	zonal := storageClass("zonal", "csi.example.com", wait)
	zonal.AllowedTopologies =
		[]corev1.TopologySelectorTerm{{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: "zone",
			Values: []string{"a"}}}}}
	selected := claim("selected", "dynamic", "")
	selected.Annotations = map[string]string{volume.AnnSelectedNode: "b"}
	lost := claim("lost", "static", "gone")
	lost.Status.Phase = corev1.ClaimLost
	objects := []runtime.Object{
		storageClass("static", none, wait), storageClass("now", "csi.example.com", storagev1.VolumeBindingImmediate),
		storageClass("dynamic", "csi.example.com", wait), storageClass("full", "small.example.com", wait), zonal,
		&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "small.example.com"},
			Spec: storagev1.CSIDriverSpec{StorageCapacity: ptr.To(true)}},
		&storagev1.CSIStorageCapacity{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "default"},
			StorageClassName: "full",
			Capacity:         ptr.To(resource.MustParse("1Gi")),
			NodeTopology:     &metav1.LabelSelector{MatchLabels: map[string]string{"zone": "a"}}},
		localVolume("on-a", "static", "a"), localVolume("on-b", "static", "b"),
		localVolume("pinned", "pinned", "a"),
		claim("bound", "pinned", "pinned"), claim("dangling", "pinned", "nowhere"), claim("unbound", "static", ""),
		claim("second", "static", ""),
		claim("immediate", "now", ""), claim("dynamic", "dynamic", ""), claim("zonal", "zonal", ""),
		claim("full", "full", ""), selected, lost,
	}
	plugin := made[*VolumeBinding](t, "VolumeBinding", "", objects...)
	const elsewhere, nothing = "node(s) didn't match PersistentVolume's node affinity",
		"node(s) didn't find available persistent volumes to bind"
	all := func(reason string) map[string]string { return map[string]string{"a": reason, "b": reason, "c": reason} }
	for _, tt := range []struct {
		claims []string
		want   map[string]string
	}{
		{nil, all("")},
		{[]string{"bound"}, map[string]string{"a": "", "b": elsewhere, "c": elsewhere}},
		{[]string{"dangling"}, all("node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)")},
		{[]string{"missing"}, all(`persistentvolumeclaim "missing" not found`)},
		{[]string{"lost"}, all(`persistentvolumeclaim "lost" bound to non-existent persistentvolume "gone"`)},
		{[]string{"immediate"}, all("pod has unbound immediate PersistentVolumeClaims")},
		{[]string{"unbound"}, map[string]string{"a": "", "b": "", "c": nothing}},
		{[]string{"unbound", "second"}, all(nothing)},
		{[]string{"dynamic"}, all("")},
		{[]string{"zonal"}, map[string]string{"a": "", "b": nothing, "c": nothing}},
		{[]string{"full"}, map[string]string{"a": "", "b": "node(s) did not have enough free storage",
			"c": "node(s) did not have enough free storage"}},
		{[]string{"selected"}, map[string]string{"a": nothing, "b": "", "c": nothing}},
	} {
		nodes := nodeList{labelled("a", []string{"zone", "a"}), labelled("b", []string{"zone", "b"}),
			labelled("c", []string{"zone", "c"})}
		require.Equal(t, tt.want, run(t, plugin, uses("p", tt.claims...), nodes), tt.claims)
	}
}

// bindsVolumes does the work of the PersistentVolume controller and of a provisioner.
func bindsVolumes(h *testHandle) {
	tracker := h.client.Tracker()
	bind := func(namespace, name, target string) {
		go func() { // the fake client holds its lock here
			o, err := tracker.Get(corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims"), namespace, name)
			if err != nil {
				return
			}
			c := o.(*corev1.PersistentVolumeClaim).DeepCopy()
			c.Spec.VolumeName, c.Status.Phase = target, corev1.ClaimBound
			c.ResourceVersion = "2"
			_ = tracker.Update(corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims"), c, namespace)
		}()
	}
	h.client.PrependReactor("update", "persistentvolumes", func(a clienttesting.Action) (bool, runtime.Object, error) {
		v := a.(clienttesting.UpdateAction).GetObject().(*corev1.PersistentVolume)
		bind(v.Spec.ClaimRef.Namespace, v.Spec.ClaimRef.Name, v.Name)
		return false, nil, nil
	})
	h.client.PrependReactor("update", "persistentvolumeclaims",
		func(a clienttesting.Action) (bool, runtime.Object, error) {
			c := a.(clienttesting.UpdateAction).GetObject().(*corev1.PersistentVolumeClaim)
			bind(c.Namespace, c.Name, "made-on-"+c.Annotations[volume.AnnSelectedNode])
			return true, c, nil
		})
}

func TestVolumeBinding_BindsBeforeThePod(t *testing.T) {
	t.Parallel()
	h := newTestHandle(t,
		storageClass("static", "kubernetes.io/no-provisioner", storagev1.VolumeBindingWaitForFirstConsumer),
		storageClass("dynamic", "csi.example.com", storagev1.VolumeBindingWaitForFirstConsumer),
		localVolume("v", "static", "a"), claim("s", "static", ""), claim("d", "dynamic", ""),
		claim("rival", "static", ""))
	bindsVolumes(h)
	made, err := newVolumeBinding(framework.Args{}, h)
	require.NoError(t, err)
	plugin := made.(*VolumeBinding)
	h.start(t)
	nodes := nodeList{labelled("a", nil)}
	state, p := &framework.CycleState{}, framework.NewPodInfo(uses("p", "s", "d"))
	_, status := plugin.PreFilter(state, p, nodes)
	require.NoError(t, status.Err())
	require.NoError(t, plugin.Filter(state, p, nodes[0]).Err())
	require.NoError(t, plugin.Reserve(state, p, "a").Err())
	require.Equal(t, map[string]string{"a": "node(s) didn't find available persistent volumes to bind"},
		run(t, plugin, uses("q", "rival"), nodes), "the volume is taken")
	require.True(t, plugin.PreBindPreFlight(state, p, "a").OK())

	done := make(chan *framework.Status, 1)
	go func() { done <- plugin.PreBind(context.Background(), state, p, "a") }()
	for {
		select {
		case status := <-done:
			require.NoError(t, status.Err())
			c, err := h.client.CoreV1().PersistentVolumeClaims("default").Get(t.Context(), "d", metav1.GetOptions{})
			require.NoError(t, err)
			require.Equal(t, "made-on-a", c.Spec.VolumeName)
			v, err := h.client.CoreV1().PersistentVolumes().Get(t.Context(), "v", metav1.GetOptions{})
			require.NoError(t, err)
			require.Equal(t, "s", v.Spec.ClaimRef.Name)
			require.Empty(t, plugin.taken)
			return
		case <-time.After(20 * time.Millisecond): // until the informers show the bound claim
			if h.clock.HasWaiters() {
				h.clock.Step(bindCheckInterval)
			}
		}
	}
}

func TestVolumeBinding_GivesUpInTheEnd(t *testing.T) {
	t.Parallel()
	h := newTestHandle(t, storageClass("dynamic", "csi.example.com", storagev1.VolumeBindingWaitForFirstConsumer),
		claim("d", "dynamic", ""))
	made, err := newVolumeBinding(framework.Args{}, h)
	require.NoError(t, err)
	plugin := made.(*VolumeBinding)
	h.start(t)
	nodes := nodeList{labelled("a", nil)}
	state, p := &framework.CycleState{}, framework.NewPodInfo(uses("p", "d"))
	_, status := plugin.PreFilter(state, p, nodes)
	require.NoError(t, status.Err())
	require.NoError(t, plugin.Filter(state, p, nodes[0]).Err())
	require.NoError(t, plugin.Reserve(state, p, "a").Err())
	done := make(chan *framework.Status, 1)
	go func() { done <- plugin.PreBind(context.Background(), state, p, "a") }()
	for {
		select {
		case status := <-done:
			require.ErrorContains(t, status.Err(), "timed out after 10m0s")
			plugin.Unreserve(state, p, "a")
			require.Empty(t, plugin.claimed)
			return
		default:
			if h.clock.HasWaiters() {
				h.clock.Step(plugin.timeout)
			}
		}
	}
}

func TestVolumeZone(t *testing.T) {
	t.Parallel()
	plugin := made[*VolumeZone](t, "VolumeZone", "", claim("c", "x", "v"), claim("new", "x", ""),
		localVolume("v", "x", "", corev1.LabelTopologyZone, "a__b"))
	zone := corev1.LabelTopologyZone
	nodes := nodeList{labelled("a", []string{zone, "a"}), labelled("c", []string{zone, "c"}),
		labelled("old", []string{corev1.LabelFailureDomainBetaZone, "b"}), labelled("x", nil)}
	const wrong = "node(s) had no available volume zone"
	require.Equal(t, map[string]string{"a": "", "c": wrong, "old": wrong, "x": ""},
		run(t, plugin, uses("p", "c"), nodes))
	require.Equal(t, map[string]string{"a": "", "c": "", "old": "", "x": ""}, run(t, plugin, uses("p", "new"), nodes))
}

func TestVolumeRestrictions(t *testing.T) {
	t.Parallel()
	plugin := made[*VolumeRestrictions](t, "VolumeRestrictions", "", claim("once", "x", "v", corev1.ReadWriteOncePod),
		claim("many", "x", "w"))
	const taken = "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode"
	nodes := nodeList{labelled("a", nil, uses("1", "once", "many")), labelled("b", nil)}
	require.Equal(t, map[string]string{"a": taken, "b": taken}, run(t, plugin, uses("p", "once"), nodes))
	require.Equal(t, map[string]string{"a": "", "b": ""}, run(t, plugin, uses("p", "many"), nodes))
	disk := func(name string, readOnly bool) *corev1.Pod {
		return pod(name, func(s *corev1.PodSpec) {
			source := &corev1.GCEPersistentDiskVolumeSource{PDName: "d", ReadOnly: readOnly}
			s.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{GCEPersistentDisk: source}}}
		})
	}
	require.Equal(t, map[string]string{"a": "node(s) had no available disk", "b": ""},
		run(t, plugin, disk("p", false), nodeList{labelled("a", nil, disk("1", true)), labelled("b", nil)}))
	require.Equal(t, map[string]string{"a": ""},
		run(t, plugin, disk("p", true), nodeList{labelled("a", nil, disk("1", true))}))

	once, p := framework.NewPodInfo(uses("1", "once")), framework.NewPodInfo(uses("p", "once"))
	state := &framework.CycleState{}
	plugin.PreFilter(state, p, nodes)
	simulated := state.Clone()
	plugin.RemovePod(simulated, p, once, nodes[0])
	require.True(t, plugin.Filter(simulated, p, nodes[1]).OK(), "preemption helps")
}

func TestNodeVolumeLimits(t *testing.T) {
	t.Parallel()
	limited := func(node string, count int32) *storagev1.CSINode {
		return &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: node},
			Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{
				{Name: "csi.example.com", NodeID: node, Allocatable: &storagev1.VolumeNodeResources{Count: &count}}}}}
	}
	plugin := made[*NodeVolumeLimits](t, "NodeVolumeLimits", "", limited("a", 2), limited("b", 1), limited("d", 1),
		storageClass("dynamic", "csi.example.com", storagev1.VolumeBindingWaitForFirstConsumer),
		claim("1", "x", "v1"), claim("2", "x", "v2"), claim("3", "x", "v3"), claim("new", "dynamic", ""),
		localVolume("v1", "x", ""), localVolume("v2", "x", ""), localVolume("v3", "x", ""),
		&storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "left"}, Spec: storagev1.VolumeAttachmentSpec{
			Attacher: "csi.example.com", NodeName: "d",
			Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: ptr.To("v3")}}})
	const full = "node(s) exceed max volume count"
	nodes := nodeList{labelled("a", nil, uses("a1", "1")), labelled("b", nil, uses("b1", "1")),
		labelled("c", nil, uses("c1", "1", "2")), labelled("d", nil)}
	require.Equal(t, map[string]string{"a": "", "b": full, "c": "", "d": full}, run(t, plugin, uses("p", "2"), nodes))
	require.Equal(t, map[string]string{"a": "", "b": "", "c": "", "d": full}, run(t, plugin, uses("p", "1"), nodes),
		"one that is attached already takes no more")
	require.Equal(t, map[string]string{"a": "", "b": full, "c": "", "d": full}, run(t, plugin, uses("p", "new"), nodes))
	require.Equal(t, map[string]string{"a": full, "b": full, "c": "", "d": full},
		run(t, plugin, uses("p", "new", "2"), nodes))
}
