package apiserver_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	cbor "k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"k8s.io/client-go/kubernetes/scheme"
)

// The answer to any input conforms to the contract: success, or a Status with a 4xx code. A 5xx is a fault of the
// server.

func (a *answer) civil() {
	a.t.Helper()
	if a.code < 300 {
		return
	}
	var status metav1.Status
	require.NoError(a.t, json.Unmarshal(a.body, &status), "%q", a.body)
	require.EqualValues(a.t, a.code, status.Code)
	require.NotEmpty(a.t, status.Reason)
	require.NotEmpty(a.t, status.Message)
	require.Less(a.t, a.code, 500, "%q", a.body)
}

// within returns the server for a fuzz target's current test.
func (s *server) within(t testing.TB) *server {
	return &server{t: t, config: s.config, http: s.http, bearer: s.bearer}
}

func FuzzCreateBody(f *testing.F) {
	s := start(f)
	document, err := json.Marshal(pod("a"))
	require.NoError(f, err)
	info, ok := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), protobuf)
	require.True(f, ok)
	binary, err := runtime.Encode(scheme.Codecs.EncoderForVersion(info.Serializer, corev1.SchemeGroupVersion),
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a"},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}})
	require.NoError(f, err)
	packed, err := cbor.Marshal(pod("a"))
	require.NoError(f, err)
	for _, seed := range [][]byte{document, []byte("{}"), []byte("null"),
		[]byte(`{"metadata":{"name":"a","labels":null},"spec":{"containers":[null]}}`),
		[]byte("metadata: {name: a}\nspec: {containers: [{name: c, image: i}]}"), []byte("a: &a [*a]"), binary,
		binary[:len(binary)-3], []byte("k8s\x00"), {0xff, 0xfe}, packed, packed[:len(packed)/2],
		[]byte("\xd9\xd9\xf7\xa0"), {0xbf, 0x9f}} {
		for _, media := range []string{"application/json", "application/yaml", protobuf, cborType} {
			f.Add(media, seed)
		}
	}
	f.Fuzz(func(t *testing.T, media string, body []byte) {
		switch media {
		case "application/json", "application/yaml", protobuf, cborType:
		default:
			return // other formats are not tested
		}
		s := s.within(t)
		s.do(http.MethodPost, pods+"?dryRun=All", body, "Content-Type", media).civil()
	})
}

func FuzzPatch(f *testing.F) {
	s := start(f)
	s.create(deployments, deployment("web", 1))
	kinds := []string{mergePatch, jsonPatch, strategicPatch}
	for i, seeds := range [][]string{
		{`{}`, `null`, `[]`, `{"metadata":null}`, `{"spec":null}`, `{"spec":{"replicas":-1}}`,
			`{"metadata":{"labels":{"a":null}}}`},
		{`[]`, `[null]`, `[{}]`, `[{"op":"add","path":"","value":null}]`, `[{"op":"remove","path":"/spec"}]`,
			`[{"op":"copy","from":"","path":"/spec/x"}]`, `[{"op":"test","path":"/spec/template/spec/containers/-1"}]`},
		{`{"spec":{"$patch":"replace"}}`, `{"spec":{"template":{"spec":{"containers":[{"$patch":"delete"}]}}}}`,
			`{"$setElementOrder/x":[]}`, `{"spec":{"$retainKeys":["a"]}}`,
			`{"spec":{"template":{"spec":{"containers":[null]}}}}`,
			`{"metadata":{"$deleteFromPrimitiveList/finalizers":["a"]}}`},
	} {
		for _, seed := range seeds {
			f.Add(uint8(i), []byte(seed))
		}
	}
	f.Fuzz(func(t *testing.T, kind uint8, body []byte) {
		s := s.within(t)
		s.patch(deployments+"/web?dryRun=All", kinds[int(kind)%len(kinds)], body).civil()
	})
}

func FuzzSelectors(f *testing.F) {
	s := start(f)
	s.create(pods, with(pod("a"), "labels", m{"x": "y"}))
	for _, seed := range [][2]string{{"x=y", ""}, {"x in (y,z),!w", "metadata.name=a"},
		{"x notin (", "spec.nodeName!="}, {"x>1", "a=b=c"}, {",,", `metadata.name=a\,b`},
		{"x==", "status.phase=Pending,metadata.namespace=default"}} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, labels, fields string) {
		s := s.within(t)
		s.get(pods + "?" + url.Values{"labelSelector": {labels}, "fieldSelector": {fields}}.Encode()).civil()
	})
}

