package controlplane_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	admissionclient "k8s.io/client-go/kubernetes/typed/admissionregistration/v1"
	"k8s.io/client-go/util/retry"

	"github.com/coxswain-dev/coxswain/apiserver"
	"github.com/coxswain-dev/coxswain/storage"
	"github.com/coxswain-dev/coxswain/testenv/servertest"
)

const (
	// patience is how long a test waits for a server, and tick how often it looks.
	patience = time.Minute
	tick     = 5 * time.Millisecond
)

func on(group, version string, resources ...string) admissionv1.NamedRuleWithOperations {
	return admissionv1.NamedRuleWithOperations{RuleWithOperations: admissionv1.RuleWithOperations{
		Operations: []admissionv1.OperationType{admissionv1.OperationAll},
		Rule:       admissionv1.Rule{APIGroups: []string{group}, APIVersions: []string{version}, Resources: resources},
	}}
}

var (
	onDeployments = on("apps", "v1", "deployments")
	onPods        = on("", "v1", "pods")
)

func checking(name string, expressions []string,
	rules ...admissionv1.NamedRuleWithOperations) *admissionv1.ValidatingAdmissionPolicy {
	p := &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
	p.Spec.MatchConstraints = &admissionv1.MatchResources{ResourceRules: rules}
	for _, e := range expressions {
		p.Spec.Validations = append(p.Spec.Validations, admissionv1.Validation{Expression: e})
	}
	return p
}

// policiesOf starts a server and returns a client of its policies.
func policiesOf(t *testing.T, o apiserver.Options) admissionclient.ValidatingAdmissionPolicyInterface {
	t.Helper()
	return servertest.Start(t, o).Client(t).AdmissionregistrationV1().ValidatingAdmissionPolicies()
}

// typeChecked waits until a policy's spec has been checked, and returns the policy.
func typeChecked(t *testing.T, policies admissionclient.ValidatingAdmissionPolicyInterface,
	name string) (p *admissionv1.ValidatingAdmissionPolicy) {
	t.Helper()
	require.Eventually(t, func() bool {
		var err error
		p, err = policies.Get(t.Context(), name, metav1.GetOptions{})
		require.NoError(t, err)
		return p.Status.ObservedGeneration == p.Generation
	}, patience, tick)
	require.NotNil(t, p.Status.TypeChecking)
	return p
}

