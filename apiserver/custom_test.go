package apiserver_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	valves    = "/apis/example.org/v2/namespaces/default/valves"
	oldValves = "/apis/example.org/v1/namespaces/default/valves"
)

// startValves starts a server with a custom kind in two versions, and one object of it.
func startValves(t *testing.T) *server {
	t.Helper()
	s := start(t)
	schema := m{"openAPIV3Schema": m{"type": "object", "properties": m{
		"spec": m{"type": "object", "required": []string{"size"},
			"properties": m{
				"size":     m{"type": "integer", "minimum": 1},
				"color":    m{"type": "string", "default": "red", "enum": []string{"red", "blue"}},
				"replicas": m{"type": "integer"},
			},
			"x-kubernetes-validations": []m{
				{"rule": "!has(self.replicas) || self.replicas <= 10", "message": "at most ten"},
				{"rule": "self.size >= oldSelf.size", "message": "must not shrink", "reason": "FieldValueForbidden"},
			}},
		"status": m{"type": "object", "properties": m{"replicas": m{"type": "integer"}}},
	}}}
	version := func(name string, stored bool) m {
		return m{"name": name, "served": true, "storage": stored, "schema": schema,
			"subresources": m{"status": m{}, "scale": m{"specReplicasPath": ".spec.replicas",
				"statusReplicasPath": ".status.replicas"}},
			"selectableFields":         []m{{"jsonPath": ".spec.color"}},
			"additionalPrinterColumns": []m{{"name": "Size", "type": "integer", "jsonPath": ".spec.size"}}}
	}
	v1 := version("v1", false)
	v1["deprecated"] = true
	s.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", m{"metadata": m{"name": "valves.example.org"},
		"spec": m{"group": "example.org", "scope": "Namespaced", "names": m{"plural": "valves", "kind": "Valve"},
			"versions": []m{v1, version("v2", true)}}})
	require.Eventually(t, func() bool { return s.get(valves).code == http.StatusOK }, patience, tick)
	s.create(valves, valve("main", m{"size": 5}))
	return s
}

func valve(name string, spec m) m {
	return m{"apiVersion": "example.org/v2", "kind": "Valve", "metadata": m{"name": name}, "spec": spec}
}

func TestCustom_WritesAreCheckedByTheSchema(t *testing.T) {
	t.Parallel()
	s := startValves(t)
	before := s.get(valves + "/main").ok(http.StatusOK)
	require.Equal(t, "red", before.at("spec", "color"))
	for name, c := range map[string]struct {
		answer *answer
		words  string
	}{
		"a create": {s.do(http.MethodPost, valves, valve("other", m{"size": 0, "color": "green"})),
			`[spec.color: Unsupported value: "green": supported values: "red", "blue", spec.size: Invalid value: 0: ` +
				`spec.size in body should be greater than or equal to 1, <nil>: Invalid value: null: some validation rules ` +
				`were not checked because the object was invalid; correct the existing errors to complete validation]`},
		"what is missing": {s.do(http.MethodPost, valves, valve("other", m{})), "spec.size: Required value"},
		"a rule":          {s.patch(valves+"/main", mergePatch, `{"spec":{"replicas":11}}`), "spec: Invalid value: at most ten"},
		"a transition":    {s.patch(valves+"/main", mergePatch, `{"spec":{"size":4}}`), "spec: Forbidden: must not shrink"},
		"an apply": {s.do(http.MethodPatch, valves+"/main?fieldManager=me&force=true", valve("main", m{"size": 4}),
			"Content-Type", applyPatch), "spec: Forbidden: must not shrink"},
		"a scale": {s.patch(valves+"/main/scale", mergePatch, `{"spec":{"replicas":11}}`),
			"spec: Invalid value: at most ten"},
		"an applied scale": {s.do(http.MethodPatch, valves+"/main/scale?fieldManager=me", m{"apiVersion": "autoscaling/v1",
			"kind": "Scale", "spec": m{"replicas": 11}}, "Content-Type", applyPatch), "spec: Invalid value: at most ten"},
		"a status": {s.patch(valves+"/main/status", mergePatch, `{"status":{"replicas":"two"}}`),
			`status.replicas: Invalid value: "string": replicas in body must be of type integer: "string"`},
		"in the older version": {s.patch(oldValves+"/main", mergePatch, `{"spec":{"replicas":11}}`),
			"spec: Invalid value: at most ten"},
	} {
		c.answer.t = t
		status := c.answer.refused(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "")
		require.Contains(t, status.Message, c.words, name)
	}
	require.Equal(t, string(before.body), string(s.get(valves+"/main").body), "the object was not stored")
}

