package apiserver_test

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/api/builtin"
	"github.com/coxswain-dev/coxswain/apiserver"
)

// The marks in stored objects and in bodies that are sent.
const storedMark, sentMark = "veiled-in-the-store", "veiled-in-the-body"

// marks returns all spellings of the marks.
func marks() (all []string) {
	for _, mark := range []string{storedMark, sentMark} {
		all = append(all, mark, base64.StdEncoding.EncodeToString([]byte(mark)))
	}
	return all
}

// leaks are requests whose rejection could quote the content of a Secret or a token.
var leaks = []struct {
	name, method, path, kind, body string
}{
	{"a create: no base64", http.MethodPost, secrets, "application/json", `{"metadata":{"name":"n"},"data":{"k":"SENT!"}}`},
	{"a create: a number", http.MethodPost, secrets, "application/json", `{"metadata":{"name":"n"},"data":{"k":1,"l":"SENT"}}`},
	{"a create: a map", http.MethodPost, secrets, "application/json", `{"metadata":{"name":"n"},"stringData":{"k":{"a":"SENT"}}}`},
	{"a create: text for a map", http.MethodPost, secrets, "application/json", `{"metadata":{"name":"n"},"data":"SENT"}`},
	{"a create: no JSON", http.MethodPost, secrets, "application/json", `{"metadata":{"name":"n"},"stringData":{"k":SENT}}`},
	{"a create: cut JSON", http.MethodPost, secrets, "application/json", `{"metadata":{"name":"n"},"stringData":{"k":"SENT"`},
	{"a create: no YAML", http.MethodPost, secrets, "application/yaml", "metadata: {name: n}\nstringData: {k: SENT: a}\n"},
	{"a create: wrong YAML", http.MethodPost, secrets, "application/yaml", "metadata: {name: n}\nstringData: {k: [SENT]}\n"},
	{"a create: no protobuf", http.MethodPost, secrets, "application/vnd.kubernetes.protobuf", "k8s\x00SENT"},
	{"a create: no CBOR", http.MethodPost, secrets, "application/cbor", "\xd9\xd9\xf7\xa1dSENT"},
	{"a create: no such name", http.MethodPost, secrets, "application/json", `{"metadata":{"name":"A"},"stringData":{"k":"SENT"}}`},
	{"a create: another namespace", http.MethodPost, secrets, "application/json",
		`{"metadata":{"name":"n","namespace":"other"},"stringData":{"k":"SENT"}}`},
	{"a create: no Docker configuration", http.MethodPost, secrets, "application/json",
		`{"metadata":{"name":"n"},"type":"kubernetes.io/dockerconfigjson","stringData":{".dockerconfigjson":"SENT"}}`},
	{"a create: an old one", http.MethodPost, secrets, "application/json",
		`{"metadata":{"name":"n"},"type":"kubernetes.io/dockercfg","stringData":{".dockercfg":"{\"a\":\"SENT\" x"}}`},
	{"a create: no certificate", http.MethodPost, secrets, "application/json",
		`{"metadata":{"name":"n"},"type":"kubernetes.io/tls","stringData":{"tls.crt":"SENT"}}`},
	{"a create: no SSH key", http.MethodPost, secrets, "application/json",
		`{"metadata":{"name":"n"},"type":"kubernetes.io/ssh-auth","stringData":{"k":"SENT"}}`},
	{"a create: wrong key", http.MethodPost, secrets, "application/json", `{"metadata":{"name":"n"},"stringData":{"a b":"SENT"}}`},
	{"a create: unknown fields", http.MethodPost, secrets + "?fieldValidation=Strict", "application/json",
		`{"metadata":{"name":"n"},"stringdata":{"k":"SENT"},"stringData":{"k":"SENT","k":"SENT"}}`},
	{"a create: exists", http.MethodPost, secrets, "application/json", `{"metadata":{"name":"s"},"stringData":{"k":"SENT"}}`},
	{"an update: immutable", http.MethodPut, secrets + "/s", "application/json",
		`{"metadata":{"name":"s"},"immutable":true,"stringData":{"k":"SENT"}}`},
	{"an update: another type", http.MethodPut, secrets + "/s", "application/json",
		`{"metadata":{"name":"s"},"type":"SENT","immutable":true,"stringData":{"k":"SENT"}}`},
	{"an update: outdated", http.MethodPut, secrets + "/s", "application/json",
		`{"metadata":{"name":"s","resourceVersion":"1"},"stringData":{"k":"SENT"}}`},
	{"a JSON patch: a number", http.MethodPatch, secrets + "/s", jsonPatch, `[{"op":"add","path":"/data/n","value":1}]`},
	{"a JSON patch: text", http.MethodPatch, secrets + "/s", jsonPatch, `[{"op":"replace","path":"/data","value":"SENT"}]`},
	{"a JSON patch: a test", http.MethodPatch, secrets + "/s", jsonPatch, `[{"op":"test","path":"/data/k","value":"SENT"}]`},
	{"a JSON patch: no list", http.MethodPatch, secrets + "/s", jsonPatch, `{"op":"add","path":"/data/n","value":"SENT"}`},
	{"a JSON patch: another kind", http.MethodPatch, secrets + "/s", jsonPatch, `[{"op":"replace","path":"/kind","value":"Pod"}]`},
	{"a merge patch: a number", http.MethodPatch, secrets + "/s", mergePatch, `{"data":{"n":1,"m":"SENT"}}`},
	{"a merge patch: text", http.MethodPatch, secrets + "/s", mergePatch, `{"data":"SENT"}`},
	{"a merge patch: no base64", http.MethodPatch, secrets + "/s", mergePatch, `{"data":{"k":"SENT!"}}`},
	{"a merge patch: unknown fields", http.MethodPatch, secrets + "/s?fieldValidation=Strict", mergePatch, `{"dat":"SENT"}`},
	{"a merge patch: immutable", http.MethodPatch, secrets + "/s", mergePatch, `{"stringData":{"k":"SENT"}}`},
	{"a strategic patch: a number", http.MethodPatch, secrets + "/s", strategicPatch, `{"data":{"n":1,"m":"SENT"}}`},
	{"a strategic patch: text", http.MethodPatch, secrets + "/s", strategicPatch, `{"data":"SENT"}`},
	{"a strategic patch: directives", http.MethodPatch, secrets + "/s", strategicPatch, `{"data":{"$patch":"SENT"}}`},
	{"a strategic patch: order", http.MethodPatch, secrets + "/s", strategicPatch,
		`{"$setElementOrder/data":["SENT"],"data":{"k":"SENT"}}`},
	{"an apply: a number", http.MethodPatch, secrets + "/s?fieldManager=a", applyPatch,
		`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"s"},"data":{"n":1,"m":"SENT"}}`},
	{"an apply: a list", http.MethodPatch, secrets + "/s?fieldManager=a", applyPatch,
		`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"s"},"data":["SENT"]}`},
	{"an apply: a conflict", http.MethodPatch, secrets + "/s?fieldManager=a", applyPatch,
		`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"s"},"data":{"k":"SENT64"}}`},
	{"an apply: immutable", http.MethodPatch, secrets + "/s?fieldManager=a&force=true", applyPatch,
		`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"s"},"data":{"k":"SENT64"}}`},
	{"an apply: no YAML", http.MethodPatch, secrets + "/s?fieldManager=a", applyPatch, "data: {k: SENT: a}\n"},
	{"a review: a map", http.MethodPost, tokenReviews, "application/json", `{"spec":{"token":{"a":"SENT"}}}`},
	{"a review: audiences", http.MethodPost, tokenReviews, "application/json", `{"spec":{"token":"SENT","audiences":"SENT"}}`},
	{"a review: no JSON", http.MethodPost, tokenReviews, "application/json", `{"spec":{"token":SENT}}`},
	{"a review: nothing", http.MethodPost, tokenReviews, "application/json", `{"metadata":{"name":"A_"},"spec":{}}`},
	{"a token: no number", http.MethodPost, "/api/v1/namespaces/default/serviceaccounts/default/token", "application/json",
		`{"spec":{"expirationSeconds":1},"status":{"token":"SENT"}}`},
}