func TestTypeCheck_ChecksTheNamedKinds(t *testing.T) {
	t.Parallel()
	policies := policiesOf(t, apiserver.Options{})
	type of = []admissionv1.NamedRuleWithOperations
	for name, c := range map[string]struct {
		rules       of
		params      string // a kind of v1
		variables   []admissionv1.Variable
		expressions []string
		says        string
		warnings    []admissionv1.ExpressionWarning
	}{
		"good": {rules: of{onDeployments}, expressions: []string{
			"object.spec.replicas <= 5 && oldObject == null",
			"object.spec.template.spec.containers.all(c, c.image.startsWith('x/') && " +
				"!has(c.securityContext.privileged))",
			"object.metadata.namespace == request.namespace && object.metadata.labels['app'] == 'web' && 'a' in " +
				"object.metadata.annotations",
			"object.spec.template.spec.containers.all(c, " +
				"quantity(c.resources.limits['memory']).isLessThan(quantity('1Gi')))",
			"object.spec.strategy.rollingUpdate.maxSurge == 1 || object.spec.strategy.rollingUpdate.maxSurge == '25%'",
			"object.metadata.managedFields.all(f, has(f.fieldsV1) && f.fieldsV1['f:spec'] != null && f.time < " +
				"timestamp('2030-01-01T00:00:00Z'))",
			"object.?metadata.?labels['a-b'].orValue('') == '' || authorizer.requestResource.check('x').allowed()",
		}},
		"a field of another kind": {rules: of{onDeployments}, expressions: []string{"true", "object.replicas > 1"},
			warnings: []admissionv1.ExpressionWarning{{
				FieldRef: "spec.validations[1].expression",
				Warning: "apps/v1, Kind=Deployment: ERROR: <input>:1:7: undefined field 'replicas'\n | " +
					"object.replicas > 1\n | ......^\n",
			}}},
		"several kinds, in their order": {rules: of{onPods, on("apps", "v1", "replicasets", "deployments")},
			expressions: []string{"object.spec.replicas > 1", "object.replicas > 1"},
			warnings: []admissionv1.ExpressionWarning{{
				FieldRef: "spec.validations[0].expression",
				Warning: "/v1, Kind=Pod: ERROR: <input>:1:12: undefined field 'replicas'\n | object.spec.replicas > " +
					"1\n | ...........^\n",
			}, {
				FieldRef: "spec.validations[1].expression",
				Warning: "/v1, Kind=Pod: ERROR: <input>:1:7: undefined field 'replicas'\n | object.replicas > 1\n | " +
					"......^\n\n" +
					"apps/v1, Kind=Deployment: ERROR: <input>:1:7: undefined field 'replicas'\n | object.replicas > " +
					"1\n | ......^\n\n" +
					"apps/v1, Kind=ReplicaSet: ERROR: <input>:1:7: undefined field 'replicas'\n | object.replicas > " +
					"1\n | ......^\n",
			}}},
		"types that do not fit": {rules: of{onPods}, expressions: []string{"object.spec.hostNetwork == 'no'"},
			warnings: []admissionv1.ExpressionWarning{{
				FieldRef: "spec.validations[0].expression",
				Warning: "/v1, Kind=Pod: ERROR: <input>:1:25: found no matching overload for '_==_' applied to " +
					"'(bool, string)'\n | object.spec.hostNetwork == 'no'\n | ........................^\n",
			}}},
		"a message": {rules: of{onPods}, expressions: []string{"true"}, says: "'not ' + object.spec.nodename",
			warnings: []admissionv1.ExpressionWarning{{
				FieldRef: "spec.validations[0].messageExpression",
				Warning: "/v1, Kind=Pod: ERROR: <input>:1:21: undefined field 'nodename'\n | 'not ' + " +
					"object.spec.nodename\n | ....................^\n",
			}}},
		"variables": {rules: of{onPods}, expressions: []string{"variables.n == 'x'", "variables.bad"},
			variables: []admissionv1.Variable{
				{Name: "n", Expression: "object.spec.containers[0].stdin"},
				{Name: "bad", Expression: "object.spec.replicas > 1"},
			}, warnings: []admissionv1.ExpressionWarning{{
				FieldRef: "spec.validations[0].expression",
				Warning: "/v1, Kind=Pod: ERROR: <input>:1:13: found no matching overload for '_==_' applied to " +
					"'(bool, string)'\n | variables.n == 'x'\n | ............^\n",
			}}},
		"params": {rules: of{onPods}, params: "ConfigMap",
			expressions: []string{"params.data.max == object.metadata.name", "params.spec.max == 1"},
			warnings: []admissionv1.ExpressionWarning{{
				FieldRef: "spec.validations[1].expression",
				Warning: "/v1, Kind=Pod: ERROR: <input>:1:7: undefined field 'spec'\n | params.spec.max == 1\n | " +
					"......^\n",
			}}},
		"params of the same name": {rules: of{on("events.k8s.io", "v1", "events")}, params: "Event",
			expressions: []string{"object.note == params.message"}},
		"params of an unknown kind": {rules: of{onPods}, params: "Limit",
			expressions: []string{"params.max == 1 && object.spec.nodeName == params.node"}},
		"wildcards": {rules: of{on("apps", "*", "deployments"), on("*", "v1", "deployments"),
			on("apps", "v1", "*"), on("apps", "v1", "deployments/scale"), on("apps", "v1", "*/status")},
			expressions: []string{"object.nothing == 1"}},
		"a wildcard among resources": {rules: of{on("apps", "v1", "deployments", "statefulsets/scale")},
			expressions: []string{"object.nothing == 1"},
			warnings: []admissionv1.ExpressionWarning{{FieldRef: "spec.validations[0].expression",
				Warning: "apps/v1, Kind=Deployment: ERROR: <input>:1:7: undefined field 'nothing'\n | " +
					"object.nothing == 1\n | ......^\n"}}},
		"kinds that are not served": {rules: of{on("example.com", "v1", "widgets"), on("apps", "v2", "deployments")},
			expressions: []string{"object.nothing == 1"}},
		"another version of the kind": {rules: of{on("autoscaling", "v1", "horizontalpodautoscalers"),
			on("autoscaling", "v2", "horizontalpodautoscalers")},
			expressions: []string{"object.spec.metrics[0].type == 'Resource'"},
			warnings: []admissionv1.ExpressionWarning{{FieldRef: "spec.validations[0].expression",
				Warning: "autoscaling/v1, Kind=HorizontalPodAutoscaler: ERROR: <input>:1:12: undefined field " +
					"'metrics'\n | object.spec.metrics[0].type == 'Resource'\n | ...........^\n"}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := checking("", c.expressions, c.rules...)
			p.GenerateName, p.Spec.Variables, p.Spec.Validations[0].MessageExpression = "p-", c.variables, c.says
			if c.params != "" {
				p.Spec.ParamKind = &admissionv1.ParamKind{APIVersion: "v1", Kind: c.params}
			}
			p, err := policies.Create(t.Context(), p, metav1.CreateOptions{})
			require.NoError(t, err)
			require.Equal(t, c.warnings, typeChecked(t, policies, p.Name).Status.TypeChecking.ExpressionWarnings)
		})
	}
}

