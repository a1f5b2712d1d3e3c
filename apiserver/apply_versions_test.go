package apiserver_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	gaugesDefined = definitionsPath + "/gauges.example.org"
	gauges        = "/apis/example.org/v1/namespaces/default/gauges"
	oldGauges     = "/apis/example.org/v1beta1/namespaces/default/gauges"
)

// startGauges starts a server with a custom kind in two versions; old and current are the properties of their specs.
func startGauges(t *testing.T, old, current m) *server {
	t.Helper()
	s := start(t)
	s.create(definitionsPath, m{"metadata": m{"name": "gauges.example.org"}, "spec": m{"group": "example.org",
		"scope": "Namespaced", "names": m{"plural": "gauges", "kind": "Gauge"},
		"versions": []m{gaugeVersion("v1beta1", false, old), gaugeVersion("v1", true, current)}}})
	require.Eventually(t, func() bool { return s.get(oldGauges).code == http.StatusOK }, patience, tick)
	return s
}

func gaugeVersion(name string, stored bool, spec m) m {
	return m{"name": name, "served": true, "storage": stored, "schema": m{"openAPIV3Schema": m{"type": "object",
		"properties": m{"spec": m{"type": "object", "properties": spec}}}},
		"subresources": m{"scale": m{"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}}}
}

// redefine patches the definition of the gauges, and waits until the old version is not served.
func (s *server) redefine(patch string) {
	s.t.Helper()
	s.patch(gaugesDefined, jsonPatch, patch).ok(http.StatusOK)
	require.Eventually(s.t, func() bool { return s.get(oldGauges).code == http.StatusNotFound }, patience, tick)
}

// applyGauge applies a gauge with a spec.
func (s *server) applyGauge(path, manager, spec string) *answer {
	s.t.Helper()
	version := "v1"
	if path == oldGauges {
		version = "v1beta1"
	}
	return s.patch(path+"/g?fieldManager="+manager, applyPatch, fmt.Sprintf(
		"{apiVersion: example.org/%s, kind: Gauge, metadata: {name: g}, spec: %s}", version, spec))
}

// managers returns the manager, operation, version and fields of each entry of managedFields.
func managers(a *answer) (all []string) {
	a.t.Helper()
	for _, e := range entriesOf(a) {
		all = append(all, fmt.Sprint(e.Manager, " ", e.Operation, " ", e.APIVersion, " ", e.FieldsV1.GetRawString()))
	}
	return all
}

func entriesOf(a *answer) []metav1.ManagedFieldsEntry {
	a.t.Helper()
	var obj metav1.PartialObjectMetadata
	require.NoError(a.t, json.Unmarshal(a.body, &obj))
	return obj.ManagedFields
}

var (
	text       = m{"type": "string"}
	number     = m{"type": "integer"}
	gaugeProps = m{"mode": text, "size": number, "replicas": number}
)

func TestApply_ManagersOfAVersionThatIsNotServedKeepTheirFields(t *testing.T) {
	t.Parallel()
	s := startGauges(t, gaugeProps, gaugeProps)
	s.applyGauge(oldGauges, "team", "{mode: fast, size: 1}").ok(http.StatusCreated)
	s.redefine(`[{"op":"replace","path":"/spec/versions/0/served","value":false}]`)

	refused := s.applyGauge(gauges, "other", "{mode: slow}").refused(http.StatusConflict, metav1.StatusReasonConflict,
		`conflict with "team": .spec.mode`)
	require.Len(t, refused.Details.Causes, 1)
	patched := s.patch(gauges+"/g?fieldManager=third", mergePatch, `{"spec":{"size":2}}`).ok(http.StatusOK)
	require.Equal(t, []string{`team Apply example.org/v1beta1 {"f:spec":{"f:mode":{}}}`,
		`third Update example.org/v1 {"f:spec":{"f:size":{}}}`}, managers(patched))
	scaled := s.patch(gauges+"/g?fieldManager=third", mergePatch, `{"spec":{"replicas":1}}`).ok(http.StatusOK)
	require.Len(t, managers(scaled), 2)
	s.patch(gauges+"/g/scale?fieldManager=scaler", mergePatch, `{"spec":{"replicas":2}}`).ok(http.StatusOK)
	require.Contains(t, managers(s.get(gauges+"/g")), `team Apply example.org/v1beta1 {"f:spec":{"f:mode":{}}}`)

	left := s.applyGauge(gauges, "team", "{}").ok(http.StatusOK)
	require.Equal(t, m{"size": int64(2), "replicas": int64(2)}, left.at("spec"),
		"fields that the manager leaves out are removed")
	require.NotContains(t, managers(left), "v1beta1")
}

// As in Kubernetes: the server cannot map the fields of a version that is gone to another one; only a client can.
func TestApply_ManagersOfAVersionThatIsGoneAreAnError(t *testing.T) {
	t.Parallel()
	s := startGauges(t, gaugeProps, gaugeProps)
	s.applyGauge(oldGauges, "team", "{mode: fast, size: 1}").ok(http.StatusCreated)
	s.redefine(`[{"op":"remove","path":"/spec/versions/0"}]`)
	before := entriesOf(s.get(gauges + "/g"))

	for _, manager := range []string{"team", "other"} {
		s.applyGauge(gauges, manager, "{size: 3}").refused(http.StatusInternalServerError, metav1.StatusReasonUnknown,
			"request to convert CR to an invalid group/version: example.org/v1beta1")
	}
	patched := s.patch(gauges+"/g?fieldManager=third", mergePatch, `{"spec":{"size":2}}`).ok(http.StatusOK)
	require.EqualValues(t, 2, patched.at("spec", "size"))
	require.Equal(t, before, entriesOf(patched), "the owners are kept if the fields cannot be compared")

	s.patch(gauges+"/g", jsonPatch, `[{"op":"replace","path":"/metadata/managedFields/0/apiVersion","value":
		"example.org/v1"}]`).ok(http.StatusOK)
	left := s.applyGauge(gauges, "team", "{size: 2}").ok(http.StatusOK)
	require.Equal(t, m{"size": int64(2)}, left.at("spec"))
	require.Equal(t, []string{`team Apply example.org/v1 {"f:spec":{"f:size":{}}}`}, managers(left))
}

// The object has a field that does not exist in the version of one of its managers.
func TestApply_ManagersWhoseVersionLacksAFieldAreAnError(t *testing.T) {
	t.Parallel()
	item := func(properties m) m {
		properties["name"] = text
		return m{"items": m{"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": []string{"name"},
			"items": m{"type": "object", "required": []string{"name"}, "properties": properties}}}
	}
	for name, c := range map[string]struct {
		old, current m
		want         string
	}{
		"a default of an item": {item(m{}), item(m{"mode": m{"type": "string", "default": "fast"}}),
			`.spec.items[name="a"].mode: field not declared in schema`},
		"a field": {item(m{}), m{"items": item(m{})["items"], "mode": m{"type": "string", "default": "fast"}},
			`.spec.mode: field not declared in schema`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startGauges(t, c.old, c.current)
			s.applyGauge(oldGauges, "team", "{items: [{name: a}]}").ok(http.StatusCreated)
			before := entriesOf(s.get(gauges + "/g"))
			s.applyGauge(gauges, "other", "{items: [{name: b}]}").refused(http.StatusInternalServerError,
				metav1.StatusReasonUnknown, c.want)
			patched := s.patch(gauges+"/g?fieldManager=third", mergePatch, `{"spec":{"items":[{"name":"b"}]}}`).
				ok(http.StatusOK)
			require.Equal(t, before, entriesOf(patched))
		})
	}
}

func TestOwnership_ObjectsWithAnEmbeddedDefaultHaveOwners(t *testing.T) {
	t.Parallel()
	embedded := m{"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true,
		"default": m{"apiVersion": "v1", "kind": "Pod", "metadata": m{"name": "p", "odd": "x"}}}
	props := m{"size": number, "template": embedded}
	s := startGauges(t, props, props)
	made := s.create(gauges+"?fieldManager=team", m{"apiVersion": "example.org/v1", "kind": "Gauge",
		"metadata": m{"name": "g"}, "spec": m{"size": 1}})
	require.Equal(t, m{"name": "p"}, made.at("spec", "template", "metadata"))
	require.Equal(t, []string{`team Update example.org/v1 {"f:spec":{".":{},"f:size":{},"f:template":{".":{},` +
		`"f:apiVersion":{},"f:kind":{},"f:metadata":{".":{},"f:name":{}}}}}`}, managers(made))
}

func TestOwnership_ByAScaleHasNoTime(t *testing.T) {
	t.Parallel()
	s := startGauges(t, gaugeProps, gaugeProps)
	s.create(gauges+"?fieldManager=team", m{"apiVersion": "example.org/v1", "kind": "Gauge",
		"metadata": m{"name": "g"}, "spec": m{"size": 1, "replicas": 1}})
	s.create(deployments+"?fieldManager=team", with(deployment("g", 1), "labels", m{"a": "b"}))
	for _, path := range []string{gauges + "/g", deployments + "/g"} {
		write := func(verb, query, kind string, replicas int) *answer {
			s.do(verb, path+"/scale"+query, m{"apiVersion": "autoscaling/v1", "kind": "Scale",
				"metadata": m{"name": "g", "namespace": "default"}, "spec": m{"replicas": replicas}},
				"Content-Type", kind).ok(http.StatusOK)
			return s.get(path)
		}
		for i, c := range []struct{ verb, query, kind, manager string }{
			{http.MethodPatch, "?fieldManager=patcher", mergePatch, "patcher Update"},
			{http.MethodPut, "?fieldManager=putter", "application/json", "putter Update"},
			{http.MethodPut, "?fieldManager=putter", "application/json", "putter Update"},
		} {
			scaled := write(c.verb, c.query, c.kind, 2+i)
			entries := entriesOf(scaled)
			require.Len(t, entries, 2, path)
			require.Equal(t, c.manager, fmt.Sprint(entries[0].Manager, " ", entries[0].Operation), path)
			require.Nil(t, entries[0].Time, path)
			require.Equal(t, "scale", entries[0].Subresource, path)
			require.Equal(t, `{"f:spec":{"f:replicas":{}}}`, entries[0].FieldsV1.GetRawString(), path)
			require.Equal(t, "team", entries[1].Manager, path)
			require.NotNil(t, entries[1].Time, path)
			require.NotContains(t, entries[1].FieldsV1.GetRawString(), "replicas", path)
			again := write(c.verb, c.query, c.kind, 2+i)
			require.Equal(t, scaled.object().GetResourceVersion(), again.object().GetResourceVersion(), path)
		}
		applied := write(http.MethodPatch, "?fieldManager=applier&force=true", applyPatch, 9)
		entries := entriesOf(applied)
		require.Len(t, entries, 2, path)
		require.Equal(t, metav1.ManagedFieldsOperationApply, entries[0].Operation, path)
		require.Nil(t, entries[0].Time, path)
		require.EqualValues(t, 9, applied.at("spec", "replicas"), path)
	}
}
