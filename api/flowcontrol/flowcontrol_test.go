package flowcontrol_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/api/flowcontrol/mandatory"
	"github.com/coxswain-dev/coxswain/api/kindtest"
)

func TestFlowControl_ValidateRejects(t *testing.T) {
	t.Parallel()
	const schema = `
metadata: {name: s}
spec:
  priorityLevelConfiguration: {name: l}
  rules:
  - subjects: [{kind: User, user: {name: u}}]
    resourceRules: [{verbs: [get], apiGroups: [""], resources: [pods], namespaces: [default]}]
    nonResourceRules: [{verbs: ['*'], nonResourceURLs: [/healthz, /metrics/*]}]
`
	kindtest.Create(t, "FlowSchema", schema, []kindtest.Case{
		{"first", []string{"  rules", "  matchingPrecedence: 1\n  rules"}, []string{"Invalid spec.matchingPrecedence"}},
		{"last", []string{"  rules", "  matchingPrecedence: 10001\n  rules"},
			[]string{"Invalid spec.matchingPrecedence"}},
		{"method", []string{"  rules", "  distinguisherMethod: {type: ByLuck}\n  rules"},
			[]string{"NotSupported spec.distinguisherMethod.type"}},
		{"level", []string{"{name: l}", "{}"}, []string{"Required spec.priorityLevelConfiguration.name"}},
		{"no subject", []string{"[{kind: User, user: {name: u}}]", "[]"}, []string{"Required spec.rules[0].subjects"}},
		{"subjects", []string{"{kind: User, user: {name: u}}", "{kind: User, group: {name: g}}, {kind: " +
			"ServiceAccount, serviceAccount: {name: A_b}}, {kind: Group, group: {}}, {kind: Robot}"}, []string{
			"Required spec.rules[0].subjects[0].user", "Forbidden spec.rules[0].subjects[0].group",
			"Invalid spec.rules[0].subjects[1].serviceAccount.name",
			"Required spec.rules[0].subjects[1].serviceAccount.namespace",
			"Required spec.rules[0].subjects[2].group.name", "NotSupported spec.rules[0].subjects[3].kind"}},
		{"resources", []string{`{verbs: [get], apiGroups: [""], resources: [pods], namespaces: [default]}`,
			"{verbs: [fly], apiGroups: [a, '*'], resources: [], namespaces: [A_b]}"}, []string{
			"NotSupported spec.rules[0].resourceRules[0].verbs", "Invalid spec.rules[0].resourceRules[0].apiGroups",
			"Required spec.rules[0].resourceRules[0].resources",
			"Invalid spec.rules[0].resourceRules[0].namespaces[0]"}},
		{"no namespace", []string{", namespaces: [default]", ""},
			[]string{"Required spec.rules[0].resourceRules[0].namespaces"}},
		{"paths", []string{"[/healthz, /metrics/*]", "[healthz, //a, /a*, '']"}, []string{
			"Invalid spec.rules[0].nonResourceRules[0].nonResourceURLs[0]",
			"Invalid spec.rules[0].nonResourceRules[0].nonResourceURLs[1]",
			"Invalid spec.rules[0].nonResourceRules[0].nonResourceURLs[2]",
			"Invalid spec.rules[0].nonResourceRules[0].nonResourceURLs[3]"}},
	})
	const level = "metadata: {name: l}\nspec: {type: Limited, limited: {limitResponse: {type: Queue, queuing: " +
		"{queues: 64, handSize: 6, queueLengthLimit: 50}}}}\n"
	kindtest.Create(t, "PriorityLevelConfiguration", level, []kindtest.Case{
		{"exempt", []string{"type: Limited", "type: Exempt"}, []string{"Invalid spec.type", "Forbidden spec.limited"}},
		{"nothing", []string{"type: Limited, limited: {limitResponse: {type: Queue, queuing: {queues: 64, " +
			"handSize: 6, queueLengthLimit: 50}}}", "type: Limited"}, []string{"Required spec.limited"}},
		{"hand", []string{"handSize: 6", "handSize: 65"},
			[]string{"Invalid spec.limited.limitResponse.queuing.handSize"}},
		{"entropy", []string{"handSize: 6", "handSize: 11"},
			[]string{"Invalid spec.limited.limitResponse.queuing.handSize"}},
		{"numbers", []string{"queues: 64, handSize: 6, queueLengthLimit: 50",
			"queues: -1, handSize: -1, queueLengthLimit: -1"}, []string{
			"Invalid spec.limited.limitResponse.queuing.queues", "Invalid spec.limited.limitResponse.queuing.handSize",
			"Invalid spec.limited.limitResponse.queuing.queueLengthLimit"}},
		{"shares", []string{"{limitResponse",
			"{nominalConcurrencyShares: -1, lendablePercent: 101, borrowingLimitPercent: -1, limitResponse"}, []string{
			"Invalid spec.limited.nominalConcurrencyShares", "Invalid spec.limited.lendablePercent",
			"Invalid spec.limited.borrowingLimitPercent"}},
		{"queues of a refusal", []string{"type: Queue", "type: Reject"},
			[]string{"Forbidden spec.limited.limitResponse.queuing"}},
	})
	r := kindtest.Of(t, "FlowSchema")
	require.Equal(t, []string{"Duplicate status.conditions[1].type"},
		kindtest.Refusals(
			r.Status.Validate(kindtest.Decode(t, r, "status: {conditions: [{type: Dangling}, {type: Dangling}]}"),
				kindtest.Decode(t, r, "{}"))))
}

// The mandatory objects have fixed specs, except for the exempt level's shares.
func TestFlowControl_MandatoryObjectsAreImmutable(t *testing.T) {
	t.Parallel()
	schemas, levels := kindtest.Of(t, "FlowSchema"), kindtest.Of(t, "PriorityLevelConfiguration")
	fixed := func(name string) string { return "spec of '" + name + "' must equal the fixed value" }
	for _, s := range mandatory.FlowSchemas() {
		s.Labels = map[string]string{"a": "b"}
		require.Empty(t, schemas.Validate(s), s.Name)
		s.Spec.Rules = nil
		require.ErrorContains(t, schemas.Validate(s).ToAggregate(), fixed(s.Name))
	}
	for _, l := range mandatory.PriorityLevels() {
		require.Empty(t, levels.Validate(l), l.Name)
		if e := l.Spec.Exempt; e != nil {
			e.NominalConcurrencyShares, e.LendablePercent = new(int32(9)), new(int32(50))
			require.Empty(t, levels.Validate(l), l.Name)
			continue
		}
		l.Spec.Limited.NominalConcurrencyShares = new(int32(9))
		require.ErrorContains(t, levels.Validate(l).ToAggregate(), fixed(l.Name))
	}
}
