package controllers_test

import (
	"context"
	"encoding/json"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/dynamic"

	"github.com/coxswain-dev/coxswain/controllers/lib/controllertest"
	"github.com/coxswain-dev/coxswain/testenv"
)

type m = map[string]any

var (
	definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
		Resource: "customresourcedefinitions"}
	racks = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "racks"}
	sites = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "sites"}
)

// defining is a cluster with two custom kinds: Racks, which are namespaced and have a scale, and Sites, which
// are cluster-scoped.
type defining struct {
	*controllertest.Cluster
	dynamic dynamic.Interface
}

func newDefining(t *testing.T) *defining {
	t.Parallel()
	c := controllertest.At(t, testenv.Start(t))
	client, err := dynamic.NewForConfig(c.Config)
	require.NoError(t, err)
	d := &defining{c, client}
	d.define("racks", "Rack", "Namespaced", "v1", "v1", "v2")
	d.define("sites", "Site", "Cluster", "v1", "v1", "v2")
	return d
}

// define creates a kind with versions v1 and v2, and waits until it is established. stored is the storage
// version, served are the served ones.
func (d *defining) define(plural, kind, scope, stored string, served ...string) {
	d.Helper()
	var versions []any
	for _, v := range []string{"v1", "v2"} {
		versions = append(versions, m{"name": v, "served": slices.Contains(served, v), "storage": v == stored,
			"subresources": m{"status": m{}, "scale": m{"specReplicasPath": ".spec.replicas",
				"statusReplicasPath": ".status.replicas", "labelSelectorPath": ".status.selector"}},
			"schema": m{"openAPIV3Schema": m{"type": "object", "x-kubernetes-preserve-unknown-fields": true}}})
	}
	name := plural + ".example.com"
	patch, err := json.Marshal(m{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": m{"name": name},
		"spec": m{"group": "example.com", "scope": scope, "versions": versions,
			"names": m{"plural": plural, "kind": kind}}})
	require.NoError(d, err)
	_, err = d.dynamic.Resource(definitions).Patch(d.Context(), name, types.ApplyPatchType, patch,
		metav1.PatchOptions{FieldManager: "test"})
	require.NoError(d, err)
	d.Eventually(name+" is established", func() bool { return d.definitionHas(name, "Established", "True") })
}

func (d *defining) definitionHas(name, condition, status string) bool {
	crd, err := d.dynamic.Resource(definitions).Get(d.Context(), name, metav1.GetOptions{})
	require.NoError(d, err)
	list, _, _ := unstructured.NestedSlice(crd.Object, "status", "conditions")
	for _, c := range list {
		if c.(m)["type"] == condition && c.(m)["status"] == status {
			return true
		}
	}
	return false
}

// create creates an object with a spec, and returns a reference to it.
func (d *defining) create(resource schema.GroupVersionResource, kind, namespace, name string, spec m,
	owners ...metav1.OwnerReference) metav1.OwnerReference {
	d.Helper()
	obj := &unstructured.Unstructured{Object: m{"apiVersion": "example.com/v1", "kind": kind, "spec": spec}}
	obj.SetName(name)
	obj.SetOwnerReferences(owners)
	made, err := d.dynamic.Resource(resource).Namespace(namespace).Create(d.Context(), obj, metav1.CreateOptions{})
	require.NoError(d, err)
	return metav1.OwnerReference{APIVersion: "example.com/v1", Kind: kind, Name: name, UID: made.GetUID()}
}

func (d *defining) exists(resource schema.GroupVersionResource, namespace, name string) bool {
	_, err := d.dynamic.Resource(resource).Namespace(namespace).Get(d.Context(), name, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		require.NoError(d, err)
	}
	return err == nil
}

