package transcode_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/scheme"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/randfill"

	"github.com/coxswain-dev/coxswain/apiserver/transcode"
)

func Example() {
	pods, _ := transcode.Of(reflect.TypeFor[corev1.Pod]())
	doc := []byte(`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"web"},"spec":{"nodeName":"node-1"}}`)
	message, err := pods.Append(nil, doc)
	if err != nil {
		panic(err)
	}
	var pod corev1.Pod
	if err := pod.Unmarshal(message); err != nil {
		panic(err)
	}
	fmt.Println(pod.Name, "on", pod.Spec.NodeName)
	// Output: web on node-1
}

type message interface {
	Marshal() ([]byte, error)
	Unmarshal([]byte) error
}

// TestAppend_MatchesTheGoTypes fills every kind of Kubernetes at random. It compares the object decoded from the
// protobuf with the one decoded from the JSON.
func TestAppend_MatchesTheGoTypes(t *testing.T) {
	t.Parallel()
	kinds := 0
	for gvk, goType := range scheme.Scheme.AllKnownTypes() {
		if _, ok := reflect.New(goType).Interface().(message); !ok || gvk.Version == runtime.APIVersionInternal {
			continue
		}
		kinds++
		t.Run(gvk.String(), func(t *testing.T) {
			t.Parallel()
			m, ok := transcode.Of(goType)
			require.True(t, ok)
			for seed := range int64(6) {
				requireSame(t, m, goType, randomJSON(t, goType, seed))
			}
		})
	}
	require.Greater(t, kinds, 200)
}

func requireSame(t *testing.T, m *transcode.Message, goType reflect.Type, doc []byte) {
	t.Helper()
	buf, err := m.Append(nil, doc)
	require.NoError(t, err, "%s", doc)
	got := reflect.New(goType).Interface().(message)
	require.NoError(t, got.Unmarshal(buf), "%s", doc)

	decoded := reflect.New(goType).Interface().(message)
	require.NoError(t, kjson.UnmarshalCaseSensitivePreserveInts(doc, decoded))
	raw, err := decoded.Marshal()
	require.NoError(t, err)
	want := reflect.New(goType).Interface().(message)
	require.NoError(t, want.Unmarshal(raw))
	if !equality.Semantic.DeepEqual(want, got) {
		require.Equal(t, want, got, "%s", doc)
	}
}

func randomJSON(t *testing.T, goType reflect.Type, seed int64) []byte {
	t.Helper()
	obj := reflect.New(goType).Interface()
	filler := randfill.NewWithSeed(seed).NilChance(0.3).NumElements(0, 3).MaxDepth(12).Funcs(
		func(to *metav1.Time, c randfill.Continue) { *to = metav1.Unix(c.Int63n(1<<32), 0) },
		func(to *metav1.MicroTime, c randfill.Continue) {
			*to = metav1.NewMicroTime(time.UnixMicro(c.Int63n(1 << 50)))
		},
		func(to *metav1.TypeMeta, c randfill.Continue) {},
		func(to *resource.Quantity, c randfill.Continue) {
			*to = *resource.NewMilliQuantity(c.Int63n(1<<40), resource.DecimalSI)
		},
		func(to *intstr.IntOrString, c randfill.Continue) {
			if *to = intstr.FromInt32(c.Int31()); c.Bool() {
				*to = intstr.FromString(c.String(0))
			}
		},
		func(to *metav1.FieldsV1, c randfill.Continue) { to.Raw = []byte(`{"f:metadata":{"f:name":{}}}`) },
		func(to *runtime.RawExtension, c randfill.Continue) { to.Raw = []byte(`{"a":[1,{"b":"\"}"}],"c":null}`) },
		func(to *string, c randfill.Continue) { *to = awkward[c.Intn(len(awkward))] },
	)
	filler.Fill(obj)
	doc, err := json.Marshal(obj)
	require.NoError(t, err)
	return doc
}