func FuzzAccept(f *testing.F) {
	s := start(f)
	s.create(pods, pod("a"))
	for _, seed := range []string{"", "*/*", asTable, asPartial, protobuf,
		"application/json;q=0.9,application/cbor;q=1", asYAML + ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
		cborType + ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1beta1;stream=watch", "*;q=x,application/*;pretty=1",
		"application/json;q=0", "a/b,;;=,application/yaml", `application/json;as="Table";v=v1;g=meta.k8s.io`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, accept string) {
		for _, r := range accept {
			if r < ' ' || r > '~' {
				return // a client cannot send it
			}
		}
		s := s.within(t)
		s.get(pods, "Accept", accept).civilIn(accept)
		s.get(pods+"/a", "Accept", accept).civilIn(accept)
	})
}

// civilIn checks an answer in a form that the client has chosen: only the code can be checked.
func (a *answer) civilIn(accept string) {
	a.t.Helper()
	require.Contains(a.t, []int{http.StatusOK, http.StatusNotAcceptable}, a.code, "%q: %q", accept, a.body)
}

func FuzzContinue(f *testing.F) {
	s := start(f)
	for _, name := range []string{"a", "b", "c"} {
		s.create(configMaps, configMap(name))
	}
	f.Add(s.get(configMaps+"?limit=1").at("metadata", "continue").(string))
	f.Add("")
	f.Add("eyJydiI6MSwic3RhcnQiOiIvLi4ifQ")
	f.Add("eyJydiI6OTIyMzM3MjAzNjg1NDc3NTgwNywic3RhcnQiOiJhIn0")
	f.Fuzz(func(t *testing.T, token string) {
		s := s.within(t)
		a := s.get(configMaps + "?timeout=5s&limit=2&continue=" + url.QueryEscape(token))
		if a.code == http.StatusGatewayTimeout {
			return // the server waits for a revision in the future
		}
		a.civil()
	})
}

func FuzzApply(f *testing.F) {
	s := start(f)
	s.create(deployments, deployment("web", 1))
	for _, seed := range []string{
		"{}", "null", "[]", "a: &a [*a]", "apiVersion: apps/v1\nkind: Deployment\nspec: {replicas: 3}",
		`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"managedFields":[{}]}}`,
		`{"apiVersion":"apps/v1","kind":"Deployment","spec":{"template":{"spec":{"containers":[{"name":"a"},{"name":"a"},{}]}}}}`,
		`{"apiVersion":"apps/v1","kind":"Deployment","spec":{"replicas":"x","selector":null,"template":[]}}`,
		`{"apiVersion":"apps/v2","kind":"Deployment","metadata":{"name":"web"}}`,
		`{"apiVersion":"apps/v1","kind":"Deployment","kind":"Pod"}`,
	} {
		f.Add(false, true, []byte(seed))
		if packed, err := cborOf(seed); err == nil {
			f.Add(true, false, packed)
		}
	}
	f.Fuzz(func(t *testing.T, binary, force bool, body []byte) {
		s := s.within(t)
		media := "application/apply-patch+yaml"
		if binary {
			media = "application/apply-patch+cbor"
		}
		a := s.patch(fmt.Sprintf("%s/web?dryRun=All&fieldManager=fuzz&force=%t", deployments, force), media, body)
		if unknownField(a) {
			return
		}
		a.civil()
	})
}

// unknownField reports whether an answer is the library's error about a configuration that does not match the schema.
// kube-apiserver returns it with this code and without a reason.
func unknownField(a *answer) bool {
	return a.code == http.StatusInternalServerError && !strings.Contains(string(a.body), "InternalError")
}

func cborOf(document string) ([]byte, error) {
	var value any
	if err := json.Unmarshal([]byte(document), &value); err != nil {
		return nil, err
	}
	return cbor.Marshal(value)
}

func FuzzDeleteOptions(f *testing.F) {
	s := start(f)
	s.create(configMaps, configMap("a"))
	for i, seed := range []string{
		`{}`, `null`, `[]`, `{"kind":"Pod","apiVersion":"v1"}`,
		`{"kind":"DeleteOptions","apiVersion":"apps/v1","gracePeriodSeconds":-1}`,
		`{"preconditions":{"uid":"x","resourceVersion":"y"}}`,
		`{"propagationPolicy":"Foreground","orphanDependents":false}`, `{"gracePeriodSeconds":1e99}`,
		`{"dryRun":["None"]}`, "k8s\x00", "\xd9\xd9\xf7\xa1\x46dryRun\xf6",
	} {
		for media := range 4 {
			f.Add(uint8(media), i%2 == 0, []byte(seed))
		}
	}
	formats := []string{"application/json", "application/yaml", protobuf, cborType}
	f.Fuzz(func(t *testing.T, media uint8, one bool, body []byte) {
		s := s.within(t)
		path := configMaps + "?dryRun=All"
		if one {
			path = configMaps + "/a?dryRun=All"
		}
		s.do(http.MethodDelete, path, body, "Content-Type", formats[int(media)%len(formats)]).civil()
	})
}

func FuzzQuery(f *testing.F) {
	s := start(f)
	s.create(configMaps, configMap("a"))
	for _, seed := range []string{
		"limit=-1&continue=&timeoutSeconds=0", "resourceVersion=0&resourceVersionMatch=Exact",
		"dryRun=All&dryRun=x&fieldValidation=Warn", "fieldManager=%00&force=maybe",
		"gracePeriodSeconds=9223372036854775808&orphanDependents=2", "propagationPolicy=Orphan",
		"pretty=yes&includeObject=None", "timeout=-1s", "%zz=1;a=b", "watch=0&sendInitialEvents=false",
		"labelSelector=a%20in%20(b&fieldSelector=metadata.name%3D", "exclude=x&verbose", "resourceVersion=-1&limit=1e3",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, query string) {
		for _, r := range query {
			if r <= ' ' || r > '~' || r == '#' {
				return // a client cannot send it
			}
		}
		values, _ := url.ParseQuery(query)
		if _, watch := values["watch"]; watch || values.Has("resourceVersion") || values.Has("continue") {
			return // these requests wait, and have targets of their own
		}
		s := s.within(t)
		s.get(configMaps + "?" + query).civil()
		s.get(configMaps + "/a?" + query).civil()
		s.do(http.MethodPost, configMaps+"?dryRun=All&"+query, configMap("b")).civil()
		s.patch(configMaps+"/a?dryRun=All&"+query, mergePatch, `{"data":{"a":"b"}}`).civil()
		s.delete(configMaps+"/a?dryRun=All&"+query, nil).civil()
	})
}

func FuzzResourceVersion(f *testing.F) {
	s := start(f)
	s.create(configMaps, configMap("a"))
	revision := s.get(configMaps+"/a").at("metadata", "resourceVersion").(string)
	for _, seed := range [][2]string{
		{"", ""}, {"0", ""}, {"0", "Exact"}, {revision, "Exact"}, {revision, "NotOlderThan"}, {"1", "Exact"},
		{"-1", ""}, {"18446744073709551616", "NotOlderThan"},
		{"0x10", "Exact"}, {" 1", "exact"}, {"", "Exact"}, {"9223372036854775807", "Exact"},
	} {
		for how := range uint8(4) {
			f.Add(seed[0], seed[1], how)
		}
	}
	more := []string{"", "&watch=true", "&limit=1", "&watch=1&sendInitialEvents=true&allowWatchBookmarks=true"}
	f.Fuzz(func(t *testing.T, revision, match string, how uint8) {
		s := s.within(t)
		query := url.Values{"resourceVersion": {revision}, "resourceVersionMatch": {match},
			"timeout": {"20ms"}}.Encode() + more[int(how)%len(more)]
		if how%2 == 1 { // a watch does not end: read its beginning
			res := s.send(http.MethodGet, configMaps+"?"+query, nil)
			defer res.Body.Close()
			require.True(t, res.StatusCode < 500 || res.StatusCode == http.StatusGatewayTimeout, "%s: %d", query,
				res.StatusCode)
			return
		}
		// the server waits for a revision in the future
		if a := s.get(configMaps + "?" + query); a.code != http.StatusGatewayTimeout {
			a.civil()
		}
	})
}
