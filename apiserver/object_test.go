package apiserver_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestCreate_SetsSystemFields(t *testing.T) {
	t.Parallel()
	s := start(t)
	body := configMap("a")
	for field, value := range map[string]any{
		"uid": "mine", "creationTimestamp": "2001-01-01T00:00:00Z", "deletionTimestamp": "2001-01-01T00:00:00Z",
		"deletionGracePeriodSeconds": 7, "selfLink": "/x",
	} {
		with(body, field, value)
	}
	created := s.create(configMaps, body).object()
	require.Len(t, created.GetUID(), 36)
	require.NotEqual(t, 2001, created.GetCreationTimestamp().Year())
	require.Nil(t, created.GetDeletionTimestamp())
	require.Nil(t, created.GetDeletionGracePeriodSeconds())
	require.Empty(t, created.GetSelfLink())
	require.Equal(t, "default", created.GetNamespace())
	require.NotEmpty(t, created.GetResourceVersion())
	require.Equal(t, created, s.get(configMaps+"/a").ok(http.StatusOK).object())
}

func TestCreate_ClusterKind(t *testing.T) {
	t.Parallel()
	s := start(t)
	// The namespace of a cluster-scoped object is dropped.
	s.create(nodes, m{"kind": "Node", "apiVersion": "v1", "metadata": m{"name": "n", "namespace": "default"}})
	require.Empty(t, s.get(nodes+"/n").ok(http.StatusOK).object().GetNamespace())
	s.patch(nodes+"/n", mergePatch, `{"spec":{"unschedulable":true}}`).ok(http.StatusOK)
	require.Equal(t, true, s.get(nodes+"/n").at("spec", "unschedulable"))
	s.delete(nodes+"/n", nil).ok(http.StatusOK)
	s.gone(nodes + "/n")
}

func TestCreate_GenerateName(t *testing.T) {
	t.Parallel()
	s := start(t)
	for name, base := range map[string]string{"short": "web-", "cut to length": strings.Repeat("a", 200)} {
		t.Run(name, func(t *testing.T) {
			s := &server{t: t, config: s.config, http: s.http}
			seen := map[string]bool{}
			for range 3 {
				created := s.create(configMaps, m{"metadata": m{"generateName": base}}).object()
				require.Len(t, created.GetName(), min(len(base), 58)+5)
				require.True(t, strings.HasPrefix(created.GetName(), base[:min(len(base), 58)]))
				require.Equal(t, base, created.GetGenerateName())
				seen[created.GetName()] = true
			}
			require.Len(t, seen, 3)
		})
	}
}

func TestCreate_ExistingNameConflicts(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.create(configMaps, configMap("a"))
	s.do(http.MethodPost, configMaps, configMap("a")).
		refused(http.StatusConflict, metav1.StatusReasonAlreadyExists, `configmaps "a" already exists`)
	s.create(deployments, deployment("a", 1))
	s.do(http.MethodPost, deployments, deployment("a", 1)).
		refused(http.StatusConflict, metav1.StatusReasonAlreadyExists, `deployments.apps "a" already exists`)
}

func TestUpdate_StaleResourceVersionConflicts(t *testing.T) {
	t.Parallel()
	s := start(t)
	first := s.create(deployments, deployment("web", 1)).object()
	s.patch(deployments+"/web", mergePatch, `{"spec":{"replicas":2}}`).ok(http.StatusOK)
	const words = `Operation cannot be fulfilled on deployments.apps "web": the object has been modified; please apply your changes to the latest version and try again`
	status := s.put(deployments+"/web", first).refused(http.StatusConflict, metav1.StatusReasonConflict, words)
	require.Equal(t, &metav1.StatusDetails{Name: "web", Group: "apps", Kind: "deployments"}, status.Details)
	// The same by a patch.
	s.patch(deployments+"/web", mergePatch, m{"metadata": m{"resourceVersion": first.GetResourceVersion()}}).
		refused(http.StatusConflict, metav1.StatusReasonConflict, words)
	require.EqualValues(t, 2, s.get(deployments+"/web").at("spec", "replicas"))
}