func TestCustom_SubresourcesWriteTheirPart(t *testing.T) {
	t.Parallel()
	s := startValves(t)
	generation := func(a *answer) any { return a.ok(http.StatusOK).at("metadata", "generation") }
	all := `{"metadata":{"labels":{"a":"b"}},"spec":{"size":6},"status":{"replicas":2}}`
	status := s.patch(valves+"/main/status", mergePatch, all)
	require.EqualValues(t, 1, generation(status))
	require.EqualValues(t, 5, status.at("spec", "size"))
	require.EqualValues(t, 2, status.at("status", "replicas"))
	require.Nil(t, status.at("metadata", "labels"))
	main := s.patch(valves+"/main", mergePatch, `{"spec":{"size":6},"status":{"replicas":3}}`)
	require.EqualValues(t, 2, generation(main))
	require.EqualValues(t, 2, main.at("status", "replicas"))
	require.EqualValues(t, 2, generation(s.patch(valves+"/main", mergePatch, `{"metadata":{"labels":{"a":"b"}}}`)))
	scale := s.patch(valves+"/main/scale", mergePatch, `{"spec":{"replicas":7}}`).ok(http.StatusOK)
	require.EqualValues(t, 7, scale.at("spec", "replicas"))
	require.EqualValues(t, 2, scale.at("status", "replicas"))
	require.EqualValues(t, 3, generation(s.get(valves+"/main")))
}

func TestCustom_UnknownFieldsArePruned(t *testing.T) {
	t.Parallel()
	s := startValves(t)
	body := `{"apiVersion":"example.org/v2","kind":"Valve","metadata":{"name":"x"},"spec":{"size":1,"size":2,"extra":1}}`
	s.do(http.MethodPost, valves+"?fieldValidation=Strict", body).refused(http.StatusBadRequest,
		metav1.StatusReasonBadRequest,
		`strict decoding error: duplicate field "spec.size", unknown field "spec.extra"`)
	warned := s.do(http.MethodPost, valves+"?fieldValidation=Warn&dryRun=All", body).ok(http.StatusCreated)
	require.Equal(t, []string{`299 - "duplicate field \"spec.size\""`, `299 - "unknown field \"spec.extra\""`},
		warned.header.Values("Warning"))
	made := s.do(http.MethodPost, valves+"?fieldValidation=Ignore", body).ok(http.StatusCreated)
	require.Empty(t, made.header.Values("Warning"))
	require.Equal(t, m{"size": int64(2), "color": "red"}, made.at("spec"))
}

func TestCustom_IsSelectedNegotiatedAndDeprecated(t *testing.T) {
	t.Parallel()
	s := startValves(t)
	s.create(valves, valve("blue", m{"size": 1, "color": "blue"}))
	require.Equal(t, []string{"blue"}, s.get(valves+"?fieldSelector=spec.color%3Dblue").names())
	s.get(valves+"?fieldSelector=spec.size%3D1").refused(http.StatusBadRequest, metav1.StatusReasonBadRequest,
		"field label not supported: spec.size")
	require.Equal(t, []string{`299 - "example.org/v1 Valve is deprecated; use example.org/v2 Valve"`},
		s.get(oldValves).header.Values("Warning"))
	require.Equal(t, "example.org/v1", s.get(oldValves+"/main").at("apiVersion"))
	s.get(valves, "Accept", protobuf).ok(http.StatusNotAcceptable)
	s.do(http.MethodPost, valves, "x", "Content-Type", protobuf).ok(http.StatusUnsupportedMediaType)
	require.Equal(t, "application/json", s.get(valves, "Accept", protobuf+",application/json").header.Get("Content-Type"))
	table := s.get(valves, "Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").ok(http.StatusOK).object()
	require.Equal(t, "Size", table.Object["columnDefinitions"].([]any)[1].(m)["name"])
	require.EqualValues(t, 1, table.Object["rows"].([]any)[0].(m)["cells"].([]any)[1])
}

