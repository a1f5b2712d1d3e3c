package envtest_test

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/coxswain-dev/coxswain/testenv/envtest"
	"github.com/coxswain-dev/coxswain/testenv/leak"
)

func TestMain(m *testing.M) {
	leak.VerifyTestMain(m,
		// controller-runtime's logger and klog's flusher live as long as the process.
		goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"),
		goleak.IgnoreTopFunction("k8s.io/apimachinery/pkg/watch.(*filteredWatch).loop"),
	)
}

// Boat is a kind with v2 as the hub; v1 can be converted to it.
type Boat struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
}

// DeepCopyObject implements runtime.Object.
func (b *Boat) DeepCopyObject() runtime.Object { c := *b; return &c }

type hub struct{ Boat }

// Hub marks the version that is stored.
func (*hub) Hub() {}

// DeepCopyObject implements runtime.Object.
func (b *hub) DeepCopyObject() runtime.Object { c := *b; return &c }

type spoke struct{ Boat }

// ConvertTo converts to the hub, and ConvertFrom from it.
func (*spoke) ConvertTo(any) error   { return nil }
func (*spoke) ConvertFrom(any) error { return nil }

// DeepCopyObject implements runtime.Object.
func (b *spoke) DeepCopyObject() runtime.Object { c := *b; return &c }

// A suite_test.go as kubebuilder generates it, with a manager, a webhook and a user, and only another import.
func TestEnvironment_RunsASuiteOfKubebuilder(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	types := runtime.NewScheme()
	require.NoError(t, scheme.AddToScheme(types))
	types.AddKnownTypeWithName(schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Boat"}, &spoke{})
	types.AddKnownTypeWithName(schema.GroupVersionKind{Group: "example.com", Version: "v2", Kind: "Boat"}, &hub{})
	testEnv := &envtest.Environment{
		CRDDirectoryPaths:     []string{filepath.Join("testdata", "crd")},
		ErrorIfCRDPathMissing: true,
		Scheme:                types,
		BinaryAssetsDirectory: filepath.Join("..", "..", "bin", "k8s"),
		WebhookInstallOptions: envtest.WebhookInstallOptions{Paths: []string{filepath.Join("testdata", "webhook")}},
	}
	testEnv.ControlPlane.GetAPIServer().Configure().Append("feature-gates", "Some=true").
		Append("disable-admission-plugins", "LimitRanger")
	cfg, err := testEnv.Start()
	require.NoError(t, err)
	require.NotNil(t, cfg)
	t.Cleanup(func() { assert.NoError(t, testEnv.Stop()) })
	require.Len(t, testEnv.CRDs, 2)

	hooks := &testEnv.WebhookInstallOptions
	mgr, err := ctrl.NewManager(cfg, ctrl.Options{
		Scheme: types,
		WebhookServer: webhook.NewServer(webhook.Options{Host: hooks.LocalServingHost, Port: hooks.LocalServingPort,
			CertDir: hooks.LocalServingCertDir}),
		LeaderElection: false,
		Metrics:        server.Options{BindAddress: "0"},
		Controller:     config.Controller{SkipNameValidation: new(true)},
	})
	require.NoError(t, err)
	mgr.GetWebhookServer().Register("/validate-configmaps", &admission.Webhook{Handler: admission.HandlerFunc(
		func(_ context.Context, r admission.Request) admission.Response {
			return admission.ValidationResponse(!strings.HasPrefix(r.Name, "bad"), "")
		})})
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, <-ended)
	})
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		require.NoError(c, mgr.GetWebhookServer().StartedChecker()(nil))
	}, time.Minute, 5*time.Millisecond)

	k8sClient, err := client.New(cfg, client.Options{Scheme: types})
	require.NoError(t, err)
	good := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "good"}}
	require.NoError(t, k8sClient.Create(ctx, good))
	bad := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "bad"}}
	require.True(t, apierrors.IsForbidden(k8sClient.Create(ctx, bad)))

	crd := &apiextensionsv1.CustomResourceDefinition{}
	require.NoError(t, apiextensionsv1.AddToScheme(types))
	require.NoError(t, k8sClient.Get(ctx, client.ObjectKey{Name: "boats.example.com"}, crd))
	require.Equal(t, apiextensionsv1.WebhookConverter, crd.Spec.Conversion.Strategy)
	require.NoError(t, k8sClient.Get(ctx, client.ObjectKey{Name: "rafts.example.com"}, crd))
	require.Equal(t, apiextensionsv1.NoneConverter, crd.Spec.Conversion.Strategy, "no Go type of it can be converted")
	raft := &unstructured.Unstructured{}
	raft.SetAPIVersion("example.com/v1")
	raft.SetKind("Raft")
	raft.SetName("a")
	require.NoError(t, k8sClient.Create(ctx, raft))
}

