package sites_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/coxswain-dev/coxswain/examples/operator/sites"
	"github.com/coxswain-dev/coxswain/examples/operator/sites/v1alpha1"
)

// start starts a control plane with the definition of Sites and the operator, and returns a client without a cache.
func start(t *testing.T) client.WithWatch { return startWith(t, rest.NoWarnings{}) }

// startWith does the same as start, with a handler of the warnings that the client receives.
func startWith(t *testing.T, handler rest.WarningHandler) client.WithWatch {
	t.Helper()
	cluster, hooks := startCluster(t, "../manifests/sites.example.com.yaml")
	scheme := runtime.NewScheme()
	require.NoError(t, clientgoscheme.AddToScheme(scheme))
	require.NoError(t, sites.AddToScheme(scheme))
	require.NoError(t, v1alpha1.AddToScheme(scheme))
	mgr, err := ctrl.NewManager(cluster, ctrl.Options{
		Scheme:  scheme,
		Metrics: server.Options{BindAddress: "0"},
		WebhookServer: webhook.NewServer(webhook.Options{Host: hooks.Host, Port: hooks.Port, CertDir: hooks.CertDir,
			WebhookMux: http.NewServeMux()}),
		Controller: config.Controller{SkipNameValidation: new(true)}, // each test has an operator
	})
	require.NoError(t, err)
	require.NoError(t, sites.Register(mgr))
	require.NoError(t, sites.RegisterWebhooks(mgr))
	cluster = rest.CopyConfig(cluster)
	cluster.WarningHandler = handler
	c, err := client.NewWithWatch(cluster, client.Options{Scheme: scheme})
	require.NoError(t, err)
	require.NoError(t, sites.Install(t.Context(), c, fmt.Sprintf("https://%s:%d", hooks.Host, hooks.Port), hooks.CAData))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	t.Cleanup(func() {
		stop()
		assert.NoError(t, <-ended)
	})
	soon(t, func(t *assert.CollectT) { require.NoError(t, mgr.GetWebhookServer().StartedChecker()(nil)) })
	return c
}

func site(name, domain string) *sites.Site {
	return &sites.Site{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec:       sites.SiteSpec{Domain: domain, Pages: map[string]string{"index.html": "<h1>Hello</h1>"}},
	}
}

// await waits until the site's condition Ready has a reason and the site's current generation.
func await(t *testing.T, c client.Client, s *sites.Site, reason string) {
	t.Helper()
	soon(t, func(t *assert.CollectT) {
		require.NoError(t, c.Get(context.Background(), client.ObjectKeyFromObject(s), s))
		ready := meta.FindStatusCondition(s.Status.Conditions, sites.Ready)
		require.NotNil(t, ready)
		require.Equal(t, reason, ready.Reason, ready.Message)
		require.Equal(t, s.Generation, ready.ObservedGeneration)
		require.Equal(t, s.Generation, s.Status.ObservedGeneration)
	})
}

// soon waits until a check of the cluster succeeds.
func soon(t *testing.T, check func(t *assert.CollectT)) {
	t.Helper()
	require.EventuallyWithT(t, check, time.Minute, 10*time.Millisecond)
}

func TestSite_IsServedAndScaledAndDeleted(t *testing.T) {
	t.Parallel()
	c, ctx := start(t), t.Context()
	blog := site("blog", "blog.example.org")
	require.NoError(t, c.Create(ctx, blog))
	require.EqualValues(t, 1, *blog.Spec.Replicas, "by default")
	require.Equal(t, "nginx:1.29", blog.Spec.Image, "by default")
	await(t, c, blog, sites.ReasonServing)
	require.EqualValues(t, 1, blog.Status.ReadyReplicas)

	key := client.ObjectKeyFromObject(blog)
	var deployment appsv1.Deployment
	require.NoError(t, c.Get(ctx, key, &deployment))
	require.True(t, metav1.IsControlledBy(&deployment, blog))
	require.EqualValues(t, 1, deployment.Status.ReadyReplicas)
	oldPages := deployment.Spec.Template.Annotations

	scale := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"replicas":3}}`))
	require.NoError(t, c.SubResource("scale").Patch(ctx, blog.DeepCopy(), scale))
	soon(t, func(t *assert.CollectT) {
		require.NoError(t, c.Get(ctx, key, blog))
		require.EqualValues(t, 3, blog.Status.ReadyReplicas)
	})
	newPages := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"pages":{"about.html":"me"}}}`))
	require.NoError(t, c.Patch(ctx, blog, newPages))
	await(t, c, blog, sites.ReasonServing)
	require.NoError(t, c.Get(ctx, key, &deployment))
	require.NotEqual(t, oldPages, deployment.Spec.Template.Annotations, "new pages are rolled out")
	requireEvent(t, c, blog, sites.ReasonServing)

	require.NoError(t, c.Delete(ctx, blog))
	soon(t, func(t *assert.CollectT) {
		require.True(t, apierrors.IsNotFound(c.Get(ctx, key, &sites.Site{})))
		require.True(t, apierrors.IsNotFound(c.Get(ctx, key, &appsv1.Deployment{})), "the garbage collector deletes it")
		var pods corev1.PodList
		require.NoError(t, c.List(ctx, &pods, client.InNamespace("default")))
		require.Empty(t, pods.Items)
	})
	var directory corev1.ConfigMap
	require.NoError(t, c.Get(ctx, sites.Directory, &directory))
	require.Empty(t, directory.Data, "the finalizer has released the domain")
	requireEvent(t, c, blog, "Released")
}

