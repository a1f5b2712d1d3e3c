package strategy_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/kindtest"
	"github.com/coxswain-dev/coxswain/apiserver/strategy"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// deployments returns a kind with generations and a separate status.
func deployments() *api.Resource {
	return &api.Resource{
		Names: api.Names{Group: "apps", Version: "v1", Kind: "Deployment", Plural: "deployments"},
		Strategy: api.Strategy{
			Generation: true,
			Status: &api.Status{
				Copy: api.Typed2(func(to, from *appsv1.Deployment) { to.Status = from.Status }),
				Reset: func(obj api.Object) {
					obj.(*appsv1.Deployment).Status = appsv1.DeploymentStatus{}
				},
			},
		},
	}
}

func stored() *appsv1.Deployment {
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web", UID: "u", ResourceVersion: "7", Generation: 3,
			CreationTimestamp: metav1.NewTime(now.Add(-time.Hour))},
		Spec:   appsv1.DeploymentSpec{Replicas: ptr.To[int32](2)},
		Status: appsv1.DeploymentStatus{Replicas: 2},
	}
}

func TestBeforeCreate_SetsServerFields(t *testing.T) {
	t.Parallel()
	forged := stored()
	forged.DeletionTimestamp, forged.DeletionGracePeriodSeconds = &metav1.Time{Time: now}, ptr.To[int64](1)
	forged.SelfLink, forged.ManagedFields = "/odd", []metav1.ManagedFieldsEntry{{Manager: "odd"}}
	strategy.BeforeCreate(deployments(), forged, now)
	require.NotEqual(t, types.UID("u"), forged.UID)
	require.NotEmpty(t, forged.UID)
	forged.UID = ""
	require.Equal(t, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web", ResourceVersion: "7", Generation: 1,
			CreationTimestamp: metav1.NewTime(now).Rfc3339Copy()},
		Spec: appsv1.DeploymentSpec{Replicas: ptr.To[int32](2)},
	}, forged)
}

func TestBeforeUpdate_KeepsServerFieldsAndCountsGenerations(t *testing.T) {
	t.Parallel()
	res := deployments()
	for name, c := range map[string]struct {
		edit       func(*appsv1.Deployment)
		generation int64
	}{
		"nothing":     {func(*appsv1.Deployment) {}, 3},
		"labels":      {func(d *appsv1.Deployment) { d.Labels = map[string]string{"a": "b"} }, 3},
		"status":      {func(d *appsv1.Deployment) { d.Status.Replicas = 9 }, 3},
		"spec":        {func(d *appsv1.Deployment) { d.Spec.Replicas = ptr.To[int32](5) }, 4},
		"generation":  {func(d *appsv1.Deployment) { d.Generation = 99 }, 3},
		"annotations": {func(d *appsv1.Deployment) { d.Annotations = map[string]string{"a": "b"} }, 3},
	} {
		obj := stored()
		obj.UID, obj.ResourceVersion, obj.CreationTimestamp = "", "", metav1.Time{}
		c.edit(obj)
		require.NoError(t, strategy.BeforeUpdate(res, obj, stored()), name)
		require.Equal(t, c.generation, obj.Generation, name)
		require.Equal(t, types.UID("u"), obj.UID, name)
		require.Equal(t, "7", obj.ResourceVersion, name)
		require.Equal(t, stored().CreationTimestamp, obj.CreationTimestamp, name)
		require.Equal(t, stored().Status, obj.Status, name)
	}
	res.GenerationCountsAnnotations = true
	obj := stored()
	obj.Annotations = map[string]string{"a": "b"}
	require.NoError(t, strategy.BeforeUpdate(res, obj, stored()))
	require.EqualValues(t, 4, obj.Generation)

	obj = stored()
	obj.UID = "another"
	require.True(t, apierrors.IsConflict(strategy.BeforeUpdate(res, obj, stored())))
}

func TestGenerateName_FitsALabel(t *testing.T) {
	t.Parallel()
	require.Regexp(t, `^web-[a-z0-9]{5}$`, strategy.GenerateName("web-"))
	long := make([]byte, 100)
	for i := range long {
		long[i] = 'a'
	}
	require.Len(t, strategy.GenerateName(string(long)), 63)
}