const tokenReviews = "/apis/authentication.k8s.io/v1/tokenreviews"

// Answers, warnings, the audit log at the level Metadata and the server's own log do not contain confidential values.
func TestErrors_DoNotQuoteCredentials(t *testing.T) {
	t.Parallel()
	auditor, log := openAudit(t, auditAll)
	a := assemble(t, builtin.Kinds(), apiserver.Options{Audit: auditor})
	a.create(secrets, m{"metadata": m{"name": "s"}, "immutable": true, "stringData": m{"k": storedMark}})
	a.create("/api/v1/namespaces/default/serviceaccounts", m{"metadata": m{"name": "default"}})
	encoded := base64.StdEncoding.EncodeToString([]byte(sentMark))
	for _, l := range leaks {
		body := strings.ReplaceAll(strings.ReplaceAll(l.body, "SENT64", encoded), "SENT", sentMark)
		res := a.do(l.method, l.path, body, "Content-Type", l.kind)
		assert.GreaterOrEqual(t, res.code, 400, "%s: %s", l.name, res.body)
		require.Less(t, res.code, 500, "%s: %s", l.name, res.body)
		for _, mark := range marks() {
			assert.NotContains(t, string(res.body), mark, l.name)
			assert.NotContains(t, fmt.Sprint(res.header), mark, l.name)
		}
	}
	content, err := os.ReadFile(log)
	require.NoError(t, err)
	for _, mark := range marks() {
		require.NotContains(t, string(content), mark)
		require.NotContains(t, a.log.String(), mark)
	}
}

