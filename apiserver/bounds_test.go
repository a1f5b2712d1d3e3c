package apiserver_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	cbor "k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
)

const accessReviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"

func TestYAML_RejectsGrowingAliases(t *testing.T) {
	t.Parallel()
	s := start(t)
	bomb := "a: &a " + strings.Repeat("x", 50_000) + "\nb: [" + strings.Repeat("*a,", 20_000) + "]\n"
	head := "apiVersion: authorization.k8s.io/v1\nkind: SelfSubjectAccessReview\nspec: {resourceAttributes: " +
		"{verb: get}}\n"
	s.do(http.MethodPost, accessReviews, head+bomb, "Content-Type", "application/yaml").
		refused(http.StatusBadRequest, metav1.StatusReasonBadRequest,
			"exceeds the limit of 3145728 bytes when its aliases are expanded")
	s.do(http.MethodPatch, configMaps+"/bomb?fieldManager=me",
		"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: bomb}\n"+bomb, "Content-Type",
		"application/apply-patch+yaml").
		refused(http.StatusBadRequest, metav1.StatusReasonBadRequest,
			"exceeds the limit of 3145728 bytes when its aliases are expanded")

	s.do(http.MethodPatch, configMaps+"/good?fieldManager=me", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: "+
		"good}\ndata: {a: &a '1', b: *a}\n", "Content-Type", "application/apply-patch+yaml").
		ok(http.StatusCreated)
}

// absurd are quantities that would take too long to format.
var absurd = []string{`"1e-999999999"`, `"1e999999999"`, `1e-999999999`, `" 1E+99999 "`, `"` +
	strings.Repeat("1", 1<<20) + `"`}

func TestQuantities_HugeExponentsAreRejectedInEveryFormat(t *testing.T) {
	t.Parallel()
	s := start(t)
	const body = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web"},"spec":{"containers":[{"name":"a","image":"i"},{"name":"b","image":"i","resources":{"limits":{"memory":%s}}}]}}`
	const at = "spec.containers[1].resources.limits[memory]: Invalid value: "
	for _, quantity := range absurd {
		doc := fmt.Sprintf(body, quantity)
		s.do(http.MethodPost, pods+"?dryRun=All", doc).refused(http.StatusBadRequest, metav1.StatusReasonBadRequest, at)
		if quantity[0] != '"' {
			continue // YAML reads it as zero
		}
		s.do(http.MethodPost, pods, doc, "Content-Type", "application/yaml").refused(http.StatusBadRequest,
			metav1.StatusReasonBadRequest, at)
		s.do(http.MethodPatch, pods+"/web?fieldManager=me", doc, "Content-Type", "application/apply-patch+yaml").
			refused(http.StatusBadRequest, metav1.StatusReasonBadRequest, at)
	}
	escaped := fmt.Sprintf(body, `"1e-\u0039\u0039\u0039\u0039\u0039\u0039\u0039\u0039\u0039"`)
	s.do(http.MethodPost, pods, escaped).refused(http.StatusBadRequest, metav1.StatusReasonBadRequest,
		"quantities must match the regular expression")
	s.do(http.MethodPatch, pods+"/web?fieldManager=me", escaped, "Content-Type", "application/apply-patch+yaml").
		refused(http.StatusBadRequest, metav1.StatusReasonBadRequest, at)

	pod := map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": "web"},
		"spec": map[string]any{
			"containers": []any{map[string]any{"resources": map[string]any{"limits": map[string]any{"memory": "1e-999999999"}}}}}}
	binary, err := cbor.Marshal(pod)
	require.NoError(t, err)
	s.do(http.MethodPost, pods, binary, "Content-Type", "application/cbor").refused(http.StatusBadRequest,
		metav1.StatusReasonBadRequest, "limits[memory]")

	typed := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a"}, {
			Name: "b", Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"memory": resource.MustParse(
				"1e-999")}},
		}}}}
	typed.Spec.Containers[1].Resources.Limits["memory"] = resource.MustParse("123456789123456789")
	raw, err := typed.Marshal()
	require.NoError(t, err)
	raw = []byte(strings.Replace(string(raw), "123456789123456789", "1e-999999999999999", 1)) // of the same length
	u := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "v1", Kind: "Pod"}, Raw: raw}
	wrapped, err := u.Marshal()
	require.NoError(t, err)
	s.do(http.MethodPost, pods, append([]byte("k8s\x00"), wrapped...), "Content-Type",
		"application/vnd.kubernetes.protobuf").
		refused(http.StatusBadRequest, metav1.StatusReasonBadRequest, "spec.containers[1].resources.limits[memory]")
}

