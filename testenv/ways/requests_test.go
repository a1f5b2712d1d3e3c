package ways_test

import (
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver"
	"github.com/coxswain-dev/coxswain/apiserver/admission"
	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/authz"
	"github.com/coxswain-dev/coxswain/apiserver/pki"
	"github.com/coxswain-dev/coxswain/storage"
	"github.com/coxswain-dev/coxswain/testenv/servertest"
)

// serve starts a server with hooks on a backend. The client has all rights, by RBAC.
func (tr *trace) serve(t *testing.T, on storage.Backend) (*servertest.Server, *kubernetes.Clientset) {
	ca, err := pki.NewCA()
	require.NoError(t, err)
	s := servertest.Start(t, apiserver.Options{
		Store:          servertest.Store(t, backend{on, tr}, storage.Options{}),
		Registry:       api.NewRegistry(tr.kinds()...),
		Authentication: authn.Options{ClientCAs: authorities{authn.FixedCAs(ca.Pool()), tr}},
		Authorization: authz.Options{Clock: memory{clock.RealClock{}, tr},
			Configuration: authz.Modes([]string{authz.TypeWebhook, authz.TypeRBAC}, noOpinion(t))},
		Admission:  admission.Options{Disable: []string{"ServiceAccount", "TaintNodesByCondition"}},
		Middleware: tr.around,
	})
	as := func(user string, groups ...string) *kubernetes.Clientset {
		s.Config.CertData, s.Config.KeyData, err = ca.Client(user, groups...)
		require.NoError(t, err)
		return s.Client(t)
	}
	binding := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "test"},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "test"}}}
	_, err = as("root", "system:masters").RbacV1().ClusterRoleBindings().Create(t.Context(), binding,
		metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) { // from another server on the backend
		require.NoError(t, err)
	}
	client := as("test")
	_, err = client.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{}) // the rights are read once
	require.NoError(t, err)
	return s, client
}

// noOpinion configures an authorization webhook that leaves every decision to the next authorizer.
func noOpinion(t *testing.T) *authz.WebhookConfiguration {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview"}`))
	}))
	t.Cleanup(server.Close)
	config := clientcmdapi.NewConfig()
	config.Clusters["webhook"] = &clientcmdapi.Cluster{Server: server.URL}
	config.Contexts["webhook"] = &clientcmdapi.Context{Cluster: "webhook"}
	config.CurrentContext = "webhook"
	file := filepath.Join(t.TempDir(), "webhook")
	require.NoError(t, clientcmd.WriteToFile(*config, file))
	long := metav1.Duration{Duration: time.Hour}
	return &authz.WebhookConfiguration{AuthorizedTTL: long, UnauthorizedTTL: long, Timeout: long,
		ConnectionInfo: authz.WebhookConnectionInfo{KubeConfigFile: &file}}
}

// from returns the stacks whose outermost package is one of these.
func from(stacks [][]entry, packages ...string) (some [][]entry) {
	for _, stack := range stacks {
		if slices.Contains(packages, stack[0].pkg) {
			some = append(some, stack)
		}
	}
	return some
}

// front is the package that a request enters first.
const front = "apiserver/conn"

func TestWays_Requests(t *testing.T) {
	tr := &trace{}
	_, client := tr.serve(t, servertest.Backend(t))
	pods := client.CoreV1().Pods(metav1.NamespaceDefault)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "web"}}}}
	_, err := client.CoreV1().LimitRanges(metav1.NamespaceDefault).Create(t.Context(),
		&corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Name: "limits"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	for _, request := range []struct {
		way string
		do  func() error
	}{
		{"POST", func() error {
			_, err := pods.Create(t.Context(), pod, metav1.CreateOptions{})
			return err
		}},
		{"GET", func() error {
			_, err := pods.Get(t.Context(), "web", metav1.GetOptions{})
			return err
		}},
		{"LIST", func() error {
			_, err := pods.List(t.Context(), metav1.ListOptions{})
			return err
		}},
		{"apply", func() error {
			_, err := pods.Patch(t.Context(), "web", types.ApplyYAMLPatchType,
				[]byte(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": {"app": "web"}}}`),
				metav1.PatchOptions{FieldManager: "test"})
			return err
		}},
	} {
		tr.start()
		require.NoError(t, request.do())
		documented(t, request.way, draw(from(tr.stop(), front, "storage")...))
	}
}

func secret(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	_, err := client.CoreV1().Secrets(metav1.NamespaceDefault).Create(t.Context(),
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "web"}}, metav1.CreateOptions{})
	require.NoError(t, err)
}

