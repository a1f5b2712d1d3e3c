package admissionreview

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	admissionv1beta1 "k8s.io/api/admission/v1beta1"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func question() *Question {
	return &Question{UID: "u", Kind: metav1.GroupVersionKind{Version: "v1", Kind: "Pod"},
		Resource:    metav1.GroupVersionResource{Version: "v1", Resource: "pods"},
		RequestKind: metav1.GroupVersionKind{Version: "v1", Kind: "Pod"},
		RequestResource: metav1.GroupVersionResource{Version: "v1",
			Resource: "pods"}, Name: "p", Namespace: "default", Operation: "UPDATE", DryRun: true,
		User:      authenticationv1.UserInfo{Username: "jane", Extra: map[string]authenticationv1.ExtraValue{"a": {"b"}}},
		Documents: Documents{Object: []byte(`{"kind":"Pod"}`), OldObject: []byte(`{"a":"b"}`)}}
}

func TestQuestion_MatchesKubernetesRequest(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"v1", "v1beta1"} {
		doc, err := question().Encode(version)
		require.NoError(t, err)
		require.Equal(t, `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/`+version+`","request":{"uid":"u",`+
			`"kind":{"group":"","version":"v1","kind":"Pod"},"resource":{"group":"","version":"v1","resource":"pods"},`+
			`"requestKind":{"group":"","version":"v1","kind":"Pod"},"requestResource":{"group":"","version":"v1",`+
			`"resource":"pods"},"name":"p","namespace":"default","operation":"UPDATE","userInfo":{"username":"jane",`+
			`"extra":{"a":["b"]}},"dryRun":true,"object":{"kind":"Pod"},"oldObject":{"a":"b"},"options":null}}`, string(doc))
	}
	// A webhook that uses Kubernetes' types must be able to read all of it.
	doc, err := question().Encode("v1")
	require.NoError(t, err)
	var v1 admissionv1.AdmissionReview
	decoder := json.NewDecoder(strings.NewReader(string(doc)))
	decoder.DisallowUnknownFields()
	require.NoError(t, decoder.Decode(&v1))
	require.Equal(t, "jane", v1.Request.UserInfo.Username)
	var beta admissionv1beta1.AdmissionReview
	require.NoError(t, json.Unmarshal(doc, &beta))
	require.True(t, *beta.Request.DryRun)
}

func TestVersion_IsTheFirstSupportedOne(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{"v1": "v1", "v7 v1beta1 v1": "v1beta1", "v1 v1beta1": "v1"} {
		got, err := Version(strings.Fields(text))
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	_, err := Version([]string{"v2"})
	require.EqualError(t, err, "webhook does not accept known AdmissionReview versions (v1, v1beta1)")
}

func TestPatch_IsLimited(t *testing.T) {
	t.Parallel()
	list := func(n int) string { return `{"a":[` + strings.TrimSuffix(strings.Repeat("0,", n), ",") + `]}` }
	inserts := func(n int) string {
		return "[" + strings.TrimSuffix(strings.Repeat(`{"op":"add","path":"/a/0","value":0},`, n), ",") + "]"
	}
	for _, c := range []struct{ name, doc, patch, words string }{
		{"little work", list(1000), inserts(1000), ""},
		{"much work", list(1_000_000), inserts(10_000), "which are too many"},
		{"a large result", `{"a":"` + strings.Repeat("x", 3<<20) + `"}`, `[{"op":"copy","from":"/a","path":"/b"},
			{"op":"copy","from":"/a","path":"/c"}]`, "the patch makes a document of"},
		{"a deep result", `{"a":1}`, `[{"op":"add","path":"/a","value":` + strings.Repeat("[", 490) +
			strings.Repeat("]", 490) + `},{"op":"copy","from":"/a","path":"/a` + strings.Repeat("/0", 488) + `/-"}]`,
			"the body is nested more than 500 levels deep"},
		{"a panic of the library", `{"a":[1]}`, `[{"op":"test","path":""}]`, "JSON patch"},
	} {
		patch, err := DecodePatch([]byte(c.patch))
		require.NoError(t, err, c.name)
		_, err = patch.Apply([]byte(c.doc))
		if c.words == "" {
			require.NoError(t, err, c.name)
			continue
		}
		require.ErrorContains(t, err, c.words, c.name)
	}
}

// FuzzDecode looks for responses that crash the server.
func FuzzDecode(f *testing.F) {
	for _, text := range []string{"", "{}", "[]", `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1",` +
		`"response":{"uid":"u","allowed":true,"patchType":"JSONPatch","patch":"W10="}}`, `{"kind":"Status"}`} {
		f.Add([]byte(text), 200, []byte(`[{"op":"test","path":""}]`))
		f.Add([]byte(text), 500, []byte(`[{"op":"copy","from":"","path":"/a"}]`))
	}
	f.Fuzz(func(t *testing.T, body []byte, code int, operations []byte) {
		for _, version := range []string{"v1", "v1beta1"} {
			review, err := Decode(version, Response{Code: code, ContentType: "text/plain", Body: body})
			if err != nil {
				continue
			}
			for _, mutating := range []bool{true, false} {
				if answer, err := review.Check("u", mutating); err == nil && !answer.Allowed {
					require.GreaterOrEqual(t, Denied("h", answer.Result).ErrStatus.Code, int32(400))
				}
			}
		}
		if patch, err := DecodePatch(operations); err == nil {
			_, _ = patch.Apply([]byte(`{"a":{"b":[1,2]}}`))
		}
	})
}

func BenchmarkQuestion(b *testing.B) {
	q := question()
	q.Documents.Object = []byte(`{"kind":"Pod","spec":"` + strings.Repeat("x", 2000) + `"}`)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := q.Encode("v1"); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAnswer(b *testing.B) {
	body := fmt.Appendf(nil, `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","response":{"uid":"u","allowed":`+
		`true,"patchType":"JSONPatch","patch":"W3sib3AiOiJhZGQiLCJwYXRoIjoiL2RhdGEiLCJ2YWx1ZSI6e319XQ=="}}`)
	b.ReportAllocs()
	for b.Loop() {
		review, err := Decode("v1", Response{Code: 200, Body: body})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := review.Check("u", true); err != nil {
			b.Fatal(err)
		}
	}
}
