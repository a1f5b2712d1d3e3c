package apiserver

import (
	corev1 "k8s.io/api/core/v1"
	flowv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/api"
)

// The flow schemas and priority levels that every cluster has: the two mandatory pairs and the
// suggested ones (https://kubernetes.io/docs/concepts/cluster-administration/flow-control/#defaults).
// Ours says by its limits who is served (inflight.go), not by them: they are there to be read, and
// so that clients and charts which refer to them find them.

// queues is how a priority level lets requests wait.
type queues struct{ queues, hand, length int32 }

// priorityLevels are the levels that limit, with their shares of the seats, how many percent of
// those they lend, and their queues. A level without queues refuses.
var priorityLevels = []struct {
	name             string
	shares, lendable int32
	queues           *queues
}{
	{flowv1.PriorityLevelConfigurationNameCatchAll, 5, 0, nil},
	{"system", 30, 33, &queues{64, 6, 50}},
	{"node-high", 40, 25, &queues{64, 6, 50}},
	{"leader-election", 10, 0, &queues{16, 4, 50}},
	{"workload-high", 40, 50, &queues{128, 6, 50}},
	{"workload-low", 100, 90, &queues{128, 6, 50}},
	{"global-default", 20, 50, &queues{128, 6, 50}},
}

const (
	byUser      = flowv1.FlowDistinguisherMethodByUserType
	byNamespace = flowv1.FlowDistinguisherMethodByNamespaceType
)

var (
	everybody    = groups("system:unauthenticated", "system:authenticated")
	nodeGroup    = groups("system:nodes")
	controllers  = users("system:kube-controller-manager")
	ofKubeSystem = []flowv1.Subject{{Kind: flowv1.SubjectKindServiceAccount,
		ServiceAccount: &flowv1.ServiceAccountSubject{Namespace: metav1.NamespaceSystem, Name: flowv1.NameAll}}}

	everyResource = resources(flowv1.VerbAll, flowv1.APIGroupAll, true, flowv1.ResourceAll)
	everyPath     = []flowv1.NonResourcePolicyRule{{Verbs: []string{flowv1.VerbAll}, NonResourceURLs: []string{flowv1.NonResourceAll}}}
	leaseRule     = flowv1.ResourcePolicyRule{Verbs: []string{"get", "create", "update"}, APIGroups: []string{"coordination.k8s.io"},
		Resources: []string{"leases"}, Namespaces: []string{flowv1.NamespaceEvery}}
)

// flowSchemas begin with the mandatory two. A schema without a method has one flow.
var flowSchemas = []struct {
	name, level string
	precedence  int32
	method      flowv1.FlowDistinguisherMethodType
	rules       []flowv1.PolicyRulesWithSubjects
}{
	{flowv1.FlowSchemaNameExempt, "exempt", 1, "", everything(groups("system:masters"))},
	{flowv1.FlowSchemaNameCatchAll, "catch-all", 10000, byUser, everything(everybody)},
	{"endpoint-controller", "workload-high", 150, byUser, []flowv1.PolicyRulesWithSubjects{{Subjects: controllers, ResourceRules: []flowv1.ResourcePolicyRule{{
		Verbs: []string{"get", "create", "update"}, APIGroups: []string{corev1.GroupName}, Resources: []string{"endpoints"}, Namespaces: []string{flowv1.NamespaceEvery}}}}}},
	{"global-default", "global-default", 9900, byUser, everything(everybody)},
	{"kube-controller-manager", "workload-high", 800, byNamespace, everything(controllers)},
	{"kube-scheduler", "workload-high", 800, byNamespace, everything(users("system:kube-scheduler"))},
	{"kube-system-service-accounts", "workload-high", 900, byNamespace, everything(ofKubeSystem)},
	{"probes", "exempt", 2, "", []flowv1.PolicyRulesWithSubjects{{Subjects: everybody,
		NonResourceRules: []flowv1.NonResourcePolicyRule{{Verbs: []string{"get"}, NonResourceURLs: []string{"/healthz", "/readyz", "/livez"}}}}}},
	{"service-accounts", "workload-low", 9000, byUser, everything(groups("system:serviceaccounts"))},
	{"system-leader-election", "leader-election", 100, byUser, []flowv1.PolicyRulesWithSubjects{{
		Subjects: users("system:kube-controller-manager", "system:kube-scheduler"), ResourceRules: []flowv1.ResourcePolicyRule{leaseRule}}}},
	{"system-node-high", "node-high", 400, byUser, []flowv1.PolicyRulesWithSubjects{{Subjects: nodeGroup, ResourceRules: []flowv1.ResourcePolicyRule{
		resources(flowv1.VerbAll, corev1.GroupName, true, "nodes", "nodes/status"), resources(flowv1.VerbAll, "coordination.k8s.io", false, "leases")}}}},
	{"system-nodes", "system", 500, byUser, everything(nodeGroup)},
	{"workload-leader-election", "leader-election", 200, byUser, []flowv1.PolicyRulesWithSubjects{{
		Subjects: ofKubeSystem, ResourceRules: []flowv1.ResourcePolicyRule{leaseRule}}}},
}

