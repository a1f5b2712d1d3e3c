package aggregation_test

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/builtin"
	"github.com/coxswain-dev/coxswain/apiserver"
)

const local = "True Local Local APIServices are always available"

func widgets(group string) *apiextensionsv1.CustomResourceDefinition {
	schema := &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object"}}
	return &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "widgets." + group},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{Group: group, Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "widgets", Kind: "Widget"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{
				{Name: "v1", Served: true, Storage: true, Schema: schema}}}}
}

func (c *cluster) definitions() *apiextensions.Clientset {
	c.t.Helper()
	set, err := apiextensions.NewForConfigAndClient(c.Config, c.http)
	require.NoError(c.t, err)
	return set
}

func TestLocal_EveryServedVersionIsRegistered(t *testing.T) {
	t.Parallel()
	c := start(t, apiserver.Options{Registry: api.NewRegistry(append(builtin.Kinds(), builtin.Metrics()...)...)})
	services := c.registration.ApiregistrationV1().APIServices()
	c.becomes("v1.apps", local)
	list, err := services.List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	served := map[string]bool{}
	for _, res := range builtin.Kinds() {
		if res.Group != apiregistrationv1.GroupName {
			served[res.Version+"."+res.Group] = true
		}
	}
	for _, s := range list.Items {
		require.True(t, served[s.Name], s.Name)
		require.Equal(t, "onstart", s.Labels["kube-aggregator.kubernetes.io/automanaged"])
		require.Equal(t, apiregistrationv1.ConditionTrue, s.Status.Conditions[0].Status)
		delete(served, s.Name)
	}
	require.Empty(t, served, "metrics.k8s.io alone has none")
	core, err := services.Get(t.Context(), "v1.", metav1.GetOptions{})
	require.NoError(t, err)
	require.EqualValues(t, 18000, core.Spec.GroupPriorityMinimum)

	require.NoError(t, services.Delete(t.Context(), "v1.apps", metav1.DeleteOptions{}))
	c.becomes("v1.apps", local)
}

func TestLocal_FollowsDefinitions(t *testing.T) {
	t.Parallel()
	c := start(t, apiserver.Options{})
	ctx := t.Context()
	definitions := c.definitions().ApiextensionsV1().CustomResourceDefinitions()
	_, err := definitions.Create(ctx, widgets("example.com"), metav1.CreateOptions{})
	require.NoError(t, err)
	c.becomes("v1.example.com", local)
	services := c.registration.ApiregistrationV1().APIServices()
	s, err := services.Get(ctx, "v1.example.com", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, "true", s.Labels["kube-aggregator.kubernetes.io/automanaged"])
	require.EqualValues(t, 1000, s.Spec.GroupPriorityMinimum)
	require.EqualValues(t, 100, s.Spec.VersionPriority)

	_, err = services.Patch(ctx, s.Name, types.MergePatchType, []byte(`{"spec":{"versionPriority":7}}`),
		metav1.PatchOptions{})
	require.NoError(t, err)
	require.Eventually(t, func() bool { // it is repaired
		s, err = services.Get(ctx, s.Name, metav1.GetOptions{})
		return err == nil && s.Spec.VersionPriority == 100
	}, patience, tick)

	require.NoError(t, definitions.Delete(ctx, "widgets.example.com", metav1.DeleteOptions{}))
	c.becomes("v1.example.com", "gone")
}

