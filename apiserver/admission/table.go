package admission

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/coxswain-dev/coxswain/apiserver/admission/calls"
	"github.com/coxswain-dev/coxswain/apiserver/admission/policy"
	"github.com/coxswain-dev/coxswain/apiserver/admission/webhook"
)

// Registration is one plugin's line in the table.
type Registration struct {
	Name string
	// Default reports whether the plugin runs unless it is disabled.
	Default bool
	// On lists the writes for which the plugin is called.
	On []Rule
	// Does is a short description; docs/security.md shows it.
	Does string
	New  func(*Env) (Plugin, error)
}

// Env holds the dependencies of plugins.
type Env struct {
	Cluster Cluster
	Options Options
	Metrics *pluginMetrics
	Calls   *calls.Log
}

// Rule selects writes by resource, subresource and operation.
type Rule struct {
	Resource schema.GroupResource
	// Subresources lists the covered subresources, "" for the object itself; an empty list covers only the object.
	Subresources []string
	Operations   []Operation
}

// anyResource in a Rule matches every resource, including custom ones. anySubresource in its Subresources matches
// the object and every subresource.
var anyResource = schema.GroupResource{Group: "*", Resource: "*"}

const anySubresource = "*"

func (r *Rule) covers(a *Attributes) bool {
	if r.Resource != anyResource && r.Resource != a.GroupResource() || !slices.Contains(r.Operations, a.Operation) {
		return false
	}
	if len(r.Subresources) == 0 {
		return a.Subresource == ""
	}
	return slices.Contains(r.Subresources, a.Subresource) || r.Subresources[0] == anySubresource
}

// on returns a Rule for writes of objects themselves.
func on(resource schema.GroupResource, operations ...Operation) Rule {
	return Rule{Resource: resource, Operations: operations}
}

func (r Rule) with(subresources ...string) Rule {
	r.Subresources = subresources
	return r
}

func core(resource string) schema.GroupResource { return schema.GroupResource{Resource: resource} }

func group(group, resource string) schema.GroupResource {
	return schema.GroupResource{Group: group, Resource: resource}
}