func TestUpdate_UIDIsAPrecondition(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.create(configMaps, configMap("a"))
	s.create(deployments, deployment("a", 1))
	for path, body := range map[string]m{
		configMaps + "/a": configMap("a"), deployments + "/a": deployment("a", 2),
		deployments + "/a/status": deployment("a", 1),
		deployments + "/a/scale":  {"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": m{"name": "a"}},
	} {
		s.put(path, with(body, "uid", "00000000-0000-0000-0000-000000000000")).
			refused(http.StatusConflict, metav1.StatusReasonConflict,
				"Precondition failed: UID in precondition: 00000000-0000-0000-0000-000000000000, UID in object meta:")
	}
}

func TestUpdate_WithoutResourceVersionIsUnconditional(t *testing.T) {
	t.Parallel()
	s := start(t)
	created := s.create(configMaps, configMap("a")).object()
	body := configMap("a")
	body["data"] = m{"k": "w"}
	updated := s.put(configMaps+"/a", body).ok(http.StatusOK).object()
	require.NotEqual(t, created.GetResourceVersion(), updated.GetResourceVersion())
	require.Equal(t, created.GetUID(), updated.GetUID())
	require.Equal(t, created.GetCreationTimestamp(), updated.GetCreationTimestamp())
}

func TestUpdate_ThatChangesNothingKeepsTheResourceVersion(t *testing.T) {
	t.Parallel()
	s := start(t)
	created := s.create(deployments, deployment("web", 1)).object()
	require.Equal(t, created, s.put(deployments+"/web", deployment("web", 1)).ok(http.StatusOK).object())
	require.Equal(t, created, s.patch(deployments+"/web", mergePatch, `{}`).ok(http.StatusOK).object())
	require.Equal(t, created, s.patch(deployments+"/web", strategicPatch, `{"spec":{"replicas":1}}`).ok(
		http.StatusOK).object())
	require.Equal(t, created, s.get(deployments+"/web").object())
}

func TestUpdate_MissingObjectIs404(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.put(deployments+"/web", deployment("web", 1)).refused(http.StatusNotFound, metav1.StatusReasonNotFound,
		`deployments.apps "web" not found`)
	s.patch(deployments+"/web", mergePatch, `{}`).refused(http.StatusNotFound, metav1.StatusReasonNotFound,
		`deployments.apps "web" not found`)
	s.delete(deployments+"/web", nil).refused(http.StatusNotFound, metav1.StatusReasonNotFound,
		`deployments.apps "web" not found`)
}

func TestGeneration_CountsChangesOfTheSpec(t *testing.T) {
	t.Parallel()
	s := start(t)
	path := deployments + "/web"
	require.EqualValues(t, 1, s.create(deployments, deployment("web", 1)).object().GetGeneration())
	for _, step := range []struct {
		path, patch string
		want        int64
	}{
		{path, `{"metadata":{"labels":{"a":"b"}}}`, 1},
		{path + "/status", `{"status":{"replicas":1,"observedGeneration":1}}`, 1},
		{path, `{"spec":{"replicas":5}}`, 2},
		{path, `{"metadata":{"generation":99}}`, 2},
		{path + "/scale", `{"spec":{"replicas":6}}`, 3},
		{path + "/scale", `{"spec":{"replicas":6}}`, 3},
	} {
		s.patch(step.path, mergePatch, step.patch).ok(http.StatusOK)
		require.Equal(t, step.want, s.get(path).object().GetGeneration(), "%s %s", step.path, step.patch)
	}
}

func TestStatus_IsolatedInBothDirections(t *testing.T) {
	t.Parallel()
	s := start(t)
	path := deployments + "/web"
	body := deployment("web", 1)
	body["status"] = m{"replicas": 9}
	require.Nil(t, s.create(deployments, body).at("status", "replicas"), "a create sets no status")
	require.Nil(t, s.put(path, body).ok(http.StatusOK).at("status", "replicas"), "a main write sets no status")
	for _, kind := range []string{mergePatch, strategicPatch} {
		s.patch(path, kind, `{"status":{"replicas":9}}`).ok(http.StatusOK)
		require.Nil(t, s.get(path).at("status", "replicas"))
	}
	written := s.patch(path+"/status", mergePatch,
		`{"status":{"replicas":3},"spec":{"replicas":7},"metadata":{"finalizers":["a/b"]}}`).ok(http.StatusOK)
	require.EqualValues(t, 3, written.at("status", "replicas"))
	require.EqualValues(t, 1, written.at("spec", "replicas"), "a status write sets no spec")
	body = deployment("web", 7)
	body["status"] = m{"replicas": 4}
	written = s.put(path+"/status", body).ok(http.StatusOK)
	require.EqualValues(t, 4, written.at("status", "replicas"))
	require.EqualValues(t, 1, written.at("spec", "replicas"))
	require.EqualValues(t, 4, s.put(path, deployment("web", 2)).at("status", "replicas"),
		"a main write keeps the status")
	require.EqualValues(t, 4, s.get(path+"/status").ok(http.StatusOK).at("status", "replicas"))
}

