package apiserver_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestReferences_MustBePathSegments writes references that would lead elsewhere if a client used the name in a path.
func TestReferences_MustBePathSegments(t *testing.T) {
	t.Parallel()
	s := start(t)
	const bad = "node-0/proxy/containerLogs/b/px/px"
	namespace, core := "/namespaces/default", "/api/v1/namespaces/default"
	refused := func(collection string, obj m, field string) {
		t.Helper()
		res := s.do(http.MethodPost, collection, document(t, obj))
		require.Equal(t, http.StatusUnprocessableEntity, res.code, "%s", res.body)
		require.Contains(t, string(res.body), field+`: Invalid value: \"`+bad+`\": may not contain '/'`)
	}
	refused(core+"/configmaps",
		m{"metadata": m{"name": "x",
			"ownerReferences": []any{m{"apiVersion": "v1", "kind": "Node", "name": bad, "uid": "1"}}}},
		"metadata.ownerReferences[0].name")
	refused(core+"/events",
		m{"metadata": m{"name": "x"}, "involvedObject": m{"kind": "Pod", "namespace": "default", "name": bad}},
		"involvedObject.name")
	refused("/apis/autoscaling/v1"+namespace+"/horizontalpodautoscalers",
		m{"metadata": m{"name": "x"},
			"spec": m{"maxReplicas": 1, "scaleTargetRef": m{"kind": "Deployment", "name": bad}}},
		"spec.scaleTargetRef.name")
	refused(core+"/pods", m{"metadata": m{"name": "x"}, "spec": m{
		"containers": []any{m{"name": "c", "image": "i"}},
		"volumes":    []any{m{"name": "v", "secret": m{"secretName": bad}}}}},
		"spec.volumes[0].secret.secretName")
	s.create(core+"/pods", m{"metadata": m{"name": "p"}, "spec": m{"containers": []any{m{"name": "c", "image": "i"}}}})
	refused(core+"/pods/p/binding", m{"metadata": m{"name": "p"}, "target": m{"kind": "Node", "name": bad}},
		"target.name")
	res := s.patch(core+"/pods/p/status", mergePatch, `{"status":{"nominatedNodeName":"`+bad+`"}}`)
	require.Equal(t, http.StatusUnprocessableEntity, res.code, "%s", res.body)
	require.Contains(t, string(res.body), "status.nominatedNodeName")
}
