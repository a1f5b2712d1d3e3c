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
				_, err := Update(b.Context(), kinds, res, changed, pod, pod.ManagedFields, w)
				require.NoError(b, err)
			}
		})
	}
}

// BenchmarkOwnership_CreateByTheLibrary measures Kubernetes' library, for comparison with the fast path.
func BenchmarkOwnership_CreateByTheLibrary(b *testing.B) {
	res, pod := objecttest.Pod(builtin.Kinds())
	var all Appliers
	library, err := all.Of(b.Context(), api.NewRegistry(res), res, "")
	require.NoError(b, err)
	b.ReportAllocs()
	for b.Loop() {
		_, err := library.Update(Fresh(res), pod, "bench")
		require.NoError(b, err)
	}
}

// customSpec is the spec of a small Deployment.
const customSpec = `{"type":"object","properties":{"replicas":{"type":"integer"},"containers":{"type":"array",
	"x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["name"],"items":{"type":"object","required":["name"],
	"properties":{"name":{"type":"string"},"image":{"type":"string"},"args":{"type":"array","items":{"type":"string"}},
	"env":{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["name"],"items":{"type":"object",
	"required":["name"],"properties":{"name":{"type":"string"},"value":{"type":"string"}}}},
	"resources":{"type":"object","properties":{"limits":{"type":"object","additionalProperties":{
	"x-kubernetes-int-or-string":true}}}}}}},"labels":{"type":"object","additionalProperties":{"type":"string"}}}}`

const customFields = `{"spec":{"replicas":3,"labels":{"app":"web","tier":"front"},"containers":[
	{"name":"web","image":"nginx:1.27","args":["-v","-q"],"env":[{"name":"A","value":"1"},{"name":"B","value":"2"}],
	"resources":{"limits":{"cpu":1,"memory":"1Gi"}}},{"name":"log","image":"busybox","env":[{"name":"A","value":"3"}]}]},
	"status":{"ready":true,"conditions":[{"type":"Ready","status":"True"}]}}`

func BenchmarkOwnership_CreateCustom(b *testing.B) {
	res := widgets(b, customSpec)[0]
	obj := widget(b, res, customFields)
	w := writerOf(res, "bench")
	b.ReportAllocs()
	for b.Loop() {
		Create(res, obj, w)
	}
}

func BenchmarkOwnership_PatchOfACustomLabel(b *testing.B) {
	res := widgets(b, customSpec)[0]
	obj := widget(b, res, customFields)
	obj.ManagedFields = Create(res, obj, writerOf(res, "bench"))
	kinds := api.NewRegistry(res).Snapshot()
	changed := obj.DeepCopyObject().(api.Object)
	changed.SetLabels(map[string]string{"tier": "back"})
	for _, manager := range []string{"bench", "other"} {
		b.Run("by="+manager, func(b *testing.B) {
			w := writerOf(res, manager)
			b.ReportAllocs()
			for b.Loop() {
				_, err := Update(b.Context(), kinds, res, changed, obj, obj.ManagedFields, w)
				require.NoError(b, err)
			}
		})
	}
}

// BenchmarkOwnership_CreateCustomByTheLibrary measures Kubernetes' library, as kube-apiserver uses it.
func BenchmarkOwnership_CreateCustomByTheLibrary(b *testing.B) {
	res := widgets(b, customSpec)[0]
	obj := widget(b, res, customFields)
	var all Appliers
	library, err := all.Of(b.Context(), api.NewRegistry(res), res, "")
	require.NoError(b, err)
	b.ReportAllocs()
	for b.Loop() {
		_, err := library.Update(Fresh(res), obj, "bench")
		require.NoError(b, err)
	}
}

// BenchmarkOwnership_Encoding measures the cost of the entries when the pod is encoded and decoded.
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