func TestAddUser_HasRightsOfItsOwn(t *testing.T) {
	t.Parallel()
	testEnv := &envtest.Environment{}
	_, err := testEnv.AddUser(envtest.User{Name: "jane"}, nil)
	require.ErrorContains(t, err, "does not run")
	_, err = testEnv.Start()
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, testEnv.Stop()) })
	jane, err := testEnv.AddUser(envtest.User{Name: "jane", Groups: []string{"team-a"}}, &rest.Config{QPS: 7, Burst: 7})
	require.NoError(t, err)
	require.EqualValues(t, 7, jane.Config().QPS)
	_, err = kubernetes.NewForConfigOrDie(jane.Config()).CoreV1().Secrets("default").List(t.Context(),
		metav1.ListOptions{})
	require.True(t, apierrors.IsForbidden(err), "%v", err)

	content, err := jane.KubeConfig()
	require.NoError(t, err)
	read, err := clientcmd.RESTConfigFromKubeConfig(content)
	require.NoError(t, err)
	require.Equal(t, jane.Config().CertData, read.CertData)
	testEnv.ControlPlane.KubectlPath = "/bin/echo"
	kubectl, err := jane.Kubectl()
	require.NoError(t, err)
	stdout, _, err := kubectl.Run("get", "pods")
	require.NoError(t, err)
	said, err := io.ReadAll(stdout)
	require.NoError(t, err)
	require.Regexp(t, `^--kubeconfig=\S+ get pods\n$`, string(said))
	require.Equal(t, testEnv.ControlPlane.APIServer.SecureServing.URL("https", "").String(), testEnv.Config.Host)
}

func TestUninstallCRDs_DeletesAllDefinitions(t *testing.T) {
	t.Parallel()
	testEnv := &envtest.Environment{}
	cfg, err := testEnv.Start()
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, testEnv.Stop()) })
	options := envtest.CRDInstallOptions{Paths: []string{"testdata/crd", "testdata/missing"}}
	for range 2 { // the second time they are updated
		crds, err := envtest.InstallCRDs(cfg, options)
		require.NoError(t, err)
		require.Len(t, crds, 2)
	}
	require.NoError(t, envtest.UninstallCRDs(cfg, options))
	require.NoError(t, envtest.UninstallCRDs(cfg, options), "those that are gone are no error")
	options.ErrorIfPathMissing = true
	_, err = envtest.InstallCRDs(cfg, options)
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestExistingCluster_IsUsedAndLeftRunning(t *testing.T) {
	t.Parallel()
	cluster := &envtest.Environment{}
	cfg, err := cluster.Start()
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, cluster.Stop()) })
	suite := &envtest.Environment{UseExistingCluster: new(true), Config: cfg,
		CRDInstallOptions: envtest.CRDInstallOptions{Paths: []string{"testdata/crd"}, CleanUpAfterUse: true}}
	_, err = suite.Start()
	require.NoError(t, err)
	require.NoError(t, suite.Stop())
	_, err = kubernetes.NewForConfigOrDie(cfg).CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
}
