package flowcontrol

import (
	"testing"

	"github.com/stretchr/testify/require"
	flowv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"
)

// mandatory returns the objects that every Dispatcher has: exempt for system:masters, catch-all for the rest.
func mandatory(t testing.TB) ([]*flowv1.PriorityLevelConfiguration, []*flowv1.FlowSchema) {
	return []*flowv1.PriorityLevelConfiguration{exemptLevel(), limited("catch-all", 5, 0, nil)},
		[]*flowv1.FlowSchema{
			parse(t, `{metadata: {name: exempt}, spec: {matchingPrecedence: 1, priorityLevelConfiguration: {name: exempt}, rules: [
				{subjects: [{kind: Group, group: {name: "system:masters"}}],
				resourceRules: [{verbs: ["*"], apiGroups: ["*"], resources: ["*"], clusterScope: true, namespaces: ["*"]}],
				nonResourceRules: [{verbs: ["*"], nonResourceURLs: ["*"]}]}]}}`),
			parse(t, `{metadata: {name: catch-all}, spec: {matchingPrecedence: 10000, priorityLevelConfiguration: {name: catch-all},
				distinguisherMethod: {type: ByUser}, rules: []}}`),
		}
}

func exemptLevel() *flowv1.PriorityLevelConfiguration {
	return &flowv1.PriorityLevelConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "exempt"},
		Spec: flowv1.PriorityLevelConfigurationSpec{
			Type: flowv1.PriorityLevelEnablementExempt, Exempt: &flowv1.ExemptPriorityLevelConfiguration{
				NominalConcurrencyShares: ptr.To[int32](0), LendablePercent: ptr.To[int32](0),
			},
		}}
}

// limited returns a level that queues, or rejects if q is nil.
func limited(name string, shares, lendable int32, q *flowv1.QueuingConfiguration) *flowv1.PriorityLevelConfiguration {
	l := &flowv1.LimitedPriorityLevelConfiguration{NominalConcurrencyShares: &shares, LendablePercent: &lendable}
	l.LimitResponse.Type = flowv1.LimitResponseTypeReject
	if q != nil {
		l.LimitResponse = flowv1.LimitResponse{Type: flowv1.LimitResponseTypeQueue, Queuing: q}
	}
	return &flowv1.PriorityLevelConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: flowv1.PriorityLevelConfigurationSpec{Type: flowv1.PriorityLevelEnablementLimited, Limited: l}}
}

func parse(t testing.TB, text string) *flowv1.FlowSchema {
	t.Helper()
	s := &flowv1.FlowSchema{}
	require.NoError(t, yaml.UnmarshalStrict([]byte(text), s))
	return s
}