func TestDryRun_LeavesNothing(t *testing.T) {
	t.Parallel()
	s := start(t)
	const all = "?dryRun=All"
	created := s.do(http.MethodPost, configMaps+all, configMap("a")).ok(http.StatusCreated).object()
	require.NotEmpty(t, created.GetUID())
	require.Empty(t, created.GetResourceVersion(), "nothing was stored")
	require.Equal(t, "a", s.do(http.MethodPost, configMaps+all, configMap("a"), "Accept",
		asPartial).ok(http.StatusCreated).at("metadata", "name"))
	s.gone(configMaps + "/a")
	s.do(http.MethodPost, configMaps+all, m{"metadata": m{"name": "UPPER"}}).ok(http.StatusUnprocessableEntity)

	stored := s.create(configMaps, configMap("a")).object()
	s.do(http.MethodPost, configMaps+all, configMap("a")).refused(http.StatusConflict, metav1.StatusReasonAlreadyExists,
		"already exists")
	body := configMap("a")
	body["data"] = m{"k": "w"}
	require.Equal(t, "w", s.put(configMaps+"/a"+all, body).ok(http.StatusOK).at("data", "k"))
	require.Equal(t, "x", s.patch(configMaps+"/a"+all, mergePatch, `{"data":{"k":"x"}}`).ok(http.StatusOK).at("data",
		"k"))
	s.delete(configMaps+"/a"+all, nil).ok(http.StatusOK)
	s.delete(configMaps+"/a", m{"kind": "DeleteOptions", "apiVersion": "v1", "dryRun": []string{"All"}}).ok(
		http.StatusOK)
	s.delete(configMaps+all, nil).ok(http.StatusOK)
	require.Equal(t, stored, s.get(configMaps+"/a").object())

	s.create(pods, pod("p"))
	s.do(http.MethodPost, pods+"/p/binding"+all,
		m{"metadata": m{"name": "p"}, "target": m{"kind": "Node", "name": "n"}}).ok(http.StatusCreated)
	require.Nil(t, s.get(pods+"/p").at("spec", "nodeName"))
	s.create(deployments, deployment("d", 1))
	require.EqualValues(t, 5, s.patch(deployments+"/d/scale"+all, mergePatch, `{"spec":{"replicas":5}}`).ok(
		http.StatusOK).at("spec", "replicas"))
	require.EqualValues(t, 1, s.get(deployments+"/d").at("spec", "replicas"))
	s.do(http.MethodPost, configMaps+"?dryRun=Some", configMap("b")).ok(http.StatusUnprocessableEntity)
	s.gone(configMaps + "/b")
}

func TestGet_AtARevision(t *testing.T) {
	t.Parallel()
	s := start(t)
	created := s.create(configMaps, configMap("a")).object()
	for _, rv := range []string{"0", created.GetResourceVersion()} {
		require.Equal(t, created, s.get(configMaps+"/a?resourceVersion="+rv).ok(http.StatusOK).object())
	}
	s.get(configMaps+"/a?resourceVersion=abc").refused(http.StatusBadRequest, metav1.StatusReasonBadRequest, "abc")
	status := s.get(configMaps+"/a?resourceVersion=999999999&timeout=5s").refused(http.StatusGatewayTimeout,
		metav1.StatusReasonTimeout, "Too large resource version")
	require.Equal(t, metav1.CauseTypeResourceVersionTooLarge, status.Details.Causes[0].Type)
}
