package webhook

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/admission/calls"
	"github.com/coxswain-dev/coxswain/apiserver/admission/match"
	"github.com/coxswain-dev/coxswain/apiserver/authn"
)

// configurations is a Cluster that has only webhooks.
type configurations struct {
	match.Cluster
	list    []api.Object
	changed int64
	lists   int
}

func (c *configurations) Changed(schema.GroupResource) int64 { return c.changed }

func (c *configurations) List(context.Context, schema.GroupResource, string, bool) ([]api.Object, error) {
	c.lists++
	return c.list, nil
}

func (c *configurations) Served(schema.GroupVersionKind) *api.Resource { return nil }

// configuration returns one with webhooks for Deployments and Pods.
func configuration(name string, webhooks ...string) *admissionv1.ValidatingWebhookConfiguration {
	c := &admissionv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
	rule := func(group, resource string) admissionv1.RuleWithOperations {
		return admissionv1.RuleWithOperations{Operations: []admissionv1.OperationType{"CREATE", "UPDATE"},
			Rule: admissionv1.Rule{APIGroups: []string{group}, APIVersions: []string{"v1"}, Resources: []string{resource}}}
	}
	for _, w := range webhooks {
		equivalent := admissionv1.Equivalent
		c.Webhooks = append(c.Webhooks, admissionv1.ValidatingWebhook{Name: w, MatchPolicy: &equivalent,
			NamespaceSelector: &metav1.LabelSelector{}, ObjectSelector: &metav1.LabelSelector{},
			Rules: []admissionv1.RuleWithOperations{rule("apps", "deployments"), rule("", "pods")}})
	}
	return c
}

func validatingOf(t testing.TB, c *configurations) *Validating {
	t.Helper()
	p, err := NewValidating(Options{Cluster: c, Log: calls.NewLog()})
	require.NoError(t, err)
	return p
}

func creation() *match.Attributes {
	return &match.Attributes{Operation: match.Create, Resource: corev1.SchemeGroupVersion.WithResource("configmaps"),
		Kind: corev1.SchemeGroupVersion.WithKind("ConfigMap"), Namespace: "default", Object: &corev1.ConfigMap{},
		User: &authn.User{}, DryRun: true}
}

func TestHooks_AreReadOnceForEachChange(t *testing.T) {
	t.Parallel()
	c := &configurations{changed: 7, list: []api.Object{configuration("b", "x", "y", "x"), configuration("a", "z")}}
	v := validatingOf(t, c)
	write := creation()
	write.Resource = corev1.SchemeGroupVersion.WithResource("pods")
	for range 3 {
		list, err := v.about(t.Context(), write)
		require.NoError(t, err)
		var uids []string
		for _, h := range list {
			uids = append(uids, h.uid)
		}
		require.Equal(t, []string{"a/z/0", "b/x/0", "b/y/0", "b/x/1"}, uids)
	}
	require.Equal(t, 1, c.lists)
	before, err := v.about(t.Context(), write)
	require.NoError(t, err)
	c.list, c.changed = c.list[:1], 8
	after, err := v.about(t.Context(), write)
	require.NoError(t, err)
	require.Equal(t, 2, c.lists)
	require.Len(t, after, 3)
	require.Same(t, before[1].hook, after[0].hook, "what has not changed is not compiled again")
	others, err := v.about(t.Context(), creation())
	require.NoError(t, err)
	require.Empty(t, others)
	c.changed = 0
	none, err := v.about(t.Context(), write)
	require.NoError(t, err)
	require.Empty(t, none)
}

// An older release may have stored webhooks with side effects. A dry run must not have them.
func TestHooks_WithSideEffectsAreNotCalledForDryRuns(t *testing.T) {
	t.Parallel()
	some, none := admissionv1.SideEffectClassSome, admissionv1.SideEffectClassNone
	for _, c := range []struct {
		effects *admissionv1.SideEffectClass
		ignore  bool
		code    int32
		words   string
	}{
		{&some, false, 400, `admission webhook "w" does not support dry run`},
		{&some, true, 400, `admission webhook "w" does not support dry run`},
		{nil, false, 500, `Internal error occurred: failed calling webhook "w": Webhook SideEffects is nil`},
		{nil, true, 0, ""},
		{&none, false, 500, `Internal error occurred: failed calling webhook "w": could not create admission objects: ` +
			`webhook does not accept known AdmissionReview versions (v1, v1beta1)`},
	} {
		changed := configuration("c", "w")
		w := &changed.Webhooks[0]
		w.Rules[0] = admissionv1.RuleWithOperations{Operations: []admissionv1.OperationType{"*"},
			Rule: admissionv1.Rule{APIGroups: []string{"*"}, APIVersions: []string{"*"}, Resources: []string{"*"}}}
		w.SideEffects = c.effects
		if c.ignore {
			policy := admissionv1.Ignore
			w.FailurePolicy = &policy
		}
		a := creation()
		a.Object, a.Audit, a.Warn = nil, func(string, string) {}, func(string) {}
		err := validatingOf(t, &configurations{changed: 1, list: []api.Object{changed}}).Validate(t.Context(), a)
		if c.words == "" {
			require.NoError(t, err)
			continue
		}
		require.EqualError(t, err, c.words)
		require.Equal(t, c.code, err.(apierrors.APIStatus).Status().Code)
	}
}

// BenchmarkHooks_NoMatch measures ten webhooks that do not match the write.
func BenchmarkHooks_NoMatch(b *testing.B) {
	c := &configurations{changed: 1}
	for i := range 10 {
		c.list = append(c.list, configuration(fmt.Sprint(i), "w.example.com"))
	}
	v := validatingOf(b, c)
	a := creation()
	b.ReportAllocs()
	for b.Loop() {
		if err := v.Validate(b.Context(), a); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkHooks_None measures a write if there are no webhooks.
func BenchmarkHooks_None(b *testing.B) {
	v := validatingOf(b, &configurations{})
	a := creation()
	b.ReportAllocs()
	for b.Loop() {
		if err := v.Validate(b.Context(), a); err != nil {
			b.Fatal(err)
		}
	}
}