// When a user makes an APIService for a custom group, its server answers and this server's own kinds are hidden.
func TestRegistered_GroupsReplaceLocalOnes(t *testing.T) {
	t.Parallel()
	c := start(t, apiserver.Options{Registry: api.NewRegistry(append(builtin.Kinds(), builtin.Metrics()...)...)})
	ctx := t.Context()
	_, err := c.definitions().ApiextensionsV1().CustomResourceDefinitions().Create(ctx, widgets("example.com"),
		metav1.CreateOptions{})
	require.NoError(t, err)
	c.becomes("v1.example.com", local)
	e := newExtension(t, true, "ext.default.svc")
	c.service("ext", "10.1.0.7", e)
	services := c.registration.ApiregistrationV1().APIServices()
	_, err = services.Patch(ctx, "v1.example.com", types.MergePatchType, []byte(`{"metadata":{"labels":null},
		"spec":{"insecureSkipTLSVerify":true,"service":{"namespace":"default","name":"ext"}}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	c.register("v1beta1", "metrics.k8s.io", "ext", e.ca)
	for _, path := range []string{"/apis/example.com/v1/widgets", "/apis/metrics.k8s.io/v1beta1/nodes"} {
		c.routed(path)
		require.Contains(t, c.get(path).body, `"path":"`+path+`"`)
	}
	_, err = services.Patch(ctx, "v1.example.com", types.MergePatchType, []byte(
		`{"spec":{"insecureSkipTLSVerify":false,"service":null}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	c.becomes("v1.example.com", local)
	require.Eventually(t, func() bool { return c.Aggregated("/apis/example.com/v1") == nil }, patience, tick)
	require.Contains(t, c.get("/apis/example.com/v1/widgets").body, `"kind":"WidgetList"`)
}

// The core group and APIService itself are always served here.
func TestRegistered_CoreStaysLocal(t *testing.T) {
	t.Parallel()
	c := start(t, apiserver.Options{})
	c.becomes("v1.", local)
	_, err := c.registration.ApiregistrationV1().APIServices().Patch(t.Context(), "v1.", types.MergePatchType,
		[]byte(`{"spec":{"insecureSkipTLSVerify":true,"service":{"namespace":"default","name":"ext"}}}`),
		metav1.PatchOptions{})
	require.NoError(t, err)
	c.register("v1", "apiregistration.k8s.io", "ext", frontProxy())
	c.register("v1", "marker.example.com", "ext", frontProxy())
	require.Eventually(t, func() bool { return c.Aggregated("/apis/marker.example.com/v1") != nil }, patience, tick)
	require.Nil(t, c.Aggregated("/apis/apiregistration.k8s.io/v1"))
	require.Equal(t, http.StatusOK, c.get("/api/v1/namespaces/default").code)
}

func TestDiscovery_ListsGroupsByPriority(t *testing.T) {
	t.Parallel()
	c := start(t, apiserver.Options{})
	e := newExtension(t, true, "ext.default.svc")
	c.service("ext", "10.1.0.7", e)
	c.register("v1", "low.example.com", "ext", e.ca)
	high := c.register("v1alpha1", "high.example.com", "ext", e.ca)
	c.register("v1", "high.example.com", "ext", e.ca)
	high.Spec.GroupPriorityMinimum, high.Spec.VersionPriority = 20000, 100
	c.routed("/apis/high.example.com/v1")
	_, err := c.registration.ApiregistrationV1().APIServices().Patch(t.Context(), high.Name, types.MergePatchType,
		[]byte(`{"spec":{"groupPriorityMinimum":20000,"versionPriority":100}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	var groups metav1.APIGroupList
	require.Eventually(t, func() bool {
		groups = metav1.APIGroupList{}
		require.NoError(t, json.Unmarshal([]byte(c.get("/apis").body), &groups))
		return groups.Groups[1].Name == "high.example.com"
	}, patience, tick)
	require.Equal(t, "apiregistration.k8s.io", groups.Groups[0].Name)
	require.Equal(t, "high.example.com/v1alpha1", groups.Groups[1].PreferredVersion.GroupVersion)
	require.Len(t, groups.Groups[1].Versions, 2)
	require.Equal(t, "low.example.com", groups.Groups[len(groups.Groups)-1].Name)
	var group metav1.APIGroup
	require.NoError(t, json.Unmarshal([]byte(c.get("/apis/high.example.com").body), &group))
	require.Equal(t, groups.Groups[1].Versions, group.Versions)
	require.Equal(t, http.StatusNotFound, c.get("/apis/none.example.com").code)
}