func TestCustom_WatchesShowTheRequestedVersion(t *testing.T) {
	t.Parallel()
	s := startValves(t)
	const list = "?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
	for path, version := range map[string]string{valves: "example.org/v2", oldValves: "example.org/v1"} {
		w := s.watch(path + list)
		first, ok := w.next()
		require.True(t, ok)
		require.Equal(t, "ADDED", first.Type)
		require.Equal(t, version, first.Object.GetAPIVersion())
		mark, ok := w.next()
		require.True(t, ok)
		require.Equal(t, "BOOKMARK", mark.Type)
		require.Equal(t, version, mark.Object.GetAPIVersion())
		require.Equal(t, "Valve", mark.Object.GetKind())
	}
}

// Finalizers of controllers often have no slash (finalizers.fluxcd.io): custom resources accept them with a warning.
func TestCustom_FinalizersNeedNoPath(t *testing.T) {
	t.Parallel()
	s := startValves(t)
	const (
		flux   = "finalizers.fluxcd.io"
		dotted = `299 - "metadata.finalizers: \"%s\": prefer a domain-qualified finalizer name including a path (/) to ` +
			`avoid accidental conflicts with other finalizer writers"`
		plain = `299 - "metadata.finalizers: \"mine\": prefer a domain-qualified finalizer name to avoid accidental ` +
			`conflicts with other finalizer writers"`
	)
	about := func(name string) []string { return []string{fmt.Sprintf(dotted, name)} }
	finalized := valve("held", m{"size": 1})
	finalized["metadata"] = m{"name": "held", "finalizers": []string{flux, "example.com/a", "kubernetes"}}
	made := s.create(valves, finalized)
	require.Equal(t, about(flux), made.header["Warning"])

	stored := made.object().Object
	stored["metadata"].(m)["labels"] = m{"a": "b"}
	put := s.put(valves+"/held", stored).ok(http.StatusOK)
	require.Empty(t, put.header["Warning"], "it had the finalizer before")
	status := s.patch(valves+"/held/status", mergePatch, `{"metadata":{"finalizers":["b.c"]},"status":{"replicas":1}}`)
	require.Empty(t, status.ok(http.StatusOK).header["Warning"])
	require.Equal(t, []any{flux, "example.com/a", "kubernetes"}, status.at("metadata", "finalizers"))

	patched := s.patch(valves+"/held", mergePatch, `{"metadata":{"finalizers":["mine","finalizers.fluxcd.io"]}}`)
	require.Equal(t, []string{plain}, patched.ok(http.StatusOK).header["Warning"])
	applied := s.do(http.MethodPatch, valves+"/held?fieldManager=argo", m{"apiVersion": "example.org/v2", "kind": "Valve",
		"metadata": m{"finalizers": []string{"resources-finalizer.argocd.argoproj.io"}}}, "Content-Type", applyPatch)
	require.Equal(t, about("resources-finalizer.argocd.argoproj.io"), applied.ok(http.StatusOK).header["Warning"])
	older := s.patch(oldValves+"/held", mergePatch, `{"metadata":{"finalizers":["x.y"]}}`).ok(http.StatusOK)
	require.Contains(t, older.header["Warning"], about("x.y")[0])

	for _, wrong := range []string{"a b", "a/b/c", "-x", "example.com/"} {
		s.patch(valves+"/held", mergePatch, m{"metadata": m{"finalizers": []string{wrong}}}).
			refused(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "metadata.finalizers: Invalid value")
	}
	// A definition's own metadata has the same rule, without the warning.
	crd := s.patch("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/valves.example.org", mergePatch,
		m{"metadata": m{"finalizers": []string{flux}}}).ok(http.StatusOK)
	require.Empty(t, crd.header["Warning"])
	s.patch("/api/v1/namespaces/default", mergePatch, m{"metadata": m{"finalizers": []string{flux}}}).
		refused(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid,
			"name is neither a standard finalizer name nor is it fully qualified")
}