// An error message may quote the object, which the level Metadata does not record.
func TestAudit_MetadataHasNoMessagesThatQuoteTheObject(t *testing.T) {
	t.Parallel()
	s := startAudited(t, "rules: [{level: Request, resources: [{resources: [services]}]}, {level: Metadata}]\n")
	bad := m{"metadata": m{"name": "a"}, "data": m{"k": m{"a": 1}}}
	e := s.complete(s.do(http.MethodPost, configMaps, bad))
	require.Equal(t, metav1.StatusReasonBadRequest, e.ResponseStatus.Reason)
	require.Empty(t, e.ResponseStatus.Message)
	e = s.complete(s.do(http.MethodPost, configMaps, m{"metadata": m{"name": "a"}, "data": m{"a veiled key": "b"}}))
	require.Equal(t, metav1.StatusReasonInvalid, e.ResponseStatus.Reason)
	require.Empty(t, e.ResponseStatus.Message)
	require.Len(t, e.ResponseStatus.Details.Causes, 1)
	require.Equal(t, metav1.StatusCause{Type: metav1.CauseTypeFieldValueInvalid,
		Field: "data[a veiled key]"}, e.ResponseStatus.Details.Causes[0])
	e = s.complete(s.get(configMaps + "/none"))
	require.Equal(t, `configmaps "none" not found`, e.ResponseStatus.Message)
	e = s.complete(s.get(secrets + "/none"))
	require.Equal(t, metav1.StatusReasonNotFound, e.ResponseStatus.Reason)
	require.Empty(t, e.ResponseStatus.Message, "admission might have quoted it")
	e = s.complete(s.do(http.MethodPost, "/api/v1/namespaces/default/services", m{"metadata": m{"name": "A"}}))
	require.Contains(t, e.ResponseStatus.Message, `Invalid value: "A"`, "the level Request has the whole body")
}
