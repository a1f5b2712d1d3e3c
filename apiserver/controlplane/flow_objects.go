package controlplane

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	flowv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/api/flowcontrol/mandatory"
)

// The flow schemas and priority levels that every cluster has: the two mandatory pairs, which package api knows because
// validation forbids to change them, and the suggested ones
// (https://kubernetes.io/docs/concepts/cluster-administration/flow-control/#defaults). flow_upkeep.go keeps the stored
// objects as they are here.

// queues are the queues of a priority level for waiting requests.
type queues struct{ queues, hand, length int32 }

// priorityLevels are the suggested levels, with their shares of the seats, the percentage of seats that
// they lend, and their queues.
var priorityLevels = []struct {
	name             string
	shares, lendable int32
	queues           queues
}{
	{"system", 30, 33, queues{64, 6, 50}},
	{"node-high", 40, 25, queues{64, 6, 50}},
	{"leader-election", 10, 0, queues{16, 4, 50}},
	{"workload-high", 40, 50, queues{128, 6, 50}},
	{"workload-low", 100, 90, queues{128, 6, 50}},
	{"global-default", 20, 50, queues{128, 6, 50}},
}

const (
	byUser      = flowv1.FlowDistinguisherMethodByUserType
	byNamespace = flowv1.FlowDistinguisherMethodByNamespaceType
)

var (
	allUsers    = groups("system:unauthenticated", "system:authenticated")
	nodeGroup   = groups("system:nodes")
	controllers = users("system:kube-controller-manager")
	kubeSystem  = []flowv1.Subject{{Kind: flowv1.SubjectKindServiceAccount,
		ServiceAccount: &flowv1.ServiceAccountSubject{Namespace: metav1.NamespaceSystem, Name: flowv1.NameAll}}}

	simulatedNodes = users("coxswain:simulated-nodes")
	nodeHigh       = []flowv1.ResourcePolicyRule{
		resources(flowv1.VerbAll, corev1.GroupName, true, "nodes", "nodes/status"), resources(flowv1.VerbAll,
			"coordination.k8s.io", false, "leases"),
	}

	everyResource = resources(flowv1.VerbAll, flowv1.APIGroupAll, true, flowv1.ResourceAll)
	everyPath     = []flowv1.NonResourcePolicyRule{{Verbs: []string{flowv1.VerbAll},
		NonResourceURLs: []string{flowv1.NonResourceAll}}}
	leaseRule = flowv1.ResourcePolicyRule{Verbs: []string{"get", "create", "update"},
		APIGroups: []string{"coordination.k8s.io"},
		Resources: []string{"leases"}, Namespaces: []string{flowv1.NamespaceEvery}}
)