// The first ten kinds are enough.
func TestTypeCheck_ChecksTenKindsAtMost(t *testing.T) {
	t.Parallel()
	policies := policiesOf(t, apiserver.Options{})
	p := checking("many", []string{"object.nothing == 1"},
		on("", "v1", "services", "pods", "configmaps", "secrets", "nodes", "pods"), onPods,
		on("apps", "v1", "deployments", "replicasets", "statefulsets", "daemonsets", "controllerrevisions"),
		on("batch", "v1", "jobs"))
	_, err := policies.Create(t.Context(), p, metav1.CreateOptions{})
	require.NoError(t, err)
	warnings := typeChecked(t, policies, "many").Status.TypeChecking.ExpressionWarnings
	require.Len(t, warnings, 1)
	for _, kind := range []string{"ConfigMap", "Node", "Pod", "Secret", "Service", "ControllerRevision", "DaemonSet",
		"Deployment", "ReplicaSet", "StatefulSet"} {
		require.Contains(t, warnings[0].Warning, "Kind="+kind+": ERROR")
	}
	require.NotContains(t, warnings[0].Warning, "Kind=Job")
}

func TestTypeCheck_FollowsTheSpec(t *testing.T) {
	t.Parallel()
	policies := policiesOf(t, apiserver.Options{})
	_, err := policies.Create(t.Context(), checking("few", []string{"object.spec.replicas <= 5"}, onDeployments),
		metav1.CreateOptions{})
	require.NoError(t, err)
	p := typeChecked(t, policies, "few")
	require.Empty(t, p.Status.TypeChecking.ExpressionWarnings)
	require.EqualValues(t, 1, p.Generation, "a status is not a spec")

	edit := func(change func(*admissionv1.ValidatingAdmissionPolicy),
		write func(context.Context, *admissionv1.ValidatingAdmissionPolicy, metav1.UpdateOptions) (
			*admissionv1.ValidatingAdmissionPolicy, error)) *admissionv1.ValidatingAdmissionPolicy {
		t.Helper()
		var after *admissionv1.ValidatingAdmissionPolicy
		require.NoError(t, retry.RetryOnConflict(retry.DefaultRetry, func() error {
			p, err := policies.Get(t.Context(), "few", metav1.GetOptions{})
			require.NoError(t, err)
			change(p)
			after, err = write(t.Context(), p, metav1.UpdateOptions{})
			return err
		}))
		return after
	}
	edit(func(p *admissionv1.ValidatingAdmissionPolicy) {
		p.Spec.Validations[0].Expression = "object.spec.replica <= 5"
	}, policies.Update)
	p = typeChecked(t, policies, "few")
	require.EqualValues(t, 2, p.Generation)
	require.Len(t, p.Status.TypeChecking.ExpressionWarnings, 1)
	require.Contains(t, p.Status.TypeChecking.ExpressionWarnings[0].Warning, "undefined field 'replica'")

	edit(func(p *admissionv1.ValidatingAdmissionPolicy) {
		p.Spec.Validations[0].Expression = "object.spec.replicas <= 6"
	}, policies.Update)
	require.Empty(t, typeChecked(t, policies, "few").Status.TypeChecking.ExpressionWarnings)

	// A policy that another server has checked is left alone.
	theirs := []admissionv1.ExpressionWarning{{FieldRef: "spec.validations[0].expression", Warning: "theirs"}}
	seen := edit(func(p *admissionv1.ValidatingAdmissionPolicy) {
		p.Status.TypeChecking.ExpressionWarnings = theirs
	}, policies.UpdateStatus)
	require.Equal(t, theirs, seen.Status.TypeChecking.ExpressionWarnings)
	_, err = policies.Create(t.Context(), checking("next", []string{"true"}, onPods), metav1.CreateOptions{})
	require.NoError(t, err)
	typeChecked(t, policies, "next") // so that the change of the first has been seen
	require.Equal(t, seen.ResourceVersion, typeChecked(t, policies, "few").ResourceVersion)
	// Until its status shows that no server has.
	edit(func(p *admissionv1.ValidatingAdmissionPolicy) { p.Status.ObservedGeneration = 0 }, policies.UpdateStatus)
	require.Empty(t, typeChecked(t, policies, "few").Status.TypeChecking.ExpressionWarnings)
}