// Table lists all plugins, in the order in which they see a write. ResourceQuota must be last: it charges only
// objects that no other plugin will reject.
var Table = []Registration{
	{Name: "NamespaceAutoProvision", New: newNamespaceAutoProvision, On: []Rule{on(anyResource, Create)},
		Does: "creates the namespace of an object if it does not exist"},
	{Name: "NamespaceLifecycle", Default: true, New: newNamespaceLifecycle,
		On: []Rule{on(anyResource, Create), on(namespaces, Delete)},
		Does: "rejects new objects in a namespace that does not exist or is terminating, and the deletion of the " +
			"namespaces default, kube-system and kube-public"},
	{Name: "NamespaceExists", New: newNamespaceExists,
		On:   []Rule{on(anyResource, Create, Update, Delete).with(anySubresource)},
		Does: "rejects every write in a namespace that does not exist"},
	{Name: "LimitPodHardAntiAffinityTopology", New: newAntiAffinityTopology, On: []Rule{on(pods, Create, Update)},
		Does: "rejects pods with required anti-affinity over anything but kubernetes.io/hostname"},
	{Name: "LimitRanger", Default: true, New: newLimitRanger,
		On: []Rule{on(pods, Create), on(pods, Update).with("resize"),
			on(core("persistentvolumeclaims"), Create, Update)},
		Does: "gives containers the requests and limits that the namespace's LimitRanges have as default, and " +
			"holds containers, pods and claims to their min, max and ratio"},
	{Name: "ServiceAccount", Default: true, New: newServiceAccount,
		On: []Rule{on(pods, Create), on(pods, Update).with("ephemeralcontainers")},
		Does: "gives pods a service account, which must exist, its imagePullSecrets, and a volume with a token " +
			"that expires"},
	{Name: "NodeRestriction", Default: true, New: newNodeRestriction, On: []Rule{
		on(pods, Create, Update, Delete).with(anySubresource), on(nodes, Create, Update, Delete).with(anySubresource),
		on(core("persistentvolumeclaims"), Create, Update, Delete).with(anySubresource),
		on(serviceAccounts, Create).with("token"),
		on(group("coordination.k8s.io", "leases"), Create, Update, Delete), on(group("storage.k8s.io", "csinodes"),
			Create, Update, Delete),
		on(podCertificates, Create, Update, Delete).with(anySubresource), on(signingRequests, Create),
		on(resourceSlices, Create, Delete),
	},
		Does: "keeps a node's agent to its own Node, Lease, CSINode, ResourceSlices and pods, and to certificates " +
			"for these"},
	{Name: "TaintNodesByCondition", Default: true, New: newTaintNodesByCondition, On: []Rule{on(nodes, Create)},
		Does: "taints new nodes as not ready, so that nothing is scheduled to them too early"},
	{Name: "AlwaysPullImages", New: newAlwaysPullImages,
		On:   []Rule{on(pods, Create, Update).with("", "ephemeralcontainers")},
		Does: "sets imagePullPolicy Always, so that a private image cannot be used without its secret"},
	{Name: "PodSecurity", Default: true, New: newPodSecurity, On: slices.Concat(podSecurityRules()),
		Does: "holds pods to the Pod Security Standards that the namespace's labels enforce, and warns and audits " +
			"by them"},
	{Name: "PodNodeSelector", New: newPodNodeSelector, On: []Rule{on(pods, Create)},
		Does: "adds the node selector that the namespace's annotation has for its pods"},
	{Name: "Priority", Default: true, New: newPriority,
		On:   []Rule{on(pods, Create, Update), on(priorityClasses, Create, Update)},
		Does: "gives pods the priority and preemption policy of their PriorityClass; there is one global default"},
	{Name: "DefaultTolerationSeconds", Default: true, New: newDefaultTolerationSeconds,
		On:   []Rule{on(pods, Create, Update)},
		Does: "lets pods stay five minutes on a node that is not ready or not reachable"},
	{Name: "PodTolerationRestriction", New: newPodTolerationRestriction, On: []Rule{on(pods, Create, Update)},
		Does: "adds the tolerations of the namespace's annotation to its pods, and rejects those that it does not " +
			"allow"},
	{Name: "ExtendedResourceToleration", New: newExtendedResourceToleration, On: []Rule{on(pods, Create, Update)},
		Does: "lets pods that ask for an extended resource tolerate the taint of its name"},
	{Name: "DefaultStorageClass", Default: true, New: newDefaultStorageClass,
		On:   []Rule{on(core("persistentvolumeclaims"), Create)},
		Does: "gives claims without a class the default StorageClass"},
	{Name: "StorageObjectInUseProtection", Default: true, New: newStorageProtection,
		On:   []Rule{on(core("persistentvolumes"), Create), on(core("persistentvolumeclaims"), Create)},
		Does: "adds the finalizers that keep volumes and claims while they are in use"},
	{Name: "OwnerReferencesPermissionEnforcement", New: newOwnerReferences,
		On: []Rule{on(anyResource, Create, Update).with(anySubresource)},
		Does: "requires the right to delete an object to set its owners, and the right to set the owner's " +
			"finalizers to block the owner's deletion"},
	{Name: "PersistentVolumeClaimResize", Default: true, New: newClaimResize,
		On:   []Rule{on(core("persistentvolumeclaims"), Update)},
		Does: "lets claims grow only if they are bound and their class allows it"},
	{Name: "RuntimeClass", Default: true, New: newRuntimeClass, On: []Rule{on(pods, Create)},
		Does: "gives pods the overhead, node selector and tolerations of their RuntimeClass"},
	{Name: "CertificateApproval", Default: true, New: newCertificateApproval,
		On:   []Rule{on(signingRequests, Update).with("approval")},
		Does: "requires the right to approve for the signer to approve a certificate"},
	{Name: "CertificateSigning", Default: true, New: newCertificateSigning,
		On:   []Rule{on(signingRequests, Update).with("status")},
		Does: "requires the right to sign for the signer to issue a certificate"},
	{Name: "ClusterTrustBundleAttest", Default: true, New: newTrustBundleAttest,
		On:   []Rule{on(trustBundles, Create, Update)},
		Does: "requires the right to attest for the signer to write its ClusterTrustBundles"},
	{Name: "CertificateSubjectRestriction", Default: true, New: newCertificateSubject,
		On:   []Rule{on(signingRequests, Create)},
		Does: "rejects requests for a client certificate of the group system:masters"},
	{Name: "DefaultIngressClass", Default: true, New: newDefaultIngressClass,
		On:   []Rule{on(group("networking.k8s.io", "ingresses"), Create)},
		Does: "gives ingresses without a class the default IngressClass"},
	{Name: "DenyServiceExternalIPs", New: newDenyExternalIPs, On: []Rule{on(core("services"), Create, Update)},
		Does: "rejects new spec.externalIPs of services"},
	{Name: "PodTopologyLabels", Default: true, New: newPodTopologyLabels,
		On:   []Rule{on(pods, Create).with("", "binding")},
		Does: "copies the zone and region labels of a node to the pods that are bound to it"},
	{Name: "MutatingAdmissionPolicy", Default: true, New: newMutatingPolicies,
		On:   []Rule{on(anyResource, Create, Update, Connect).with(anySubresource)},
		Does: "changes objects as MutatingAdmissionPolicies define"},
	{Name: "MutatingAdmissionWebhook", Default: true, New: newMutatingWebhooks,
		On:   []Rule{on(anyResource, Create, Update, Delete, Connect).with(anySubresource)},
		Does: "has the webhooks of MutatingWebhookConfigurations change or reject objects"},
	{Name: "ValidatingAdmissionPolicy", Default: true, New: newValidatingPolicies,
		On: []Rule{on(anyResource, Create, Update, Delete, Connect).with(anySubresource)},
		Does: "rejects writes that the expressions of ValidatingAdmissionPolicies do not allow, or warns of them, " +
			"or logs them"},
	{Name: "ValidatingAdmissionWebhook", Default: true, New: newValidatingWebhooks,
		On:   []Rule{on(anyResource, Create, Update, Delete, Connect).with(anySubresource)},
		Does: "has the webhooks of ValidatingWebhookConfigurations reject writes"},
	{Name: "ResourceQuota", Default: true, New: newResourceQuota,
		On: []Rule{on(anyResource, Create, Update).with("", "resize")},
		Does: "rejects writes that would exceed a ResourceQuota of the namespace, and charges the others in the same " +
			"transaction"},
}

// The plugins that are packages.

func newMutatingPolicies(env *Env) (Plugin, error) {
	return policy.NewMutating(env.Cluster, env.Calls), nil
}

func newValidatingPolicies(env *Env) (Plugin, error) {
	return policy.NewValidating(env.Cluster, env.Calls), nil
}

func newMutatingWebhooks(env *Env) (Plugin, error) {
	return webhook.NewMutating(env.webhooks("MutatingAdmissionWebhook"))
}

func newValidatingWebhooks(env *Env) (Plugin, error) {
	return webhook.NewValidating(env.webhooks("ValidatingAdmissionWebhook"))
}

// webhooks returns the dependencies of a plugin that calls webhooks.
func (e *Env) webhooks(plugin string) webhook.Options {
	return webhook.Options{Cluster: e.Cluster, Client: e.Options.Webhooks, Log: e.Calls,
		Config: e.Options.Config[plugin]}
}
