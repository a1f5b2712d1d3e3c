package apiserver_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/testenv"
)

// TestDebug_RequiresAuthorization reads the collector's graph through the API server of the same process.
func TestDebug_RequiresAuthorization(t *testing.T) {
	t.Parallel()
	const graph = "/debug/controllers/garbagecollector/graph"
	s := connect(t, testenv.Start(t, testenv.WithControllers("garbagecollector"), testenv.WithNodes(0),
		testenv.WithoutScheduler()))
	require.Eventually(t, func() bool { return s.get(graph).code == http.StatusOK }, patience, 10*time.Millisecond)
	require.Contains(t, string(s.get(graph).ok(http.StatusOK).body), "strict digraph full {")
	owner := s.create(configMaps, m{"apiVersion": "v1", "kind": "ConfigMap", "metadata": m{"name": "owner"}})
	uid := owner.at("metadata", "uid").(string)
	s.create(configMaps,
		m{"apiVersion": "v1", "kind": "ConfigMap", "metadata": m{"name": "owned", "ownerReferences": []m{
			{"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid},
		}}})
	require.Eventually(t, func() bool {
		a := s.get(graph + "?format=json&uid=" + uid).ok(http.StatusOK)
		return strings.Count(string(a.body), `"name":"own`) == 2
	}, patience, 10*time.Millisecond)
	s.get(graph + "?format=svg").ok(http.StatusBadRequest)
	s.get("/debug/controllers/nothing/graph").ok(http.StatusNotFound)
	s.do(http.MethodDelete, graph, nil).ok(http.StatusMethodNotAllowed)
	s.as("nobody").get(graph).ok(http.StatusForbidden)
}