func TestQuantities_HugeExponentsAreRejectedInPatches(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.create(nodes, m{"metadata": m{"name": "n1"}})
	for kind, patch := range map[string]string{
		mergePatch:     `{"status":{"capacity":{"memory":"1e-999999999"}}}`,
		strategicPatch: `{"status":{"capacity":{"memory":"1e\u002d999999999"}}}`,
		jsonPatch:      `[{"op":"add","path":"/status/capacity","value":{"memory":"1e-999999999"}}]`,
	} {
		s.do(http.MethodPatch, nodes+"/n1/status", patch, "Content-Type", kind).
			refused(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "status.capacity[memory]")
	}
}

// apimachinery formats multiples of 10^21 with a suffix as 1, 2, 3. Such a quantity must not be stored.
func TestQuantities_BeyondSuffixesAreRejectedOrKept(t *testing.T) {
	t.Parallel()
	s := start(t)
	const quotas = "/api/v1/namespaces/default/resourcequotas"
	const quota = `{"apiVersion":"v1","kind":"ResourceQuota","metadata":{"name":"%s"},"spec":{"hard":{"requests.memory":%s}}}`
	const at, why = "spec.hard[requests.memory]: Invalid value: ", "multiples of 10^21 must be written with an exponent"
	lost := []string{`"1000E"`, `"-7000E"`, `"+0001000.000E"`, `"1000000P"`, `"3000000000000000000k"`,
		`"1000000000000000000000"`, `1000000000000000000000`, `" 2000E "`}
	for i, text := range lost {
		doc := fmt.Sprintf(quota, fmt.Sprint("lost-", i), text)
		status := s.do(http.MethodPost, quotas, doc).refused(422, metav1.StatusReasonInvalid, at)
		require.Contains(t, status.Message, why)
		require.Equal(t, "spec.hard[requests.memory]", status.Details.Causes[0].Field)
		if text[0] != '"' {
			continue // YAML reads it as 1e+21
		}
		s.do(http.MethodPost, quotas, doc, "Content-Type", "application/yaml").refused(422, metav1.StatusReasonInvalid, at)
		s.patch(fmt.Sprint(quotas, "/lost-", i, "?fieldManager=me"), applyPatch, doc).
			refused(422, metav1.StatusReasonInvalid, at)
	}
	for text, want := range map[string]string{`"1200E"`: "1200E", `"1e21"`: "1e21", `"2E+21"`: "2E+21", `1e22`: "10e21",
		`"999E"`: "999E", `"1000000T"`: "1E", `"1024Ei"`: "9223372036854775807", `"7000e18"`: "7e21"} {
		doc := fmt.Sprintf(quota, "kept", text)
		require.Equal(t, want, s.do(http.MethodPost, quotas+"?dryRun=All", doc).ok(201).at("spec", "hard", "requests.memory"))
	}

	typed := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "binary"}, Spec: corev1.ResourceQuotaSpec{
		Hard: corev1.ResourceList{"requests.memory": resource.MustParse("12345")}}}
	raw, err := typed.Marshal()
	require.NoError(t, err)
	u := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "v1", Kind: "ResourceQuota"},
		Raw: []byte(strings.Replace(string(raw), "12345", "1000E", 1))}
	wrapped, err := u.Marshal()
	require.NoError(t, err)
	s.do(http.MethodPost, quotas, append([]byte("k8s\x00"), wrapped...), "Content-Type",
		"application/vnd.kubernetes.protobuf").refused(422, metav1.StatusReasonInvalid, at)
	binary, err := cbor.Marshal(m{"apiVersion": "v1", "kind": "ResourceQuota", "metadata": m{"name": "binary"},
		"spec": m{"hard": m{"requests.memory": "1000E"}}})
	require.NoError(t, err)
	s.do(http.MethodPost, quotas, binary, "Content-Type", "application/cbor").refused(422, metav1.StatusReasonInvalid, at)

	s.create(nodes, m{"metadata": m{"name": "n1"}})
	for kind, patch := range map[string]string{
		mergePatch:     `{"status":{"capacity":{"example.com/x":"5000E"}}}`,
		strategicPatch: `{"status":{"capacity":{"example.com/x":"5000\u0045"}}}`,
		jsonPatch:      `[{"op":"add","path":"/status/capacity","value":{"example.com/x":"5000E"}}]`,
	} {
		s.do(http.MethodPatch, nodes+"/n1/status", patch, "Content-Type", kind).
			refused(422, metav1.StatusReasonInvalid, "status.capacity[example.com/x]: Invalid value")
	}
	node := s.patch(nodes+"/n1/status", mergePatch, `{"status":{"capacity":{"example.com/x":"5e21"}}}`).ok(200)
	require.Equal(t, "5e21", node.at("status", "capacity", "example.com/x"))
	// Sums that the server computes may exceed the range of suffixes.
	sum := s.do(http.MethodPost, pods+"?dryRun=All", `{"metadata":{"name":"p"},"spec":{"resources":{"limits":{"memory":"4e21"}},`+
		`"containers":[{"name":"a","image":"i","resources":{"requests":{"memory":"600E"}}},`+
		`{"name":"b","image":"i","resources":{"requests":{"memory":"400E"}}}]}}`).ok(201)
	require.Equal(t, "1e21", sum.at("spec", "resources", "requests", "memory"))
}