func TestCustom_GarbageIsCollectedAcrossKinds(t *testing.T) {
	d := newDefining(t)
	site := d.create(sites, "Site", "", "north", m{})
	rack := d.create(racks, "Rack", "default", "a", m{}, site)
	d.create(racks, "Rack", "default", "orphan", m{}, metav1.OwnerReference{APIVersion: "example.com/v1", Kind: "Site",
		Name: "south", UID: "never"})
	d.CreateMap("default", "of-rack", rack)
	owner := d.CreateMap("default", "owner")
	d.create(racks, "Rack", "default", "of-map", m{}, metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap",
		Name: "owner", UID: owner.UID})
	d.Eventually("the rack of no site is collected", func() bool { return !d.exists(racks, "default", "orphan") })
	require.NotNil(t, d.Map("default", "of-rack"))
	d.DeleteMap("owner", metav1.DeletePropagationForeground)
	d.Eventually("the map goes after its rack", func() bool { return d.Map("default", "owner") == nil })
	require.False(t, d.exists(racks, "default", "of-map"))
	background := metav1.DeletePropagationBackground
	require.NoError(t, d.dynamic.Resource(sites).Delete(t.Context(), "north",
		metav1.DeleteOptions{PropagationPolicy: &background}))
	d.Eventually("the site's rack is collected", func() bool { return !d.exists(racks, "default", "a") })
	d.Eventually("and the rack's map", func() bool { return d.Map("default", "of-rack") == nil })

	// The version that the collector watches is no longer served.
	d.define("racks", "Rack", "Namespaced", "v1", "v1")
	owner = d.CreateMap("default", "owner")
	d.create(racks, "Rack", "default", "of-map", m{}, metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap",
		Name: "owner", UID: owner.UID})
	d.DeleteMap("owner", metav1.DeletePropagationBackground)
	d.Eventually("the map's rack is collected", func() bool { return !d.exists(racks, "default", "of-map") })

	// When a kind is deleted, its objects are owners no more: their dependents are deleted, too.
	rack = d.create(racks, "Rack", "default", "b", m{})
	d.CreateMap("default", "of-b", rack)
	require.NoError(t, d.dynamic.Resource(definitions).Delete(t.Context(), "racks.example.com", metav1.DeleteOptions{}))
	d.Eventually("the dependents of a kind that went", func() bool { return d.Map("default", "of-b") == nil })
}

func TestCustom_NamespaceWaitsForFinalizers(t *testing.T) {
	d := newDefining(t)
	d.CreateNamespace("hall")
	d.create(racks, "Rack", "hall", "free", m{})
	d.create(racks, "Rack", "hall", "held", m{})
	patch := func(finalizers string) {
		t.Helper()
		_, err := d.dynamic.Resource(racks).Namespace("hall").Patch(t.Context(), "held", types.MergePatchType,
			[]byte(`{"metadata":{"finalizers":`+finalizers+`}}`), metav1.PatchOptions{})
		require.NoError(t, err)
	}
	patch(`["example.com/hold"]`)
	d.DeleteNamespace("hall")
	d.Eventually("the namespace says what it waits for", func() bool {
		ns, err := d.Client.CoreV1().Namespaces().Get(t.Context(), "hall", metav1.GetOptions{})
		require.NoError(t, err)
		for _, c := range ns.Status.Conditions {
			if c.Type == corev1.NamespaceFinalizersRemaining && c.Status == corev1.ConditionTrue {
				return true
			}
		}
		return false
	})
	require.False(t, d.exists(racks, "hall", "free"))
	patch(`null`)
	d.AwaitNamespaceGone("hall")
}

func TestCustom_QuotaCountsObjects(t *testing.T) {
	d := newDefining(t)
	quotas := d.Client.CoreV1().ResourceQuotas("default")
	_, err := quotas.Create(t.Context(), &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "few"},
		Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{
			"count/racks.example.com": resource.MustParse("1")}}}, metav1.CreateOptions{})
	require.NoError(t, err)
	used := func(n string) func() bool {
		return func() bool {
			q, err := quotas.Get(t.Context(), "few", metav1.GetOptions{})
			require.NoError(t, err)
			have, ok := q.Status.Used["count/racks.example.com"]
			return ok && have.String() == n
		}
	}
	d.Eventually("none is used", used("0"))
	d.create(racks, "Rack", "default", "a", m{})
	d.Eventually("one is used", used("1"))
	second := &unstructured.Unstructured{Object: m{"apiVersion": "example.com/v1", "kind": "Rack",
		"metadata": m{"name": "b"}}}
	d.Eventually("the second is refused", func() bool {
		_, err = d.dynamic.Resource(racks).Namespace("default").Create(t.Context(), second,
			metav1.CreateOptions{DryRun: []string{"All"}})
		return apierrors.IsForbidden(err)
	})
	require.ErrorContains(t, err, "exceeded quota: few, requested: count/racks.example.com=1, used: "+
		"count/racks.example.com=1, limited: count/racks.example.com=1")
	require.NoError(t, d.dynamic.Resource(racks).Namespace("default").Delete(t.Context(), "a", metav1.DeleteOptions{}))
	d.Eventually("the deleted one is given back", used("0"))

	require.NoError(t, d.dynamic.Resource(definitions).Delete(t.Context(), "racks.example.com", metav1.DeleteOptions{}))
	d.Eventually("the kind is gone", func() bool { return !d.exists(definitions, "", "racks.example.com") })
	d.define("racks", "Rack", "Namespaced", "v2", "v2")
	racks := schema.GroupVersionResource{Group: "example.com", Version: "v2", Resource: "racks"}
	second.SetAPIVersion("example.com/v2")
	_, err = d.dynamic.Resource(racks).Namespace("default").Create(t.Context(), second, metav1.CreateOptions{})
	require.NoError(t, err)
	d.Eventually("one of the new kind is used", used("1"))
	require.NoError(t, d.dynamic.Resource(racks).Namespace("default").Delete(t.Context(), "b", metav1.DeleteOptions{}))
	d.Eventually("and is given back", used("0"))
}