// Of two servers one writes, once.
func TestTypeCheck_OneServerWrites(t *testing.T) {
	t.Parallel()
	o := apiserver.Options{Store: servertest.Store(t, servertest.Backend(t), storage.Options{})}
	first, second := policiesOf(t, o), policiesOf(t, o)
	none, err := first.List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	events, err := first.Watch(t.Context(), metav1.ListOptions{ResourceVersion: none.ResourceVersion})
	require.NoError(t, err)
	defer events.Stop()
	expect := func(kind watch.EventType, name string) {
		t.Helper()
		e := <-events.ResultChan()
		require.Equal(t, kind, e.Type)
		require.Equal(t, name, e.Object.(*admissionv1.ValidatingAdmissionPolicy).Name)
	}
	for _, name := range []string{"a", "b", "c"} {
		_, err := second.Create(t.Context(), checking(name, []string{"object.nothing == 1"}, onPods),
			metav1.CreateOptions{})
		require.NoError(t, err)
		expect(watch.Added, name)
		expect(watch.Modified, name)
	}
	require.NoError(t, second.Delete(t.Context(), "a", metav1.DeleteOptions{}))
	expect(watch.Deleted, "a")
}

// refusing is a backend that rejects the first update of an object.
type refusing struct {
	storage.Backend
	name    string
	refused sync.Once
	done    chan struct{}
}

func (b *refusing) Commit(ctx context.Context, writes []storage.Write) (out *storage.Outcome, err error) {
	if writes[0].Op == storage.Update && writes[0].Key.Name == b.name {
		b.refused.Do(func() {
			close(b.done)
			err = storage.ErrUnavailable
		})
	}
	if err != nil {
		return nil, err
	}
	return b.Backend.Commit(ctx, writes)
}

// A status that could not be written is written later.
func TestTypeCheck_RepeatsFailedWrites(t *testing.T) {
	t.Parallel()
	backend := &refusing{Backend: servertest.Backend(t), name: "late", done: make(chan struct{})}
	policies := policiesOf(t, apiserver.Options{Store: servertest.Store(t, backend, storage.Options{})})
	_, err := policies.Create(t.Context(), checking("late", []string{"true"}, onPods), metav1.CreateOptions{})
	require.NoError(t, err)
	<-backend.done
	// Any change brings it back, as the next minute would.
	_, err = policies.Patch(t.Context(), "late", types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`),
		metav1.PatchOptions{})
	require.NoError(t, err)
	require.Empty(t, typeChecked(t, policies, "late").Status.TypeChecking.ExpressionWarnings)
}
