package encoding

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	utilruntime "k8s.io/apimachinery/pkg/runtime"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/builtin"
)

// wrapped encodes a message in Kubernetes' envelope.
func wrapped(tb testing.TB, version, kind string, m protoMarshaler) []byte {
	tb.Helper()
	raw, err := m.Marshal()
	require.NoError(tb, err)
	u := utilruntime.Unknown{TypeMeta: utilruntime.TypeMeta{APIVersion: version, Kind: kind}, Raw: raw}
	body, err := u.Marshal()
	require.NoError(tb, err)
	return append(append([]byte{}, protoMagic...), body...)
}

// allocated returns the number of bytes that f allocates, including garbage. It is an upper bound of the memory
// that f holds.
func allocated(f func()) int64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return int64(after.TotalAlloc - before.TotalAlloc)
}

// This test is not parallel, because it measures the allocations of the process.
func TestWeight_IsAtLeastTheMemoryOfDecoding(t *testing.T) {
	kinds := api.NewRegistry(builtin.Kinds()...).Snapshot()
	const n = 20_000
	pod := func(container string) string {
		return `{"kind":"Pod","apiVersion":"v1","spec":{"containers":[` + strings.Repeat(container+",", n) + container + `]}}`
	}
	for name, c := range map[string]struct{ media, body string }{
		"objects":      {MediaJSON, pod("{}")},
		"nulls":        {MediaJSON, pod("null")},
		"containers":   {MediaJSON, pod(`{"name":"a","image":"b","env":[{"name":"c"}]}`)},
		"strings":      {MediaJSON, `{"metadata":{"finalizers":["` + strings.Repeat(`a","`, 10*n) + `"]}}`},
		"members":      {MediaJSON, `{"metadata":{"annotations":{` + members(10*n) + `"z":""}}}`},
		"one string":   {MediaJSON, `{"metadata":{"annotations":{"a":"` + strings.Repeat("x", 1<<20) + `"}}}`},
		"YAML lines":   {MediaYAML, "spec:\n  containers:\n" + strings.Repeat("  - name: a\n", n)},
		"YAML dashes":  {MediaYAML, "spec:\n  containers:\n" + strings.Repeat("  -\n", n)},
		"YAML in flow": {MediaYAML, "spec: {containers: [" + strings.Repeat("{},", n) + "]}"},
		"YAML text":    {MediaYAML, "metadata:\n  annotations:\n    a: |\n" + strings.Repeat("      some text of a line\n", n)},
		"CBOR arrays":  {MediaCBOR, "\xa1\x44spec\x9a\x00\x03\x0d\x40" + strings.Repeat("\xa0", 10*n)},
	} {
		weight := Weight(c.media, []byte(c.body))
		used := allocated(func() {
			doc, _, err := JSONOf(kinds, c.media, []byte(c.body))
			if err == nil {
				_, _ = UnmarshalStrict(doc, &corev1.Pod{})
			}
		})
		t.Logf("%-12s %8d bytes: weight %4.1f, allocated %4.1f MiB", name, len(c.body), float64(weight)/(1<<20),
			float64(used)/(1<<20))
		require.LessOrEqual(t, used, 2*weight, "%s: garbage included", name)
	}
}

func members(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `"%d":"",`, i)
	}
	return b.String()
}

func TestProtobufWeight_CountsMessagesAndLimitsDepth(t *testing.T) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: make([]corev1.Container, 10_000)}}
	body := wrapped(t, "v1", "Pod", pod)
	weight, err := ProtobufWeight(body, &corev1.Pod{})
	require.NoError(t, err)
	used := allocated(func() {
		require.NoError(t, DecodeProtobuf(corev1.SchemeGroupVersion.WithKind("Pod"), body, &corev1.Pod{}))
	})
	t.Logf("%d bytes: weight %d, allocated %d", len(body), weight, used)
	require.LessOrEqual(t, used, 2*weight)

	deep := apiextensionsv1.JSONSchemaProps{Type: "object"}
	for range 2000 {
		inner := deep
		deep = apiextensionsv1.JSONSchemaProps{Not: &inner}
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	crd.Spec.Versions = []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1",
		Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &deep}}}
	_, err = ProtobufWeight(wrapped(t, "apiextensions.k8s.io/v1", "CustomResourceDefinition", crd),
		&apiextensionsv1.CustomResourceDefinition{})
	require.ErrorContains(t, err, "nested more than 500 levels deep")
}