// podsOf creates n pods that a Rack controls, and writes them to its status.
func (d *defining) podsOf(rack metav1.OwnerReference, n int) {
	d.Helper()
	rack.Controller = new(true)
	for i := range n {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: string(rune('a' + i)), Labels: map[string]string{"in": "rack"},
			OwnerReferences: []metav1.OwnerReference{rack}},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "one"}}}}
		_, err := d.Client.CoreV1().Pods("default").Create(d.Context(), pod, metav1.CreateOptions{})
		require.NoError(d, err)
	}
	_, err := d.dynamic.Resource(racks).Namespace("default").Patch(d.Context(), rack.Name, types.MergePatchType,
		[]byte(`{"status":{"replicas":2,"selector":"in=rack"}}`), metav1.PatchOptions{}, "status")
	require.NoError(d, err)
}

func TestCustom_ScaleIsForBudgetsAndAutoscalers(t *testing.T) {
	d := newDefining(t)
	rack := d.create(racks, "Rack", "default", "a", m{"replicas": 4})
	d.podsOf(rack, 2)
	half := intstr.FromString("50%")
	_, err := d.Client.PolicyV1().PodDisruptionBudgets("default").Create(t.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "rack"},
		Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: &half,
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"in": "rack"}}}}, metav1.CreateOptions{})
	require.NoError(t, err)
	d.Eventually("the budget knows the scale", func() bool {
		b, err := d.Client.PolicyV1().PodDisruptionBudgets("default").Get(t.Context(), "rack", metav1.GetOptions{})
		require.NoError(t, err)
		return b.Status.ExpectedPods == 4 && b.Status.DesiredHealthy == 2
	})
	_, err = d.Client.AutoscalingV2().HorizontalPodAutoscalers("default").Create(t.Context(),
		&autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Name: "rack"},
			Spec: autoscalingv2.HorizontalPodAutoscalerSpec{MaxReplicas: 3, MinReplicas: new(int32(1)),
				ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "example.com/v1", Kind: "Rack",
					Name: "a"}}}, metav1.CreateOptions{})
	require.NoError(t, err)
	d.Eventually("it has as many replicas as the autoscaler allows", func() bool {
		obj, err := d.dynamic.Resource(racks).Namespace("default").Get(t.Context(), "a", metav1.GetOptions{})
		require.NoError(t, err)
		n, _, err := unstructured.NestedInt64(obj.Object, "spec", "replicas")
		require.NoError(t, err)
		return n == 3
	})
}

func TestCustom_ObjectsMigrateToANewStorageVersion(t *testing.T) {
	d := newDefining(t)
	d.create(racks, "Rack", "default", "a", m{"units": int64(42)})
	d.define("racks", "Rack", "Namespaced", "v2", "v1", "v2")
	stored := func() []string {
		crd, err := d.dynamic.Resource(definitions).Get(t.Context(), "racks.example.com", metav1.GetOptions{})
		require.NoError(t, err)
		versions, _, err := unstructured.NestedStringSlice(crd.Object, "status", "storedVersions")
		require.NoError(t, err)
		return versions
	}
	require.Equal(t, []string{"v1", "v2"}, stored())
	before, err := d.dynamic.Resource(racks).Namespace("default").Get(t.Context(), "a", metav1.GetOptions{})
	require.NoError(t, err)
	migrations := d.Client.StoragemigrationV1().StorageVersionMigrations()
	_, err = migrations.Create(t.Context(), &storagemigrationv1.StorageVersionMigration{
		ObjectMeta: metav1.ObjectMeta{Name: "racks"},
		Spec: storagemigrationv1.StorageVersionMigrationSpec{
			Resource: metav1.GroupResource{Group: "example.com", Resource: "racks"}}}, metav1.CreateOptions{})
	require.NoError(t, err)
	d.Eventually("the migration succeeds", func() bool {
		o, err := migrations.Get(context.Background(), "racks", metav1.GetOptions{})
		require.NoError(t, err)
		return apimeta.IsStatusConditionTrue(o.Status.Conditions, "Succeeded")
	})
	require.Equal(t, []string{"v2"}, stored())
	require.True(t, d.definitionHas("racks.example.com", "StorageMigrating", "False"))
	after, err := d.dynamic.Resource(racks).Namespace("default").Get(t.Context(), "a", metav1.GetOptions{})
	require.NoError(t, err)
	require.NotEqual(t, before.GetResourceVersion(), after.GetResourceVersion(), "the object was rewritten in v2")
	require.Equal(t, before.Object["spec"], after.Object["spec"])
}