// One server writes an object, another one on the same backend sends the event.
func TestWays_WatchEvent(t *testing.T) {
	writer, reader, shared := &trace{}, &trace{}, servertest.Backend(t)
	_, client := writer.serve(t, shared)
	reader.start()
	_, watcher := reader.serve(t, shared)
	follow := slices.DeleteFunc(reader.stop(), func(s []entry) bool { return s[0].function != "Store.follow" })
	reader.start()
	watch, err := watcher.CoreV1().Secrets(metav1.NamespaceDefault).Watch(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	defer watch.Stop()
	writer.start()
	secret(t, client)
	<-watch.ResultChan()
	write := slices.DeleteFunc(from(writer.stop(), front), func(s []entry) bool { return s[len(s)-1].pkg != "storage" })
	documented(t, "watch event", draw(write...)+draw(follow...)+draw(from(reader.stop(), front)...))
}

func TestWays_WebhookCall(t *testing.T) {
	tr := &trace{}
	_, client := tr.serve(t, servertest.Backend(t))
	hook := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review map[string]any
		_ = json.NewDecoder(r.Body).Decode(&review) // an empty response fails the request
		request, _ := review["request"].(map[string]any)
		review["response"] = map[string]any{"uid": request["uid"], "allowed": true}
		_ = json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(hook.Close)
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: hook.Certificate().Raw})
	_, err := client.AdmissionregistrationV1().MutatingWebhookConfigurations().Create(t.Context(),
		&admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "hook"},
			Webhooks: []admissionregistrationv1.MutatingWebhook{{Name: "hook.example.com",
				ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: &hook.URL, CABundle: certificate},
				Rules: []admissionregistrationv1.RuleWithOperations{{
					Operations: []admissionregistrationv1.OperationType{"CREATE"},
					Rule: admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"},
						Resources: []string{"secrets"}}}},
				SideEffects: new(admissionregistrationv1.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"},
			}}}, metav1.CreateOptions{})
	require.NoError(t, err)
	tr.start()
	secret(t, client)
	documented(t, "webhook call", draw(slices.DeleteFunc(from(tr.stop(), front), func(stack []entry) bool {
		return len(stack) < 3 || !strings.HasPrefix(stack[2].pkg, "apiserver/admission")
	})...))
}

// A definition is created, and an object of its kind.
func TestWays_CustomResource(t *testing.T) {
	tr := &trace{}
	s, _ := tr.serve(t, servertest.Backend(t))
	client, err := dynamic.NewForConfig(s.Config)
	require.NoError(t, err)
	definitions := client.Resource(apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions"))
	sites := client.Resource(schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "sites"})
	create := func(objects dynamic.ResourceInterface, object string) {
		t.Helper()
		u := &unstructured.Unstructured{}
		require.NoError(t, u.UnmarshalJSON([]byte(object)))
		_, err := objects.Create(t.Context(), u, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	tr.start()
	create(definitions, `{"apiVersion": "apiextensions.k8s.io/v1",
		"kind": "CustomResourceDefinition", "metadata": {"name": "sites.example.com"}, "spec": {
			"group": "example.com", "scope": "Cluster", "names": {"kind": "Site", "plural": "sites"}, "versions": [{
				"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}]}}`)
	require.Eventually(t, func() bool { return slices.ContainsFunc(tr.kept(), writesStatus) }, time.Minute,
		time.Millisecond)
	definition := from(tr.stop(), front, "apiserver/crd")
	require.Eventually(t, func() bool {
		_, err := sites.List(t.Context(), metav1.ListOptions{})
		return err == nil
	}, time.Minute, time.Millisecond)
	tr.start()
	create(sites, `{"apiVersion": "example.com/v1", "kind": "Site", "metadata": {"name": "web"}}`)
	documented(t, "CRD", draw(definition...)+draw(from(tr.stop(), front)...))
}

// writesStatus reports whether a stack is that of a write of a definition's status.
func writesStatus(stack []entry) bool {
	return stack[0].pkg == "apiserver/crd" && stack[len(stack)-1].pkg == "storage"
}
