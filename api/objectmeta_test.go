package api_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/kindtest"
)

func TestObjectMeta_ValidateRejects(t *testing.T) {
	t.Parallel()
	path := field.NewPath("metadata")
	sound := metav1.ObjectMeta{Name: "a", Namespace: "default"}
	for name, c := range map[string]struct {
		change func(*metav1.ObjectMeta)
		want   []string
	}{
		"sound":     {func(*metav1.ObjectMeta) {}, []string{}},
		"no name":   {func(m *metav1.ObjectMeta) { m.Name = "" }, []string{"Required metadata.name"}},
		"name":      {func(m *metav1.ObjectMeta) { m.Name = "A_" }, []string{"Invalid metadata.name"}},
		"namespace": {func(m *metav1.ObjectMeta) { m.Namespace = "" }, []string{"Required metadata.namespace"}},
		"label": {func(m *metav1.ObjectMeta) {
			m.Labels = map[string]string{"a": "b c"}
		}, []string{"Invalid metadata.labels"}},
		"annotation size": {func(m *metav1.ObjectMeta) {
			m.Annotations = map[string]string{"a": strings.Repeat("x", 256<<10)}
		}, []string{"TooLong metadata.annotations"}},
		"owner": {func(m *metav1.ObjectMeta) {
			m.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "p"}}
		}, []string{"Required metadata.ownerReferences[0].uid"}},
		"finalizer": {func(m *metav1.ObjectMeta) {
			m.Finalizers = []string{"a b"}
		}, []string{"Invalid metadata.finalizers"}},
	} {
		meta := sound.DeepCopy()
		c.change(meta)
		require.ElementsMatch(t, c.want, kindtest.Refusals(api.ValidateObjectMeta(meta, true, nil, path)), name)
	}
	for name, c := range map[string]struct {
		change func(*metav1.ObjectMeta)
		want   []string
	}{
		"nothing": {func(*metav1.ObjectMeta) {}, []string{}},
		"name":    {func(m *metav1.ObjectMeta) { m.Name = "b" }, []string{"Invalid metadata.name"}},
		"uid":     {func(m *metav1.ObjectMeta) { m.UID = types.UID("x") }, []string{"Invalid metadata.uid"}},
		"creation": {func(m *metav1.ObjectMeta) {
			m.CreationTimestamp = metav1.Unix(1, 0)
		}, []string{"Invalid metadata.creationTimestamp"}},
		"new finalizer": {func(m *metav1.ObjectMeta) {
			m.Finalizers = []string{"a.io/b"}
		}, []string{"Forbidden metadata.finalizers"}},
	} {
		old := sound.DeepCopy()
		old.ResourceVersion = "1"
		now := metav1.Unix(5, 0)
		old.DeletionTimestamp = &now
		meta := old.DeepCopy()
		c.change(meta)
		require.ElementsMatch(t, c.want, kindtest.Refusals(api.ValidateObjectMetaUpdate(meta, old, path)), name)
	}
}
