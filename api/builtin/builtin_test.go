package builtin_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/randfill"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/builtin"
	"github.com/coxswain-dev/coxswain/api/kindtest"
)

// filler generates random objects that could have been decoded from JSON.
func filler(seed int64) *randfill.Filler {
	return randfill.NewWithSeed(seed).NilChance(0.4).NumElements(1, 3).MaxDepth(20).Funcs(
		func(q *resource.Quantity, c randfill.Continue) {
			*q = *resource.NewMilliQuantity(c.Int63n(5000), resource.DecimalSI)
		},
		func(v *intstr.IntOrString, c randfill.Continue) {
			*v = intstr.FromInt32(c.Int31n(100))
			if c.Bool() {
				*v = intstr.FromString(fmt.Sprintf("%d%%", c.Int31n(120)))
			}
		},
		func(t *metav1.Time, c randfill.Continue) { *t = metav1.Unix(c.Int63n(1<<31), 0) },
		func(t *metav1.MicroTime, c randfill.Continue) { t.Time = time.Unix(c.Int63n(1<<31), 0) },
		func(r *runtime.RawExtension, c randfill.Continue) { r.Raw = []byte(`{"a":1}`) },
		func(m *metav1.FieldsV1, c randfill.Continue) { *m = metav1.FieldsV1{} },
		kindtest.FillSchema,
		func(j *apiextensionsv1.JSON, c randfill.Continue) { j.Raw = []byte(`{"a":1}`) },
	)
}

// each runs a test for every kind, with an empty object and with random ones.
func each(t *testing.T, test func(t *testing.T, r *api.Resource, obj api.Object)) {
	t.Helper()
	for _, r := range builtin.Kinds() {
		t.Run(r.Group+"/"+r.Kind, func(t *testing.T) {
			t.Parallel()
			test(t, r, r.Stored().New()) // a registration's functions take the stored type
			for seed := range int64(20) {
				obj := r.Stored().New()
				filler(seed).Fill(obj)
				test(t, r, obj)
			}
		})
	}
}

func TestBuiltin_RegistrationsAreConsistent(t *testing.T) {
	t.Parallel()
	snapshot := api.NewRegistry(builtin.Kinds()...).Snapshot()
	require.Equal(t, len(builtin.Kinds()), len(snapshot.Resources))
	names := map[string]string{}
	for _, r := range snapshot.Resources {
		for _, name := range append([]string{r.Plural + "." + r.Group}, r.ShortNames...) {
			if r.Conversion != nil {
				break // a converted version has the same names as the stored one
			}
			require.Emptyf(t, names[name], "%s and %s share the name %s", names[name], r.Kind, name)
			names[name] = r.Kind
		}
		if r.FieldIndex != "" {
			require.Contains(t, r.Fields, r.FieldIndex, r.Kind)
		}
		for name := range r.FieldPaths {
			require.Contains(t, r.Fields, name, r.Kind)
		}
		for name := range r.FieldZero {
			require.Contains(t, r.Fields, name, r.Kind)
		}
		require.Equal(t, r.CreateOnly, len(r.Columns) == 0, r.Kind)
		require.Equal(t, r.CreateOnly, r.Cells == nil, r.Kind)
	}
}

func TestDefault_IsIdempotent(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, r *api.Resource, obj api.Object) {
		kindtest.ApplyDefaults(r, obj)
		once := obj.DeepCopyObject()
		kindtest.ApplyDefaults(r, obj)
		require.True(t, equality.Semantic.DeepEqual(once, obj.(runtime.Object)), "a second default changed the object")
	})
}

func TestCells_FillEveryColumn(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, r *api.Resource, obj api.Object) {
		if r.CreateOnly {
			return
		}
		for range 2 {
			cells := r.CellsAt(time.Now(), obj)
			require.Len(t, cells, len(r.Columns))
			for i, cell := range cells {
				switch cell.(type) {
				case string, int64, bool:
				default:
					t.Errorf("%s: column %s has a %T, which JSON or a table's reader would not expect", r.Kind,
						r.Columns[i].Name, cell)
				}
			}
			kindtest.ApplyDefaults(r, obj)
		}
	})
}

// Validation gets any object that a client sends. It may reject the object, but must not panic or change it.
func TestValidate_SurvivesAnyObject(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, r *api.Resource, obj api.Object) {
		kindtest.ApplyDefaults(r, obj)
		old := obj.DeepCopyObject().(api.Object)
		if r.Validate != nil {
			r.Validate(obj)
		}
		if r.ValidateCreate != nil {
			r.ValidateCreate(obj)
		}
		if r.ValidateUpdate != nil {
			refused := r.ValidateUpdate(obj, old)
			if r.Validate != nil || r.ValidateCreate == nil { // otherwise ValidateUpdate checks the whole object
				require.Empty(t, refused, "an update that changes nothing is refused")
			}
			r.ValidateUpdate(obj, r.Stored().New())
			r.ValidateUpdate(r.Stored().New(), obj)
		}
		if r.Warnings != nil {
			r.Warnings(obj, nil)
			r.Warnings(obj, old)
		}
		for _, sub := range r.AllSubresources() {
			if sub.Validate != nil {
				sub.Validate(obj, old)
			}
			if sub.Copy != nil {
				sub.Copy(obj, old)
			}
		}
		require.True(t, equality.Semantic.DeepEqual(old, obj), "validation changed the object")
	})
}

func TestStatus_CopyChangesOnlyTheStatus(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, r *api.Resource, src api.Object) {
		if r.Status == nil {
			return
		}
		dst := r.Stored().New()
		filler(99).Fill(dst)
		back := dst.DeepCopyObject().(api.Object)
		r.Status.Copy(dst, src)
		r.Status.Copy(dst, back)
		require.True(t, equality.Semantic.DeepEqual(back, dst),
			"copying a status there and back changed more than the status")
	})
}

func TestScale_GetReturnsTheReplicasOfSet(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, r *api.Resource, obj api.Object) {
		if r.Scale == nil {
			return
		}
		r.Scale.Set(obj, 7)
		spec, _, _ := r.Scale.Get(obj)
		require.EqualValues(t, 7, spec)
	})
}

func ExampleKinds() {
	registry := api.NewRegistry(builtin.Kinds()...)
	for _, r := range registry.Snapshot().Resources {
		if r.Kind == "Deployment" {
			fmt.Println(r.GVK(), r.Plural, r.ShortNames, r.Namespaced)
		}
	}
	// Output: apps/v1, Kind=Deployment deployments [deploy] true
}