// flowSchemas are the suggested schemas. A schema without a method has one flow.
var flowSchemas = []struct {
	name, level string
	precedence  int32
	method      flowv1.FlowDistinguisherMethodType
	rules       []flowv1.PolicyRulesWithSubjects
}{
	{"endpoint-controller", "workload-high", 150, byUser,
		[]flowv1.PolicyRulesWithSubjects{{Subjects: controllers, ResourceRules: []flowv1.ResourcePolicyRule{{
			Verbs: []string{"get", "create", "update"}, APIGroups: []string{corev1.GroupName},
			Resources: []string{"endpoints"}, Namespaces: []string{flowv1.NamespaceEvery}}}}}},
	{"global-default", "global-default", 9900, byUser, everything(allUsers)},
	{"kube-controller-manager", "workload-high", 800, byNamespace, everything(controllers)},
	{"kube-scheduler", "workload-high", 800, byNamespace, everything(users("system:kube-scheduler"))},
	{"kube-system-service-accounts", "workload-high", 900, byNamespace, everything(kubeSystem)},
	{"probes", "exempt", 2, "", []flowv1.PolicyRulesWithSubjects{{Subjects: allUsers,
		NonResourceRules: []flowv1.NonResourcePolicyRule{{Verbs: []string{"get"},
			NonResourceURLs: []string{"/healthz", "/readyz", "/livez"}}}}}},
	{"service-accounts", "workload-low", 9000, byUser, everything(groups("system:serviceaccounts"))},
	{"system-leader-election", "leader-election", 100, byUser, []flowv1.PolicyRulesWithSubjects{{
		Subjects:      users("system:kube-controller-manager", "system:kube-scheduler"),
		ResourceRules: []flowv1.ResourcePolicyRule{leaseRule}}}},
	{"system-node-high", "node-high", 400, byUser,
		[]flowv1.PolicyRulesWithSubjects{{Subjects: nodeGroup, ResourceRules: nodeHigh}}},
	{"system-nodes", "system", 500, byUser, everything(nodeGroup)},
	// Very many simulated Nodes are one user, which is not in the group (cmd/coxswain/certs).
	{"coxswain-simulated-node-high", "node-high", 450, "",
		[]flowv1.PolicyRulesWithSubjects{{Subjects: simulatedNodes, ResourceRules: nodeHigh}}},
	{"coxswain-simulated-nodes", "system", 550, byNamespace, everything(simulatedNodes)},
	{"workload-leader-election", "leader-election", 200, byUser, []flowv1.PolicyRulesWithSubjects{{
		Subjects: kubeSystem, ResourceRules: []flowv1.ResourcePolicyRule{leaseRule}}}},
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

func everything(subjects []flowv1.Subject) []flowv1.PolicyRulesWithSubjects {
	return []flowv1.PolicyRulesWithSubjects{{Subjects: subjects,
		ResourceRules: []flowv1.ResourcePolicyRule{everyResource}, NonResourceRules: everyPath}}
}

// flowControl returns new copies of the objects, the mandatory ones first.
func flowControl() (levels []*flowv1.PriorityLevelConfiguration, schemas []*flowv1.FlowSchema) {
	levels, schemas = mandatory.PriorityLevels(), mandatory.FlowSchemas()
	for _, l := range priorityLevels {
		levels = append(levels, &flowv1.PriorityLevelConfiguration{ObjectMeta: metav1.ObjectMeta{Name: l.name},
			Spec: flowv1.PriorityLevelConfigurationSpec{Type: flowv1.PriorityLevelEnablementLimited,
				Limited: &flowv1.LimitedPriorityLevelConfiguration{
					NominalConcurrencyShares: ptr.To(l.shares), LendablePercent: ptr.To(l.lendable),
					LimitResponse: flowv1.LimitResponse{Type: flowv1.LimitResponseTypeQueue,
						Queuing: &flowv1.QueuingConfiguration{Queues: l.queues.queues, HandSize: l.queues.hand,
							QueueLengthLimit: l.queues.length}},
				}}})
	}
	for i := range flowSchemas {
		f := &flowSchemas[i]
		schema := &flowv1.FlowSchema{ObjectMeta: metav1.ObjectMeta{Name: f.name},
			Spec: flowv1.FlowSchemaSpec{MatchingPrecedence: f.precedence,
				PriorityLevelConfiguration: flowv1.PriorityLevelConfigurationReference{Name: f.level}, Rules: f.rules}}
		if f.method != "" {
			schema.Spec.DistinguisherMethod = &flowv1.FlowDistinguisherMethod{Type: f.method}
		}
		schemas = append(schemas, schema.DeepCopy())
	}
	for _, l := range levels {
		metav1.SetMetaDataAnnotation(&l.ObjectMeta, flowv1.AutoUpdateAnnotationKey, "true")
	}
	for _, s := range schemas {
		metav1.SetMetaDataAnnotation(&s.ObjectMeta, flowv1.AutoUpdateAnnotationKey, "true")
	}
	return levels, schemas
}

// dangle sets the condition Dangling of a schema, which reports whether its level exists. An unchanged condition keeps
// its time.
func dangle(s *flowv1.FlowSchema, found bool, now metav1.Time) {
	want := flowv1.FlowSchemaCondition{Type: flowv1.FlowSchemaConditionDangling, Status: flowv1.ConditionFalse,
		LastTransitionTime: now, Reason: "Found",
		Message: fmt.Sprintf("This FlowSchema references the PriorityLevelConfiguration object named %q and it exists",
			s.Spec.PriorityLevelConfiguration.Name)}
	if !found {
		want.Status, want.Reason = flowv1.ConditionTrue, "NotFound"
		want.Message = fmt.Sprintf("This FlowSchema references the PriorityLevelConfiguration object named %q but "+
			"there is no such object", s.Spec.PriorityLevelConfiguration.Name)
	}
	i := slices.IndexFunc(s.Status.Conditions, func(c flowv1.FlowSchemaCondition) bool { return c.Type == want.Type })
	if i < 0 {
		s.Status.Conditions = append(s.Status.Conditions, want)
		return
	}
	if c := &s.Status.Conditions[i]; c.Status != want.Status || c.Reason != want.Reason || c.Message != want.Message {
		*c = want
	}
}
