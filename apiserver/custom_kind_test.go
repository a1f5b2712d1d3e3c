package apiserver_test

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cbor "k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
)

func TestCustom_BodiesNameTheirKind(t *testing.T) {
	t.Parallel()
	s := startValves(t)
	write := func(verb, path, typeMeta string) *answer {
		return s.do(verb, path, `{`+typeMeta+`"metadata":{"name":"main"},"spec":{"size":5}}`)
	}
	const bad, words = metav1.StatusReasonBadRequest, `Valve in version "v2" cannot be handled as a Valve: `
	for _, c := range []struct{ verb, path string }{{http.MethodPost, valves}, {http.MethodPut, valves + "/main"}} {
		write(c.verb, c.path, ``).refused(400, bad, words+`Object 'Kind' is missing in '{"metadata":`)
		write(c.verb, c.path, `"apiVersion":"example.org/v2",`).refused(400, bad, words+`Object 'Kind' is missing in '{"api`)
		for typeMeta, version := range map[string]string{
			`"kind":"Valve",`:                               "",
			`"apiVersion":"apps/v1","kind":"Valve",`:        "apps/v1",
			`"apiVersion":"example.org/v9","kind":"Tap",`:   "example.org/v9",
			`"apiVersion":"example.org/v1","kind":"Valve",`: "example.org/v1",
		} {
			write(c.verb, c.path, typeMeta).refused(400, bad, "the API version in the data ("+version+
				") does not match the expected API version (example.org/v2)")
		}
		wrong := write(c.verb, c.path, `"apiVersion":"example.org/v2","kind":"Tap",`).refused(422,
			metav1.StatusReasonInvalid, `Tap.example.org "main" is invalid: kind: Invalid value: "Tap": must be Valve`)
		require.Equal(t, "kind", wrong.Details.Causes[0].Field)
	}
	s.do(http.MethodPost, configMaps, m{"metadata": m{"name": "a"}}).ok(http.StatusCreated) // the kind of a built-in resource is optional
}

func TestCustom_AllNamespacesAreOnlyListed(t *testing.T) {
	t.Parallel()
	s := startValves(t)
	const all = "/apis/example.org/v2/valves"
	s.get(all).ok(http.StatusOK)
	s.do(http.MethodPost, all, valve("a", m{"size": 1})).ok(http.StatusNotFound)
	s.delete(all, nil).ok(http.StatusNotFound)
	s.get(valves + "/main").ok(http.StatusOK)
	s.do(http.MethodPost, "/api/v1/configmaps", configMap("a")).ok(http.StatusMethodNotAllowed)
}

func TestCustom_SupportsCBOR(t *testing.T) {
	t.Parallel()
	s := startValves(t)
	body, err := cbor.Marshal(valve("b", m{"size": 7}))
	require.NoError(t, err)
	made := s.do(http.MethodPost, valves, body, "Content-Type", cborType, "Accept", cborType).ok(http.StatusCreated)
	require.Equal(t, cborType, made.header.Get("Content-Type"))
	var shown m
	require.NoError(t, cbor.Unmarshal(made.body, &shown))
	require.Equal(t, m{"size": int64(7), "color": "red"}, shown["spec"])
	require.EqualValues(t, 7, s.get(valves+"/b").at("spec", "size"))
	config, err := cbor.Marshal(valve("b", m{"size": 8}))
	require.NoError(t, err)
	applied := s.patch(valves+"/b?fieldManager=me&force=true", "application/apply-patch+cbor", config)
	require.EqualValues(t, 8, applied.ok(http.StatusOK).at("spec", "size"))
	var list m
	require.NoError(t, cbor.Unmarshal(s.get(valves, "Accept", cborType).ok(http.StatusOK).body, &list))
	require.Len(t, list["items"], 2)
}

// Only the definition's other version has the default.
func TestCustom_DefaultsOfTheStoredVersionAreNotStored(t *testing.T) {
	t.Parallel()
	s := startGauges(t, m{"size": number}, m{"size": number, "mode": m{"type": "string", "default": "fast"}})
	s.create(oldGauges, m{"apiVersion": "example.org/v1beta1", "kind": "Gauge", "metadata": m{"name": "old"},
		"spec": m{"size": 1}})
	s.create(gauges, m{"apiVersion": "example.org/v1", "kind": "Gauge", "metadata": m{"name": "new"},
		"spec": m{"size": 1}})
	for _, name := range []string{"old", "new"} {
		require.Equal(t, "fast", s.get(gauges+"/"+name).at("spec", "mode"), name)
		require.Nil(t, s.get(oldGauges+"/"+name).at("spec", "mode"), name)
	}
	s.patch(gaugesDefined, jsonPatch, `[{"op":"replace","value":"slow",
		"path":"/spec/versions/1/schema/openAPIV3Schema/properties/spec/properties/mode/default"}]`).ok(http.StatusOK)
	require.Eventually(t, func() bool { return s.get(gauges+"/old").at("spec", "mode") == "slow" }, patience, tick)
	require.Equal(t, "fast", s.get(gauges+"/new").at("spec", "mode"), "was stored with it")
}

func TestCustom_RulesAreMentionedOnlyIfDefined(t *testing.T) {
	t.Parallel()
	s := startGauges(t, gaugeProps, gaugeProps)
	refused := s.do(http.MethodPost, gauges, m{"apiVersion": "example.org/v1", "kind": "Gauge", "metadata": m{"name": "g"},
		"spec": m{"size": "x"}}).refused(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "spec.size: Invalid value")
	require.NotContains(t, refused.Message, "some validation rules")
}

func TestCustom_DiscoveryListsTheStatusFirst(t *testing.T) {
	t.Parallel()
	s := startValves(t)
	var list metav1.APIResourceList
	require.NoError(t, json.Unmarshal(s.get("/apis/example.org/v2").ok(http.StatusOK).body, &list))
	var names []string
	for _, r := range list.APIResources {
		names = append(names, r.Name)
	}
	require.Equal(t, []string{"valves", "valves/status", "valves/scale"}, names)
}
