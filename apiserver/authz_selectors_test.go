package apiserver_test

import (
	"encoding/pem"
	"net/http"
	"net/url"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/coxswain-dev/coxswain/api/builtin"
	"github.com/coxswain-dev/coxswain/apiserver"
	"github.com/coxswain-dev/coxswain/apiserver/authz"
)

// TestAuthorizationWebhook_SeesSelectors configures a webhook that lets users read and delete objects with their team's
// label (KEP-4601), and is not called for configmaps without a label selector.
func TestAuthorizationWebhook_SeesSelectors(t *testing.T) {
	t.Parallel()
	o := startOpinions(t)
	o.answer = func(spec authorizationv1.SubjectAccessReviewSpec) (s authorizationv1.SubjectAccessReviewStatus) {
		on := spec.ResourceAttributes
		s.Allowed = on != nil && on.LabelSelector != nil && reflect.DeepEqual(on.LabelSelector.Requirements[0],
			metav1.LabelSelectorRequirement{Key: "team", Operator: "In", Values: []string{"red"}})
		return s
	}
	options := o.asked(t, clocktesting.NewFakePassiveClock(time.Now()),
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: o.Certificate().Raw}), "Webhook", "RBAC")
	options.Configuration.Authorizers[0].Webhook.MatchConditions = []authz.WebhookMatchCondition{
		{Expression: "!has(request.resourceAttributes) || request.resourceAttributes.resource != 'configmaps' || " +
			"has(request.resourceAttributes.labelSelector) && " +
			"request.resourceAttributes.labelSelector.requirements.exists(r, r.key == 'team' && r.values == ['red'])"}}
	a := assemble(t, builtin.Kinds(), apiserver.Options{Authorization: options})
	jane := a.as("jane")
	selected := func(selector string) string { return configMaps + "?labelSelector=" + url.QueryEscape(selector) }
	forbidden := func(r *answer) { r.refused(http.StatusForbidden, metav1.StatusReasonForbidden, "configmaps") }
	for _, selector := range []string{"team=red", "team==red", "team in (red)", "team=red,level>1"} {
		jane.get(selected(selector)).ok(http.StatusOK)
	}
	jane.watch(selected("team=red") + "&watch=true")
	jane.do(http.MethodDelete, selected("team=red"), nil).ok(http.StatusOK)
	before := o.questions("jane")
	for _, selector := range []string{"", "team=blue", "team", "!team", "team>1", "=", "team in (red,blue)"} {
		forbidden(jane.get(selected(selector)))
	}
	forbidden(jane.get(configMaps + "/a?labelSelector=team%3Dred"))
	require.Equal(t, before, o.questions("jane"), "the conditions decide whether the webhook is called")

	review := func(selector m) bool {
		t.Helper()
		return jane.do(http.MethodPost, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", m{
			"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
			"spec": m{"resourceAttributes": m{"verb": "list", "resource": "pods", "labelSelector": selector}},
		}).ok(http.StatusCreated).at("status", "allowed") == true
	}
	require.True(t, review(m{"rawSelector": "team=red"}))
	require.True(t, review(m{"requirements": []m{{"key": "team", "operator": "In", "values": []string{"red"}}}}))
	require.True(t, review(m{"requirements": []m{{"key": "team", "operator": "Sideways"},
		{"key": "team", "operator": "In", "values": []string{"red"}}}}), "a requirement that is not understood narrows nothing")
	require.False(t, review(m{"rawSelector": "team=blue"}))
	require.False(t, review(m{"rawSelector": "???"}))
}
