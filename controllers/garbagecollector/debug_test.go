package garbagecollector

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// object returns a node of kind K in apps/v1 with the name "n-" and its uid.
func object(uid types.UID, owners ...types.UID) *node {
	n := &node{uid: uid, name: "n-" + string(uid), namespace: "ns",
		gvk: schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "K"}}
	for _, o := range owners {
		n.owners = append(n.owners, metav1.OwnerReference{APIVersion: "apps/v1", Kind: "K", Name: "n-" +
			string(o), UID: o})
	}
	return n
}

func TestGraph_IsServedAsDOTAndJSON(t *testing.T) {
	g := &collector{graph: newGraph()}
	for _, n := range []*node{object("d"), object("r", "d"), object("p1", "r"), object("p2", "r"), object("x", "gone"),
		object("alone")} {
		g.graph.put(n)
	}
	get := func(query string) (int, string) {
		w := httptest.NewRecorder()
		g.ServeHTTP(w, httptest.NewRequest(http.MethodGet, query, nil))
		return w.Code, w.Body.String()
	}
	uids := func(query string) (all, missing []string, edges int) {
		code, body := get(query)
		require.Equal(t, http.StatusOK, code)
		var d drawing
		require.NoError(t, json.Unmarshal([]byte(body), &d))
		for _, n := range d.Nodes {
			all = append(all, string(n.UID))
			if n.Missing {
				missing = append(missing, string(n.UID))
				require.Equal(t, "n-gone", n.Name)
				require.Equal(t, "apps", n.Group)
			}
		}
		return all, missing, len(d.Edges)
	}
	all, missing, edges := uids("/graph?format=json")
	require.Equal(t, []string{"d", "gone", "p1", "p2", "r", "x"}, all,
		"an object without owners and dependents is left out")
	require.Equal(t, []string{"gone"}, missing)
	require.Equal(t, 4, edges)
	all, _, edges = uids("/graph?format=json&uid=p1")
	require.Equal(t, []string{"d", "p1", "r"}, all)
	require.Equal(t, 2, edges)
	all, _, _ = uids("/graph?format=json&uid=r&uid=x&uid=nothing")
	require.Equal(t, []string{"d", "gone", "p1", "p2", "r", "x"}, all)

	g.graph.put(object("r", "d", "r")) // a cycle terminates
	all, _, _ = uids("/graph?format=json&uid=d")
	require.Equal(t, []string{"d", "p1", "p2", "r"}, all)

	code, dot := get("/graph?uid=x")
	require.Equal(t, http.StatusOK, code)
	require.True(t, strings.HasPrefix(dot, "strict digraph full {\n  // Node definitions.\n  0 [\n"), dot)
	require.Contains(t, dot, `label="uid=x\nnamespace=ns\nK.v1.apps/n-x\n"`)
	require.Contains(t, dot, "  1 -> 0;\n}\n")
	code, _ = get("/graph?format=svg")
	require.Equal(t, http.StatusBadRequest, code)
	code, _ = get("/other")
	require.Equal(t, http.StatusNotFound, code)
}
