package testenv_test

import (
	"context"
	"embed"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/coxswain-dev/coxswain/testenv"
)

//go:embed testdata
var testdata embed.FS

// serveWebhooks runs controller-runtime's webhook server at the address that the environment has reserved.
func serveWebhooks(t *testing.T, env *testenv.Environment, hooks map[string]http.Handler) {
	t.Helper()
	server := webhook.NewServer(webhook.Options{Host: env.Webhooks.Host, Port: env.Webhooks.Port,
		CertDir: env.Webhooks.CertDir, WebhookMux: http.NewServeMux()})
	for path, hook := range hooks {
		server.Register(path, hook)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- server.Start(ctx) }()
	t.Cleanup(func() {
		stop()
		assert.NoError(t, <-ended)
	})
	for server.StartedChecker()(nil) != nil { // each try opens a connection
	}
}

func deny(reason string) http.Handler {
	return &admission.Webhook{Handler: admission.HandlerFunc(
		func(context.Context, admission.Request) admission.Response { return admission.Denied(reason) })}
}

func TestWithWebhooks_LeadsServicesToTheOperator(t *testing.T) {
	t.Parallel()
	elsewhere := &admissionv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "in-go"},
		Webhooks: []admissionv1.ValidatingWebhook{{Name: "secrets.example.com",
			ClientConfig: admissionv1.WebhookClientConfig{Service: &admissionv1.ServiceReference{Namespace: "x",
				Name: "y", Path: new("/secrets")}},
			Rules: []admissionv1.RuleWithOperations{{Operations: []admissionv1.OperationType{"CREATE"},
				Rule: admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"secrets"}}}},
			SideEffects: new(admissionv1.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"}}}}
	env := testenv.StartEnvironment(t, testenv.APIServerOnly(), testenv.WithWebhooksFrom(testdata, "testdata/webhooks"),
		testenv.WithValidatingWebhooks(elsewhere))
	client := kubernetes.NewForConfigOrDie(env.Config)
	_, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), configMap("a"), metav1.CreateOptions{})
	require.ErrorContains(t, err, "connection refused", "the operator does not serve yet")

	serveWebhooks(t, env, map[string]http.Handler{"/validate-configmaps": deny("no maps"),
		"/secrets": deny("no secrets")})
	_, err = client.CoreV1().ConfigMaps("default").Create(t.Context(), configMap("a"), metav1.CreateOptions{})
	require.True(t, apierrors.IsForbidden(err), "%v", err)
	require.ErrorContains(t, err, "no maps")
	secrets, err := client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Get(t.Context(), "in-go",
		metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, env.Webhooks.URL("/secrets"), *secrets.Webhooks[0].ClientConfig.URL)
	require.Nil(t, secrets.Webhooks[0].ClientConfig.Service)

	require.NoError(t, env.Stop())
	require.NoDirExists(t, env.Webhooks.CertDir)
}

func TestWithWebhooks_ReportsErrors(t *testing.T) {
	t.Parallel()
	_, err := testenv.NewEnvironment(testenv.APIServerOnly(), testenv.WithWebhooksFrom(testdata, "testdata/crds"))
	require.EqualError(t, err, "testenv: testdata/crds has no webhook configuration")
}

// The operator must convert a definition whose versions differ by more than their schemas.
func TestWithConversion_CallsTheOperator(t *testing.T) {
	t.Parallel()
	env := testenv.StartEnvironment(t, testenv.APIServerOnly(), testenv.WithCRDsFrom(testdata, "testdata/crds"),
		testenv.WithConversion("ferries.example.com"))
	serveWebhooks(t, env, map[string]http.Handler{"/convert": http.HandlerFunc(renameOars)})
	client := dynamic.NewForConfigOrDie(env.Config)
	ferry := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Ferry",
		"metadata": map[string]any{"name": "a"}, "oars": int64(4)}}
	gvr := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "ferries"}
	_, err := client.Resource(gvr).Create(t.Context(), ferry, metav1.CreateOptions{})
	require.NoError(t, err)
	gvr.Version = "v2"
	ferry, err = client.Resource(gvr).Get(t.Context(), "a", metav1.GetOptions{})
	require.NoError(t, err)
	require.EqualValues(t, 4, ferry.Object["sweeps"])
}

func TestWithCRDObjects_InstallsDefinitionsMadeInGo(t *testing.T) {
	t.Parallel()
	crd := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "rafts.example.com"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{Group: "example.com", Scope: apiextensionsv1.ClusterScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Kind: "Raft", Plural: "rafts"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{
					OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object"}}}}}}
	env := testenv.StartEnvironment(t, testenv.APIServerOnly(), testenv.WithCRDObjects(crd))
	gvr := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "rafts"}
	_, err := dynamic.NewForConfigOrDie(env.Config).Resource(gvr).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Empty(t, crd.Kind, "the test's object is left alone")
}