// awkward lists strings that are difficult to scan.
var awkward = []string{"", "plain", `"`, `\`, `\"`, `a\\"b`, "<&>", "é\u2028\n\t", "}],{", "x\x00y",
	strings.Repeat("long", 60), strings.Repeat(`"`, 130)}

func TestAppend_RejectsOtherTypes(t *testing.T) {
	t.Parallel()
	m, ok := transcode.Of(reflect.TypeFor[corev1.Pod]())
	require.True(t, ok)
	for _, doc := range []string{
		``, `[]`, `{`, `{"metadata"`, `{"metadata":`, `{"metadata":{"name":1}}`, `{"metadata":{"name":"a}`,
		`{"metadata":{"name":"\`,
		`{"spec":{"containers":[null]}}`, `{"spec":{"containers":{}}}`, `{"spec":{"priority":"1"}}`,
		`{"spec":{"priority":1.5}}`,
		`{"spec":{"hostNetwork":0}}`, `{"metadata":{"creationTimestamp":"yesterday"}}`, `{"metadata":{} "spec":{}}`,
		`{"metadata":{"name":"\u00"}}`, `{"metadata":{"labels":{"a":1}}}`, `{"other":[1`,
	} {
		_, err := m.Append(nil, []byte(doc))
		require.Error(t, err, doc)
	}
}

func TestAppend_AcceptsSpacesAndUnknownFields(t *testing.T) {
	t.Parallel()
	m, ok := transcode.Of(reflect.TypeFor[corev1.Pod]())
	require.True(t, ok)
	requireSame(t, m, reflect.TypeFor[corev1.Pod](), []byte(` {
		"metadata" : { "name" : "a" , "labels" : { } , "later" : [ { "x" : [ ] } , 1 , null ] } ,
		"spec" : { "priority" : 7 , "hostNetwork" : true , "containers" : [ { "name" : "c" } , { } ] , "nodeSelector" : null }
	} `))
}

// FuzzAppend searches for documents that make the scanner exceed its bounds.
func FuzzAppend(f *testing.F) {
	m, _ := transcode.Of(reflect.TypeFor[corev1.Pod]())
	f.Add([]byte(`{"metadata":{"name":"a\"b","labels":{"x":"y"}},"spec":{"priority":7,"containers":[{"name":"c"}]}}`))
	f.Fuzz(func(t *testing.T, doc []byte) {
		if buf, err := m.Append(nil, doc); err == nil && json.Valid(doc) {
			var pod corev1.Pod
			require.NoError(t, pod.Unmarshal(buf))
		}
	})
}

func BenchmarkAppend(b *testing.B) {
	doc := podJSON(b)
	m, _ := transcode.Of(reflect.TypeFor[corev1.Pod]())
	var buf []byte
	b.SetBytes(int64(len(doc)))
	b.ReportAllocs()
	for b.Loop() {
		buf, _ = m.Append(buf[:0], doc)
	}
}

// BenchmarkThroughTheGoType measures the cost that Append saves.
func BenchmarkThroughTheGoType(b *testing.B) {
	doc := podJSON(b)
	b.SetBytes(int64(len(doc)))
	b.ReportAllocs()
	for b.Loop() {
		var pod corev1.Pod
		if err := kjson.UnmarshalCaseSensitivePreserveInts(doc, &pod); err != nil {
			b.Fatal(err)
		}
		if _, err := pod.Marshal(); err != nil {
			b.Fatal(err)
		}
	}
}

func podJSON(b *testing.B) []byte {
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: "web", Namespace: "shop", UID: "7d2cbf1e-0d3c-4a53-8f1d-8c2c1f8b8c11",
		CreationTimestamp: metav1.Unix(1_700_000_000, 0), Labels: map[string]string{"app": "web", "tier": "front"},
	}}
	var env []corev1.EnvVar
	for i := range 12 {
		env = append(env, corev1.EnvVar{Name: fmt.Sprint("SETTING_", i),
			Value: fmt.Sprint("the value of setting ", rand.N(100))})
	}
	probe := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/ready",
		Port: intstr.FromString("http")}}}
	for _, name := range []string{"web", "proxy"} {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{
			Name: name, Image: "registry.example.com/shop/web:1.4.2", Env: env, ReadinessProbe: probe,
			LivenessProbe: probe,
			Ports:         []corev1.ContainerPort{{Name: "http", ContainerPort: 8080, Protocol: corev1.ProtocolTCP}},
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("100m"),
				"memory": resource.MustParse("128Mi")}},
		})
	}
	doc, err := json.Marshal(&pod)
	require.NoError(b, err)
	return doc
}