// The schemas come from Kubernetes' documentation; others test one rule each.
func TestClassify(t *testing.T) {
	t.Parallel()
	schema := func(name string, precedence, subjects, rules string) *flowv1.FlowSchema {
		return parse(t, `{metadata: {name: `+name+`, uid: `+name+`}, spec: {matchingPrecedence: `+precedence+`, priorityLevelConfiguration: {name: low},
			distinguisherMethod: {type: ByUser}, rules: [{subjects: [`+subjects+`], `+rules+`}]}}`)
	}
	const (
		all    = `resourceRules: [{verbs: ["*"], apiGroups: ["*"], resources: ["*"], clusterScope: true, namespaces: ["*"]}], nonResourceRules: [{verbs: ["*"], nonResourceURLs: ["*"]}]`
		anyone = `{kind: Group, group: {name: "system:unauthenticated"}}, {kind: Group, group: {name: "system:authenticated"}}`
	)
	schemas := []*flowv1.FlowSchema{
		// https://kubernetes.io/docs/concepts/cluster-administration/flow-control/#immunity-for-probe-requests
		schema("health-for-strangers", "1000", `{kind: Group, group: {name: "system:unauthenticated"}}`,
			`nonResourceRules: [{nonResourceURLs: ["/healthz", "/livez", "/readyz"], verbs: ["*"]}]`),
		// https://kubernetes.io/docs/concepts/cluster-administration/flow-control/#flowschema: the list-events example
		schema("list-events-default-service-account", "8000",
			`{kind: ServiceAccount, serviceAccount: {name: default, namespace: default}}`,
			`resourceRules: [{apiGroups: ["*"], namespaces: [default], resources: [events], verbs: [list]}]`),
		schema("of-kube-system", "900", `{kind: ServiceAccount, serviceAccount: {name: "*", namespace: kube-system}}`,
			all),
		schema("jane-b", "500", `{kind: User, user: {name: jane}}`,
			`resourceRules: [{apiGroups: [""], namespaces: ["*"], resources: [pods, pods/status], verbs: [get, patch]}]`),
		schema("jane-a", "500", `{kind: User, user: {name: jane}}`,
			`resourceRules: [{apiGroups: [apps], namespaces: ["*"], resources: ["*"], verbs: ["*"], clusterScope: true}]`),
		schema("jane-late", "500", `{kind: User, user: {name: jane}}`,
			`resourceRules: [{apiGroups: [apps], namespaces: ["*"], resources: ["deployments"], verbs: ["*"]}]`),
		schema("cluster", "600", `{kind: User, user: {name: bob}}`,
			`resourceRules: [{apiGroups: [""], resources: [nodes, pods], verbs: ["*"], clusterScope: true}]`),
		schema("debug", "700", `{kind: User, user: {name: "*"}}`,
			`nonResourceRules: [{nonResourceURLs: ["/debug/*"], verbs: [get]}]`),
		schema("every-group", "9000", `{kind: Group, group: {name: "*"}}`,
			`resourceRules: [{apiGroups: [batch], namespaces: ["*"], resources: ["*"], verbs: ["*"]}]`),
		schema("global-default", "9900", anyone, all),
		schema("second-rule", "9950", anyone, all),
		parse(t, `{metadata: {name: dangling}, spec: {matchingPrecedence: 2, priorityLevelConfiguration: {name: missing}, rules: [{subjects: [`+anyone+`], `+all+`}]}}`),
	}
	levels, fixed := mandatory(t)
	d := New(Options{Seats: 100, Levels: levels, Schemas: fixed})
	low := limited("low", 100, 0, nil)
	low.UID = "uid-of-level"
	d.Configure([]*flowv1.PriorityLevelConfiguration{low}, schemas)

	authenticated := []string{"system:authenticated"}
	account := func(namespace, name string) (string, []string) {
		return "system:serviceaccount:" + namespace + ":" + name,
			[]string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"}
	}
	as := func(user string, groups []string, r Request) Request { r.User, r.Groups = user, groups; return r }
	ofAccount := func(namespace, name string, r Request) Request {
		user, groups := account(namespace, name)
		return as(user, groups, r)
	}
	events := Request{Verb: "list", Version: "v1", Resource: "events", Namespace: "default"}
	for name, c := range map[string]struct {
		request Request
		want    string
	}{
		"masters are exempt": {as("admin", []string{"system:masters", "system:authenticated"},
			Request{Verb: "get", Path: "/livez"}), "exempt"},
		"a stranger's probe": {as("system:anonymous", []string{"system:unauthenticated"},
			Request{Verb: "get", Path: "/livez"}), "health-for-strangers"},
		"a path below a probe's": {as("system:anonymous", []string{"system:unauthenticated"},
			Request{Verb: "get", Path: "/livez/ping"}), "global-default"},
		"someone's probe": {as("bob", authenticated, Request{Verb: "get", Path: "/livez"}), "global-default"},
		"events of the account": {ofAccount("default", "default", events),
			"list-events-default-service-account"},
		"events of another account": {ofAccount("default", "other", events), "global-default"},
		"events elsewhere": {ofAccount("default", "default",
			Request{Verb: "list", Version: "v1", Resource: "events", Namespace: "x"}), "global-default"},
		"events of all namespaces": {ofAccount("default", "default",
			Request{Verb: "list", Version: "v1", Resource: "events"}), "global-default"},
		"an event": {ofAccount("default", "default",
			Request{Verb: "get", Version: "v1", Resource: "events", Namespace: "default", Name: "e"}),
			"global-default"},
		"any account of a namespace":      {ofAccount("kube-system", "x", events), "of-kube-system"},
		"a namespace that begins like it": {ofAccount("kube-system2", "x", events), "global-default"},
		"the first by name": {as("jane", authenticated,
			Request{Verb: "get", Group: "apps", Resource: "deployments", Namespace: "default"}), "jane-a"},
		"the same precedence, other rule": {as("jane", authenticated,
			Request{Verb: "get", Resource: "pods", Namespace: "default", Name: "p"}), "jane-b"},
		"a subresource": {as("jane", authenticated,
			Request{Verb: "patch", Resource: "pods", Subresource: "status", Namespace: "default", Name: "p"}),
			"jane-b"},
		"a subresource that is not named": {as("jane", authenticated,
			Request{Verb: "get", Resource: "pods", Subresource: "log", Namespace: "default", Name: "p"}),
			"global-default"},
		"a resource that begins like it": {as("jane", authenticated,
			Request{Verb: "get", Resource: "pod", Namespace: "default"}), "global-default"},
		"all namespaces, cluster scope": {as("bob", authenticated, Request{Verb: "list", Resource: "pods"}), "cluster"},
		"one namespace, cluster scope only": {as("bob", authenticated,
			Request{Verb: "list", Resource: "pods", Namespace: "default"}), "global-default"},
		"a prefix, for any user": {as("bob", authenticated, Request{Verb: "get", Path: "/debug/pprof/heap"}),
			"debug"},
		"the path without the slash": {as("bob", authenticated, Request{Verb: "get", Path: "/debug"}), "global-default"},
		"any group": {as("bob", authenticated, Request{Verb: "list", Group: "batch", Resource: "jobs",
			Namespace: "default"}), "every-group"},
		"of no group at all": {as("bob", nil, Request{Verb: "list", Group: "batch", Resource: "jobs",
			Namespace: "default"}), "every-group"},
		"what nothing matches": {as("bob", nil,
			Request{Verb: "list", Resource: "pods", Namespace: "default"}), "catch-all"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := d.Classify(&c.request)
			require.Equal(t, c.want, got.Schema)
			if c.want != "exempt" && c.want != "catch-all" {
				require.Equal(t, Classification{Schema: c.want, SchemaUID: c.want, Level: "low",
					LevelUID: "uid-of-level"}, got)
			} else {
				require.Equal(t, Classification{Schema: c.want, Level: c.want}, got,
					"the mandatory objects are missing, and hold")
			}
		})
	}
}

