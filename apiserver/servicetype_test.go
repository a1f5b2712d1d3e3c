package apiserver_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestService_ReplacedByAnotherTypeAsItIs(t *testing.T) {
	t.Parallel()
	s := start(t)
	ports := []any{m{"name": "http", "port": 80}}
	s.create(services,
		m{"metadata": m{"name": "a"}, "spec": m{"type": "LoadBalancer", "ports": ports,
			"loadBalancerClass":     "example.com/a",
			"externalTrafficPolicy": "Local", "externalName": "a.b"}})
	for _, kind := range []string{"NodePort", "ExternalName", "ClusterIP", "LoadBalancer", "ClusterIP", "NodePort",
		"ClusterIP", "ExternalName"} {
		doc := s.get(services + "/a").ok(http.StatusOK).object().Object
		doc["spec"].(m)["type"] = kind
		spec := s.put(services+"/a", doc).ok(http.StatusOK).at("spec").(m)
		require.Equal(t, kind == "NodePort" || kind == "LoadBalancer", spec["ports"].([]any)[0].(m)["nodePort"] != nil,
			kind)
		require.Equal(t, kind != "ExternalName", spec["clusterIP"] != nil, kind)
	}
}

func TestService_StatusDefaultsTheModeOfAddresses(t *testing.T) {
	t.Parallel()
	s := start(t)
	created := s.create(services,
		m{"metadata": m{"name": "a"}, "spec": m{"type": "LoadBalancer", "ports": []any{m{"port": 80}}}}).object().Object
	path := services + "/a/status"
	ingress := func(last string) m {
		return m{"loadBalancer": m{"ingress": []any{m{"ip": "192.0.2." + last}, m{"hostname": "a.b"},
			m{"ip": "192.0.2.9", "ipMode": "Proxy"}}}}
	}
	check := func(answered *answer) {
		t.Helper()
		list := answered.ok(http.StatusOK).at("status", "loadBalancer", "ingress").([]any)
		require.Equal(t, []any{"VIP", nil, "Proxy"}, []any{list[0].(m)["ipMode"], list[1].(m)["ipMode"],
			list[2].(m)["ipMode"]})
	}
	created["status"] = ingress("1")
	check(s.put(path, created))
	check(s.patch(path, mergePatch, m{"status": ingress("2")}))
	check(s.patch(path, strategicPatch, m{"status": ingress("3")}))
	check(s.patch(path, jsonPatch, []any{m{"op": "add", "path": "/status", "value": ingress("4")}}))
	check(s.patch(path+"?fieldManager=a&force=true", "application/apply-patch+yaml",
		m{"apiVersion": "v1", "kind": "Service", "metadata": m{"name": "a"}, "status": ingress("5")}))
}