func TestBeforeDelete_OnlyShortensGracePeriods(t *testing.T) {
	t.Parallel()
	res := deployments()
	res.DeleteGrace = func(_ api.Object, asked *int64) int64 { return ptr.Deref(asked, 30) }
	grace := func(seconds int64) *metav1.DeleteOptions {
		return &metav1.DeleteOptions{GracePeriodSeconds: &seconds}
	}
	marked := strategy.BeforeDelete(res, stored(), &metav1.DeleteOptions{}, now)
	require.Equal(t, now.Add(30*time.Second), marked.GetDeletionTimestamp().UTC())
	require.EqualValues(t, 4, marked.GetGeneration())
	require.False(t, strategy.Ended(res, marked))

	later := now.Add(5 * time.Second)
	require.Equal(t, marked, strategy.BeforeDelete(res, marked, &metav1.DeleteOptions{}, later), "it is begun once")
	require.Equal(t, marked, strategy.BeforeDelete(res, marked, grace(60), later))
	shorter := strategy.BeforeDelete(res, marked, grace(10), later)
	require.Equal(t, now.Add(10*time.Second), shorter.GetDeletionTimestamp().UTC(), "it counts from the first")
	late := strategy.BeforeDelete(res, marked, grace(3), later)
	require.Equal(t, later, late.GetDeletionTimestamp().UTC())
	require.EqualValues(t, 1, *late.GetDeletionGracePeriodSeconds(), "what has passed does not delete it")
	require.EqualValues(t, 1, *strategy.BeforeDelete(res, marked, grace(-5), now).GetDeletionGracePeriodSeconds())
	foreground := &metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationForeground)}
	require.Equal(t, marked, strategy.BeforeDelete(res, marked, foreground, later), "finalizers are settled by then")
	over := strategy.BeforeDelete(res, marked, grace(0), later)
	require.Equal(t, later, over.GetDeletionTimestamp().UTC(), "it does not end in the past")
	require.True(t, strategy.Ended(res, over))
	require.True(t, strategy.IsGraceful(res, stored()))
	require.True(t, strategy.IsGraceful(res, marked))
	require.False(t, strategy.IsGraceful(res, over), "it is marked already")
	require.False(t, strategy.IsGraceful(deployments(), stored()))

	for _, seconds := range []int64{math.MaxInt64, math.MinInt64} {
		require.NotPanics(t, func() { strategy.BeforeDelete(res, stored(), grace(seconds), now) })
	}
}

func TestBeforeDelete_DefinitionsAreOnlyMarked(t *testing.T) {
	t.Parallel()
	crd := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "a.example.com", Generation: 3}}
	marked := strategy.BeforeDelete(kindtest.Of(t, "CustomResourceDefinition"), crd, &metav1.DeleteOptions{
		GracePeriodSeconds: new(int64(30)), PropagationPolicy: new(metav1.DeletePropagationForeground)}, now)
	require.NotNil(t, marked.GetDeletionTimestamp())
	require.Nil(t, marked.GetDeletionGracePeriodSeconds())
	require.EqualValues(t, 3, marked.GetGeneration())
	require.Equal(t, []string{"customresourcecleanup.apiextensions.k8s.io"}, marked.GetFinalizers())
}

func TestBeforeDelete_SetsPropagationFinalizers(t *testing.T) {
	t.Parallel()
	const orphan, foreground = metav1.FinalizerOrphanDependents, metav1.FinalizerDeleteDependents
	policy := func(p metav1.DeletionPropagation) *metav1.DeleteOptions {
		return &metav1.DeleteOptions{PropagationPolicy: &p}
	}
	for name, c := range map[string]struct {
		standard metav1.DeletionPropagation
		have     []string
		options  *metav1.DeleteOptions
		want     []string
	}{
		"none":                    {options: &metav1.DeleteOptions{}, have: []string{"a"}, want: []string{"a"}},
		"background":              {options: policy(metav1.DeletePropagationBackground)},
		"foreground":              {options: policy(metav1.DeletePropagationForeground), want: []string{foreground}},
		"orphan":                  {options: policy(metav1.DeletePropagationOrphan), want: []string{orphan}},
		"orphan, the old way":     {options: &metav1.DeleteOptions{OrphanDependents: ptr.To(true)}, want: []string{orphan}},
		"not orphan, the old way": {options: &metav1.DeleteOptions{OrphanDependents: ptr.To(false)}, have: []string{orphan}},
		"the kind's": {standard: metav1.DeletePropagationOrphan, options: &metav1.DeleteOptions{},
			want: []string{orphan}},
		"the client's first": {options: policy(metav1.DeletePropagationForeground), have: []string{orphan},
			want: []string{foreground}},
		"the finalizers', if none": {standard: metav1.DeletePropagationOrphan, options: &metav1.DeleteOptions{},
			have: []string{foreground}, want: []string{foreground}},
	} {
		res, obj := deployments(), stored()
		res.DefaultPropagation, obj.Finalizers = c.standard, c.have
		require.ElementsMatch(t, c.want, strategy.BeforeDelete(res, obj, c.options, now).GetFinalizers(), name)
	}
}

func TestEnded_WaitsForFinalizersAndTheKind(t *testing.T) {
	t.Parallel()
	res, obj := deployments(), stored()
	require.False(t, strategy.Ended(res, obj), "its deletion has not begun")
	obj.DeletionTimestamp = &metav1.Time{Time: now}
	require.True(t, strategy.Ended(res, obj))
	obj.Finalizers = []string{"a"}
	require.False(t, strategy.Ended(res, obj))
	obj.Finalizers = nil
	res.HasFinalizers = func(api.Object) bool { return true }
	require.False(t, strategy.Ended(res, obj))
}

func TestCheckPreconditions_OfUIDAndRevision(t *testing.T) {
	t.Parallel()
	res, uid, other, version := deployments(), types.UID("u"), types.UID("other"), "7"
	require.NoError(t, strategy.CheckPreconditions(res, stored(), nil))
	require.NoError(t, strategy.CheckPreconditions(res, stored(), &metav1.Preconditions{UID: &uid,
		ResourceVersion: &version}))
	require.True(t, apierrors.IsConflict(strategy.CheckPreconditions(res, stored(),
		&metav1.Preconditions{UID: &other})))
	require.True(t, apierrors.IsConflict(strategy.CheckPreconditions(res, stored(),
		&metav1.Preconditions{ResourceVersion: ptr.To("6")})))
}
