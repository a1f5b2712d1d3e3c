package fieldmanager

import (
	"encoding/json"
	"fmt"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/builtin"
	"github.com/coxswain-dev/coxswain/apiserver/encoding"
	"github.com/coxswain-dev/coxswain/apiserver/objecttest"
)

func benchmarkWriter() Writer {
	return Writer{Manager: "bench", APIVersion: "v1", At: metav1.Now().Rfc3339Copy()}
}

func BenchmarkOwnership_Create(b *testing.B) {
	res, pod := objecttest.Pod(builtin.Kinds())
	w := benchmarkWriter()
	b.ReportAllocs()
	for b.Loop() {
		Create(res, pod, w)
	}
}

func BenchmarkOwnership_PatchOfALabel(b *testing.B) {
	res, pod := objecttest.Pod(builtin.Kinds())
	pod.ManagedFields = Create(res, pod, benchmarkWriter())
	kinds := api.NewRegistry(res).Snapshot()
	changed := pod.DeepCopy()
	changed.Labels["tier"] = "back"
	for _, manager := range []string{"bench", "other"} {
		b.Run("by="+manager, func(b *testing.B) {
			w := benchmarkWriter()
			w.Manager = manager
			b.ReportAllocs()
			for b.Loop() {
				_, err := Update(kinds, res, changed, pod, pod.ManagedFields, w)
				require.NoError(b, err)
			}
		})
	}
}

// BenchmarkOwnership_CreateByTheLibrary is what the fast path is compared with.
func BenchmarkOwnership_CreateByTheLibrary(b *testing.B) {
	res, pod := objecttest.Pod(builtin.Kinds())
	var all Appliers
	library, err := all.Of(api.NewRegistry(res), res, "")
	require.NoError(b, err)
	b.ReportAllocs()
	for b.Loop() {
		_, err := library.Update(Fresh(res), pod, "bench")
		require.NoError(b, err)
	}
}

// BenchmarkOwnership_Encoding measures what the entries cost in encoding and decoding the pod.
func BenchmarkOwnership_Encoding(b *testing.B) {
	res, pod := objecttest.Pod(builtin.Kinds())
	for _, entries := range [][]metav1.ManagedFieldsEntry{nil, Create(res, pod, benchmarkWriter())} {
		pod.ManagedFields = entries
		b.Run(fmt.Sprintf("entries=%d", len(entries)), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				doc, err := json.Marshal(pod)
				require.NoError(b, err)
				b.SetBytes(int64(len(doc)))
				require.NoError(b, encoding.Unmarshal(doc, reflect.New(reflect.TypeFor[corev1.Pod]()).Interface()))
			}
		})
	}
}
