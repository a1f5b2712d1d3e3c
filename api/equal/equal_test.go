package equal_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/randfill"

	"github.com/coxswain-dev/coxswain/api/equal"
)

func Example() {
	a := corev1.ResourceList{"memory": resource.MustParse("1Gi")}
	b := corev1.ResourceList{"memory": resource.MustParse("1024Mi")}
	fmt.Println(equal.Semantic(a, b))
	// Output: true
}

func filler(seed int64) *randfill.Filler {
	return randfill.NewWithSeed(seed).NilChance(0.3).NumElements(0, 2).MaxDepth(10).Funcs(
		func(dst *resource.Quantity, c randfill.Continue) {
			*dst = *resource.NewMilliQuantity(c.Int63n(3000), resource.DecimalSI)
		},
		func(dst *metav1.Time, c randfill.Continue) { *dst = metav1.Unix(c.Int63n(3), 0) },
		func(dst *metav1.MicroTime, c randfill.Continue) {
			*dst = metav1.NewMicroTime(time.UnixMicro(c.Int63n(3)))
		},
		func(dst *runtime.RawExtension, c randfill.Continue) { dst.Raw = []byte{byte('0' + c.Intn(3))} },
		func(dst *metav1.FieldsV1, c randfill.Continue) { dst.Raw = []byte{byte('0' + c.Intn(3))} },
		func(dst *string, c randfill.Continue) { *dst = string(rune('a' + c.Intn(3))) },
	)
}

// TestSemantic_MatchesApimachinery changes each of Kubernetes' kinds in one place at a time, and compares the results
// of both packages.
func TestSemantic_MatchesApimachinery(t *testing.T) {
	t.Parallel()
	equals, kinds := [2]int{}, 0
	for gvk, goType := range scheme.Scheme.AllKnownTypes() {
		if gvk.Version == runtime.APIVersionInternal {
			continue
		}
		kinds++
		for seed := range int64(4) {
			a, same, other := reflect.New(goType).Interface().(runtime.Object), reflect.New(goType).Interface(),
				reflect.New(goType).Interface()
			filler(seed).Fill(a)
			filler(seed).Fill(same)
			filler(seed + 100).Fill(other)
			require.True(t, equal.Semantic(a, same), "%s", gvk)
			require.True(t, equal.Semantic(a, a.DeepCopyObject()), "%s", gvk)
			for i := range goType.NumField() {
				b := a.DeepCopyObject()
				reflect.ValueOf(b).Elem().Field(i).Set(reflect.ValueOf(other).Elem().Field(i))
				want := equality.Semantic.DeepEqual(a, b)
				require.Equal(t, want, equal.Semantic(a, b), "%s.%s", gvk, goType.Field(i).Name)
				if want {
					equals[1]++
				} else {
					equals[0]++
				}
			}
		}
	}
	require.Greater(t, kinds, 200)
	require.Greater(t, min(equals[0], equals[1]), 100, "the cases are of one sort only: %v", equals)
}

// TestIdentical_ImpliesTheSameJSON changes each kind in one place at a time, sometimes by a single character.
func TestIdentical_ImpliesTheSameJSON(t *testing.T) {
	t.Parallel()
	equals := [2]int{}
	for gvk, goType := range scheme.Scheme.AllKnownTypes() {
		if gvk.Version == runtime.APIVersionInternal {
			continue
		}
		for seed := range int64(4) {
			a, other := reflect.New(goType).Interface().(runtime.Object), reflect.New(goType).Interface()
			filler(seed).Fill(a)
			filler(seed + 100).Fill(other)
			require.True(t, same(a, a.DeepCopyObject()), "%s", gvk)
			for i := range goType.NumField() {
				b := a.DeepCopyObject()
				reflect.ValueOf(b).Elem().Field(i).Set(reflect.ValueOf(other).Elem().Field(i))
				if !same(a, b) {
					equals[0]++
					continue
				}
				equals[1]++
				require.True(t, equality.Semantic.DeepEqual(a, b))
				docA, err := json.Marshal(a)
				require.NoError(t, err)
				docB, err := json.Marshal(b)
				require.NoError(t, err)
				require.Equal(t, string(docA), string(docB))
			}
		}
	}
	require.Greater(t, min(equals[0], equals[1]), 100, "the cases are of one sort only: %v", equals)
}

