package apiserver_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/scale"
)

func TestScale_GetPutAndPatch(t *testing.T) {
	t.Parallel()
	s := start(t)
	created := s.create(deployments, deployment("web", 3)).object()
	path := deployments + "/web/scale"
	got := s.get(path).ok(http.StatusOK)
	require.Equal(t, "Scale", got.at("kind"))
	require.Equal(t, "autoscaling/v1", got.at("apiVersion"))
	require.EqualValues(t, 3, got.at("spec", "replicas"))
	require.Equal(t, "app=web", got.at("status", "selector"))
	require.Equal(t, created.GetUID(), got.object().GetUID())
	require.Equal(t, created.GetResourceVersion(), got.object().GetResourceVersion())

	body := got.object().Object
	body["spec"] = m{"replicas": 4}
	require.EqualValues(t, 4, s.put(path, body).ok(http.StatusOK).at("spec", "replicas"))
	s.put(path, body).refused(http.StatusConflict, metav1.StatusReasonConflict, "the object has been modified")
	for i, p := range []struct{ kind, patch string }{
		{mergePatch, `{"spec":{"replicas":5}}`},
		{strategicPatch, `{"spec":{"replicas":6}}`},
		{jsonPatch, `[{"op":"replace","path":"/spec/replicas","value":7}]`},
	} {
		require.EqualValues(t, 5+i, s.patch(path, p.kind, p.patch).ok(http.StatusOK).at("spec", "replicas"))
		require.EqualValues(t, 5+i, s.get(deployments+"/web").at("spec", "replicas"))
	}
	s.put(path, m{"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": m{"name": "web"},
		"spec": m{"replicas": -1}}).
		refused(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid,
			"spec.replicas: Invalid value: -1: must be greater than or equal to 0")
	s.put(path, m{"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": m{"name": "other"},
		"spec": m{"replicas": 1}}).
		refused(http.StatusBadRequest, metav1.StatusReasonBadRequest, "does not match the name on the URL")
	s.put(path, m{"kind": "Deployment", "apiVersion": "apps/v1"}).refused(http.StatusBadRequest,
		metav1.StatusReasonBadRequest, "")
	s.get(deployments+"/none/scale").refused(http.StatusNotFound, metav1.StatusReasonNotFound,
		`deployments.apps "none" not found`)
}

func TestScale_ClientGoScaleClient(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.create(deployments, deployment("web", 1))
	dc, err := discovery.NewDiscoveryClientForConfigAndClient(s.config, s.http)
	require.NoError(t, err)
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(dc))
	client, err := scale.NewForConfig(s.config, mapper, dynamic.LegacyAPIPathResolverFunc,
		scale.NewDiscoveryScaleKindResolver(dc))
	require.NoError(t, err)
	scales, gr := client.Scales("default"), appsv1.Resource("deployments")
	got, err := scales.Get(t.Context(), gr, "web", metav1.GetOptions{})
	require.NoError(t, err)
	got.Spec.Replicas = 2
	_, err = scales.Update(t.Context(), gr, got, metav1.UpdateOptions{})
	require.NoError(t, err)
	got, err = scales.Patch(t.Context(), appsv1.SchemeGroupVersion.WithResource("deployments"), "web",
		types.MergePatchType, []byte(`{"spec":{"replicas":3}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	require.EqualValues(t, 3, got.Spec.Replicas)
	updated, err := s.typed().AppsV1().Deployments("default").UpdateScale(t.Context(), "web",
		&autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default"},
			Spec: autoscalingv1.ScaleSpec{Replicas: 4}}, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.EqualValues(t, 4, updated.Spec.Replicas)
}

func TestBinding_PutsAPodOnANodeOnce(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.create(pods, pod("a"))
	bind := func(pod, node string) *answer {
		return s.do(http.MethodPost, pods+"/"+pod+"/binding",
			m{"kind": "Binding", "apiVersion": "v1", "metadata": m{"name": pod},
				"target": m{"kind": "Node", "name": node}})
	}
	require.Equal(t, "Success", bind("a", "n1").ok(http.StatusCreated).at("status"))
	bound := s.get(pods + "/a")
	require.Equal(t, "n1", bound.at("spec", "nodeName"))
	condition := bound.at("status", "conditions").([]any)[0].(m)
	require.Equal(t, "PodScheduled", condition["type"])
	require.Equal(t, "True", condition["status"])
	for _, node := range []string{"n1", "n2"} {
		bind("a", node).refused(http.StatusConflict, metav1.StatusReasonConflict,
			`pod a is already assigned to node "n1"`)
	}
	s.create(pods, with(pod("dying"), "finalizers", []string{"a.io/b"}))
	s.delete(pods+"/dying", nil).ok(http.StatusOK)
	bind("dying", "n1").refused(http.StatusConflict, metav1.StatusReasonConflict,
		"pod dying is being deleted, cannot be assigned to a host")
	bind("none", "n1").refused(http.StatusNotFound, metav1.StatusReasonNotFound, `pods "none" not found`)

	s.create(pods, pod("b"))
	path := pods + "/b/binding"
	s.do(http.MethodPost, path, m{"metadata": m{"name": "a"}, "target": m{"name": "n1"}}).refused(http.StatusBadRequest,
		metav1.StatusReasonBadRequest, "name in URL does not match name in Binding object")
	s.do(http.MethodPost, path, m{"metadata": m{"name": "b"}, "target": m{"kind": "Pod", "name": "n1"}}).refused(
		http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "target.kind")
	s.do(http.MethodPost, path, m{"metadata": m{"name": "b"}, "target": m{"kind": "Node"}}).refused(
		http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "target.name: Required value")
	s.do(http.MethodPost, path, m{"metadata": m{"name": "b", "uid": "x"}, "target": m{"name": "n1"}}).refused(
		http.StatusConflict, metav1.StatusReasonConflict, "UID in precondition: x")
	s.get(path).refused(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed, "")
	require.Nil(t, s.get(pods+"/b").at("spec", "nodeName"))
}

func TestSubresource_UnknownIs404(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.create(configMaps, configMap("a"))
	s.create(deployments, deployment("web", 1))
	for _, path := range []string{configMaps + "/a/status", configMaps + "/a/scale", deployments + "/web/nothing",
		namespaces + "/default/nothing", deployments + "/web/scale/deeper"} {
		s.get(path).refused(http.StatusNotFound, metav1.StatusReasonNotFound,
			"the server could not find the requested resource")
		s.patch(path, mergePatch, `{}`).refused(http.StatusNotFound, metav1.StatusReasonNotFound,
			"the server could not find the requested resource")
	}
}
