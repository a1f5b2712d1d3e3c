package sites_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coxswain-dev/coxswain/examples/operator/sites"
	"github.com/coxswain-dev/coxswain/examples/operator/sites/v1alpha1"
)

func TestWebhook_DefaultsTheDomain(t *testing.T) {
	t.Parallel()
	c := start(t)
	blog := site("blog", "")
	require.NoError(t, c.Create(t.Context(), blog))
	require.Equal(t, "blog.default.example.org", blog.Spec.Domain)
	await(t, c, blog, sites.ReasonServing)
}

func TestWebhook_ProtectsFromDeletion(t *testing.T) {
	t.Parallel()
	c, ctx := start(t), t.Context()
	blog := site("blog", "blog.example.org")
	blog.Annotations = map[string]string{sites.Protected: "true"}
	require.NoError(t, c.Create(ctx, blog))
	err := c.Delete(ctx, blog)
	require.True(t, apierrors.IsForbidden(err), "%v", err)
	require.ErrorContains(t, err, `admission webhook "validate.sites.example.com" denied the request: `+
		`sites.example.com "blog" is forbidden: it is protected: remove the annotation example.com/protected first`)
	remove := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"annotations":null}}`))
	require.NoError(t, c.Patch(ctx, blog, remove))
	require.NoError(t, c.Delete(ctx, blog))
}

// warnings collects the warnings that a client receives.
type warnings struct{ received chan string }

// HandleWarningHeader implements rest.WarningHandler.
func (w warnings) HandleWarningHeader(_ int, _ string, text string) { w.received <- text }

func TestWebhook_WarnsOfTakenDomain(t *testing.T) {
	t.Parallel()
	handler := warnings{make(chan string, 10)}
	c, ctx := startWith(t, handler), t.Context()
	first := site("first", "shop.example.org")
	require.NoError(t, c.Create(ctx, first))
	await(t, c, first, sites.ReasonServing)
	require.Empty(t, handler.received)
	require.NoError(t, c.Create(ctx, site("second", "shop.example.org")))
	select {
	case warning := <-handler.received:
		require.Equal(t, "shop.example.org belongs to the site default/first: this one waits for it", warning)
	default:
		t.Fatal("no warning")
	}
}

// Both versions are views of one object.
func TestWebhook_ConvertsVersions(t *testing.T) {
	t.Parallel()
	c, ctx := start(t), t.Context()
	old := &v1alpha1.Site{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "old"}, Spec: v1alpha1.SiteSpec{
		Host: "old.example.org", Pages: []v1alpha1.Page{{Name: "index.html", Content: "hello"}},
		Servers: v1alpha1.Servers{Count: new(int32(2))}}}
	require.NoError(t, c.Create(ctx, old))
	require.Equal(t, "nginx:1.29", old.Spec.Servers.Image, "by the default of v1")

	current := site("old", "")
	await(t, c, current, sites.ReasonServing)
	require.Equal(t, "old.example.org", current.Spec.Domain)
	require.Equal(t, map[string]string{"index.html": "hello"}, current.Spec.Pages)
	require.EqualValues(t, 2, *current.Spec.Replicas)

	add := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"pages":{"about.html":"me"}}}`))
	require.NoError(t, c.Patch(ctx, current, add))
	require.NoError(t, c.Get(ctx, client.ObjectKeyFromObject(old), old))
	require.Equal(t, []v1alpha1.Page{{Name: "about.html", Content: "me"}, {Name: "index.html", Content: "hello"}},
		old.Spec.Pages)

	move := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"host":"new.example.org"}}`))
	require.ErrorContains(t, c.Patch(ctx, old, move), "a site keeps its host, old.example.org") // also if the object changes meanwhile
}