func same(a, b any) bool { return equal.Identical(reflect.ValueOf(a), reflect.ValueOf(b)) }

func TestIdentical(t *testing.T) {
	t.Parallel()
	type list struct{ Items []string }
	for _, c := range []struct {
		name string
		a, b any
		want bool
	}{
		{"an empty and no list", list{[]string{}}, list{nil}, false},
		{"an empty and no map", map[string]string{}, map[string]string(nil), false},
		{"an empty and no list of quantities", corev1.ResourceList{}, corev1.ResourceList(nil), false},
		{"empty and no bytes", []byte{}, []byte(nil), false},
		{"an empty and no map of something else", map[string][]byte{}, map[string][]byte(nil), false},
		{"maps of something else", map[string][]byte{"a": {1}}, map[string][]byte{"a": {1}}, true},
		{"quantities", resource.MustParse("1000m"), resource.MustParse("1"), true}, // both are written as 1
		{"units", resource.MustParse("1024"), resource.MustParse("1Ki"), false},
		{"lists of units", corev1.ResourceList{"a": resource.MustParse("1024")},
			corev1.ResourceList{"a": resource.MustParse("1Ki")}, false},
		{"lists of quantities", corev1.ResourceList{"a": resource.MustParse("1")},
			corev1.ResourceList{"a": resource.MustParse("1")}, true},
		{"names of quantities", corev1.ResourceList{"a": resource.MustParse("1")},
			corev1.ResourceList{"b": resource.MustParse("1")}, false},
	} {
		require.Equal(t, c.want, same(c.a, c.b), c.name)
		require.Equal(t, c.want, same(c.b, c.a), c.name)
	}
}

func TestSemantic(t *testing.T) {
	t.Parallel()
	zone := time.FixedZone("elsewhere", 3600)
	now := time.Unix(1_700_000_000, 0)
	one := int32(1)
	for _, c := range []struct {
		name string
		a, b any
		want bool
	}{
		{"nil", nil, nil, true},
		{"nil and something", nil, 1, false},
		{"types", int32(1), int64(1), false},
		{"typed nil pointers", (*corev1.Pod)(nil), (*corev1.Pod)(nil), true},
		{"a pointer and none", &one, (*int32)(nil), false},
		{"an empty and no list", []string{}, []string(nil), true},
		{"an empty and no map", map[string]string{}, map[string]string(nil), true},
		{"empty and no bytes", []byte{}, []byte(nil), true},
		{"a key with the zero value", map[string]string{"a": ""}, map[string]string{"b": ""}, false},
		{"quantities", resource.MustParse("1000m"), resource.MustParse("1"), true},
		{"time zones", metav1.NewTime(now), metav1.NewTime(now.In(zone)), true},
		{"times", metav1.NewTime(now), metav1.NewTime(now.Add(time.Second)), false},
		{"order", []string{"a", "b"}, []string{"b", "a"}, false},
		{"interfaces", map[string]any{"a": int64(1)}, map[string]any{"a": int64(1)}, true},
		{"other interfaces", map[string]any{"a": int64(1)}, map[string]any{"a": "1"}, false},
	} {
		require.Equal(t, c.want, equal.Semantic(c.a, c.b), c.name)
		require.Equal(t, c.want, equal.Semantic(c.b, c.a), c.name)
	}
}

func BenchmarkSemantic(b *testing.B) {
	x, y := pods()
	b.ReportAllocs()
	for b.Loop() {
		equal.Semantic(x, y)
	}
}

func BenchmarkIdentical(b *testing.B) {
	x, y := pods()
	b.ReportAllocs()
	for b.Loop() {
		equal.Identical(reflect.ValueOf(x).Elem(), reflect.ValueOf(y).Elem())
	}
}

func BenchmarkApimachinery(b *testing.B) {
	x, y := pods()
	b.ReportAllocs()
	for b.Loop() {
		equality.Semantic.DeepEqual(x, y)
	}
}

func pods() (a, b *corev1.Pod) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web",
		Labels: map[string]string{"app": "web", "tier": "front"}}}
	for range 2 {
		c := corev1.Container{Name: "web",
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("1")}}}
		for range 12 {
			c.Env = append(c.Env, corev1.EnvVar{Name: "SETTING", Value: "a value"})
		}
		pod.Spec.Containers = append(pod.Spec.Containers, c)
	}
	return pod, pod.DeepCopy()
}