func TestDistinguisher(t *testing.T) {
	t.Parallel()
	r := &Request{User: "jane", Namespace: "default"}
	require.Nil(t, distinguisher(nil))
	require.Equal(t, "jane",
		distinguisher(&flowv1.FlowDistinguisherMethod{Type: flowv1.FlowDistinguisherMethodByUserType})(r))
	require.Equal(t, "default",
		distinguisher(&flowv1.FlowDistinguisherMethod{Type: flowv1.FlowDistinguisherMethodByNamespaceType})(r))
}

// A hand is dealt from a deck of cards, without putting cards back.
func TestDeal_DealsAHandFromADeck(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ n, size int }{{1, 1}, {2, 1}, {4, 2}, {6, 6}, {64, 6}, {128, 8}, {1024, 6}} {
		seen := make([]int, c.n)
		for i := range uint64(2000) {
			hash := scramble(i)
			h := deal(hash, c.n, c.size)
			require.Equal(t, c.size, h.size)
			deck := make([]int, c.n)
			for k := range deck {
				deck[k] = k
			}
			var want []int
			for range c.size {
				card := int(hash % uint64(len(deck)))
				hash /= uint64(len(deck))
				want = append(want, deck[card])
				deck = append(deck[:card], deck[card+1:]...)
			}
			require.ElementsMatch(t, want, h.cards[:h.size])
			for _, card := range want {
				seen[card]++
			}
		}
		mean := float64(2000*c.size) / float64(c.n)
		for card, times := range seen { // by a fixed sequence, so that it is so always or never
			require.InDelta(t, mean, times, 6*mean/2+10, "card %d of %d", card, c.n)
		}
	}
}