// A second site with the same domain waits until the first one is deleted.
func TestSite_WaitsForItsDomain(t *testing.T) {
	t.Parallel()
	c, ctx := start(t), t.Context()
	first, second := site("first", "shop.example.org"), site("second", "shop.example.org")
	require.NoError(t, c.Create(ctx, first))
	await(t, c, first, sites.ReasonServing)
	require.NoError(t, c.Create(ctx, second))
	await(t, c, second, sites.ReasonDomainTaken)
	requireEvent(t, c, second, sites.ReasonDomainTaken)
	require.True(t, apierrors.IsNotFound(c.Get(ctx, client.ObjectKeyFromObject(second), &appsv1.Deployment{})))

	require.NoError(t, c.Delete(ctx, first))
	await(t, c, second, sites.ReasonServing)
	var directory corev1.ConfigMap
	require.NoError(t, c.Get(ctx, sites.Directory, &directory))
	require.Equal(t, map[string]string{"shop.example.org": "default/second"}, directory.Data)
}

// The definition rejects invalid sites without the operator.
func TestSite_DefinitionRejectsInvalidSites(t *testing.T) {
	t.Parallel()
	c, ctx := start(t), t.Context()
	for message, change := range map[string]func(*sites.Site){
		"a site begins with index.html":      func(s *sites.Site) { s.Spec.Pages = map[string]string{"about.html": ""} },
		"the names of pages end in .html":    func(s *sites.Site) { s.Spec.Pages["run.sh"] = "" },
		"should be less than or equal to 10": func(s *sites.Site) { s.Spec.Replicas = new(int32(11)) },
		"should match":                       func(s *sites.Site) { s.Spec.Domain = "no domain" },
	} {
		s := site("bad", "bad.example.org")
		change(s)
		err := c.Create(ctx, s)
		require.True(t, apierrors.IsInvalid(err), "%v", err)
		require.ErrorContains(t, err, message)
	}
	blog := site("blog", "blog.example.org")
	require.NoError(t, c.Create(ctx, blog))
	err := c.Patch(ctx, blog, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"domain":"b.example.org"}}`)))
	require.True(t, apierrors.IsInvalid(err), "%v", err)
	require.ErrorContains(t, err, "a site keeps its domain, blog.example.org")
}

// The API server rejects a write that is based on an old state of the site.
func TestSite_OldStateConflicts(t *testing.T) {
	t.Parallel()
	c, ctx := start(t), t.Context()
	blog := site("blog", "blog.example.org")
	require.NoError(t, c.Create(ctx, blog))
	old := blog.DeepCopy()
	await(t, c, blog, sites.ReasonServing) // the operator has written meanwhile
	old.Spec.Image = "nginx:1.30"
	err := c.Update(ctx, old)
	require.True(t, apierrors.IsConflict(err), "%v", err)
}

// requireEvent waits for an Event about a site.
func requireEvent(t *testing.T, c client.Client, s *sites.Site, reason string) {
	t.Helper()
	soon(t, func(t *assert.CollectT) {
		var events eventsv1.EventList
		require.NoError(t, c.List(context.Background(), &events, client.InNamespace(s.Namespace)))
		var reasons []string
		for _, e := range events.Items {
			if e.Regarding.UID == s.UID {
				reasons = append(reasons, e.Reason)
			}
		}
		require.Contains(t, reasons, reason, fmt.Sprint(reasons))
	})
}