func groups(names ...string) []flowv1.Subject {
	list := make([]flowv1.Subject, len(names))
	for i, name := range names {
		list[i] = flowv1.Subject{Kind: flowv1.SubjectKindGroup, Group: &flowv1.GroupSubject{Name: name}}
	}
	return list
}

func users(names ...string) []flowv1.Subject {
	list := make([]flowv1.Subject, len(names))
	for i, name := range names {
		list[i] = flowv1.Subject{Kind: flowv1.SubjectKindUser, User: &flowv1.UserSubject{Name: name}}
	}
	return list
}

func resources(verb, group string, clusterScope bool, names ...string) flowv1.ResourcePolicyRule {
	return flowv1.ResourcePolicyRule{Verbs: []string{verb}, APIGroups: []string{group}, Resources: names,
		Namespaces: []string{flowv1.NamespaceEvery}, ClusterScope: clusterScope}
}

func everything(of []flowv1.Subject) []flowv1.PolicyRulesWithSubjects {
	return []flowv1.PolicyRulesWithSubjects{{Subjects: of, ResourceRules: []flowv1.ResourcePolicyRule{everyResource}, NonResourceRules: everyPath}}
}

// flowControl makes the objects anew, in the group and kind that the registrations want.
func flowControl() (levels, schemas []api.Object) {
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: name, Annotations: map[string]string{flowv1.AutoUpdateAnnotationKey: "true"}}
	}
	exempt := &flowv1.PriorityLevelConfiguration{ObjectMeta: meta(flowv1.PriorityLevelConfigurationNameExempt)}
	exempt.Spec.Type = flowv1.PriorityLevelEnablementExempt
	exempt.Spec.Exempt = &flowv1.ExemptPriorityLevelConfiguration{NominalConcurrencyShares: ptr.To[int32](0), LendablePercent: ptr.To[int32](0)}
	levels = append(levels, exempt)
	for _, l := range priorityLevels {
		limited := &flowv1.LimitedPriorityLevelConfiguration{NominalConcurrencyShares: ptr.To(l.shares), LendablePercent: ptr.To(l.lendable)}
		limited.LimitResponse.Type = flowv1.LimitResponseTypeReject
		if q := l.queues; q != nil {
			limited.LimitResponse = flowv1.LimitResponse{Type: flowv1.LimitResponseTypeQueue,
				Queuing: &flowv1.QueuingConfiguration{Queues: q.queues, HandSize: q.hand, QueueLengthLimit: q.length}}
		}
		levels = append(levels, &flowv1.PriorityLevelConfiguration{ObjectMeta: meta(l.name),
			Spec: flowv1.PriorityLevelConfigurationSpec{Type: flowv1.PriorityLevelEnablementLimited, Limited: limited}})
	}
	for i := range flowSchemas {
		f := &flowSchemas[i]
		schema := &flowv1.FlowSchema{ObjectMeta: meta(f.name), Spec: flowv1.FlowSchemaSpec{MatchingPrecedence: f.precedence,
			PriorityLevelConfiguration: flowv1.PriorityLevelConfigurationReference{Name: f.level}, Rules: f.rules}}
		if f.method != "" {
			schema.Spec.DistinguisherMethod = &flowv1.FlowDistinguisherMethod{Type: f.method}
		}
		schemas = append(schemas, schema.DeepCopy())
	}
	return levels, schemas
}

// found is the condition of a flow schema whose level is there.
func found(level string, now metav1.Time) flowv1.FlowSchemaCondition {
	return flowv1.FlowSchemaCondition{Type: flowv1.FlowSchemaConditionDangling, Status: flowv1.ConditionFalse, LastTransitionTime: now,
		Reason: "Found", Message: "This FlowSchema references the PriorityLevelConfiguration object named \"" + level + "\" and it exists"}
}