func TestQuantities_AreCheckedByType(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.do(http.MethodPost, configMaps, `{"metadata":{"name":"text"},"data":{"k":"1e-999999999","l":"`+
		strings.Repeat("7", 1000)+`"}}`).ok(http.StatusCreated)
	s.do(http.MethodPatch, configMaps+"/text", `{"data":{"m":"1E999999999"}}`, "Content-Type",
		mergePatch).ok(http.StatusOK)
	pod := `{"metadata":{"name":"p","annotations":{"a":"1e-999999999"}},"spec":{"containers":[{"name":"a","image":"i","args":["1e-99999"],"resources":{"limits":{"memory":"1e999","cpu":"1e3"}}}]}}`
	s.do(http.MethodPost, pods, pod).ok(http.StatusCreated)
	s.do(http.MethodPatch, pods+"/p", `{"metadata":{"labels":{"a":"b"}}}`, "Content-Type", mergePatch).ok(http.StatusOK)
}

func TestErrors_AreAtMostAHundred(t *testing.T) {
	t.Parallel()
	s := start(t)
	body := `{"metadata":{"name":"many"},"spec":{"containers":[{}` + strings.Repeat(",{}", 10_000) + `]}}`
	a := s.do(http.MethodPost, pods, body)
	status := a.refused(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid,
		"spec.containers[0].name: Required value")
	assert.Len(t, status.Details.Causes, 100)
	assert.Less(t, len(a.body), 100_000)
}

func TestApply_LimitsTheLengthOfLists(t *testing.T) {
	t.Parallel()
	s := start(t)
	apply := func(n int) *answer {
		data := make(m, n)
		for i := range n {
			data[fmt.Sprintf("k%d", i)] = "v"
		}
		return s.patch(configMaps+"/wide?fieldManager=me", "application/apply-patch+yaml",
			m{"apiVersion": "v1", "kind": "ConfigMap", "metadata": m{"name": "wide"}, "data": data})
	}
	apply(10_001).refused(http.StatusBadRequest, metav1.StatusReasonBadRequest,
		"data: server-side apply takes at most 10000 entries, not 10001")
	s.gone(configMaps + "/wide")
	apply(1_000).ok(http.StatusCreated)
}
