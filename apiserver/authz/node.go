package authz

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/coxswain-dev/coxswain/apiserver/authn"
)

// Node grants a kubelet, which is a user system:node:NAME in the group system:nodes, the rights that the pods of
// its node need: to read the secrets, config maps, claims, volumes and service accounts that they name, and the
// node's own objects. https://kubernetes.io/docs/reference/access-authn-authz/node/
//
// It has no graph of references. The pods of a node are few and in memory, and are searched when a kubelet reads
// such an object. A kubelet writes a hundred times for each such read.
type Node struct {
	Cluster Cluster
	rules   *rules
}

// NewNode returns the Node authorizer of a cluster.
func NewNode(c Cluster) *Node { return &Node{Cluster: c, rules: arrange(nodeRules)} }

// Cluster is the state that the Node authorizer reads, from memory. Objects are shared and must not be changed;
// missing ones are nil.
type Cluster interface {
	// Pods returns the pods of a node that contain a text in their documents: a superset of the pods that name it.
	Pods(ctx context.Context, node, text string) ([]*corev1.Pod, error)
	// Volumes returns the PersistentVolumes that contain a text in their documents.
	Volumes(ctx context.Context, text string) ([]*corev1.PersistentVolume, error)
	Volume(ctx context.Context, name string) (*corev1.PersistentVolume, error)
	Claim(ctx context.Context, namespace, name string) (*corev1.PersistentVolumeClaim, error)
	Attachment(ctx context.Context, name string) (*storagev1.VolumeAttachment, error)
	Slice(ctx context.Context, name string) (*resourcev1.ResourceSlice, error)
}

const userOfNode = "system:node:"

// nodeOf returns the name of the node if the user is its kubelet. isNode is true with an empty name for a kubelet
// whose user name lacks one.
func nodeOf(user *authn.User) (name string, isNode bool) {
	name, ok := strings.CutPrefix(user.Name, userOfNode)
	if !ok || !user.In("system:nodes") {
		return "", false
	}
	return name, true
}

// Authorize implements Authorizer.
func (n *Node) Authorize(ctx context.Context, a *Attributes) (Decision, string, error) {
	node, isNode := nodeOf(a.User)
	if !isNode {
		return NoOpinion, "", nil
	}
	if node == "" {
		return NoOpinion, fmt.Sprintf("unknown node for user %q", a.User.Name), nil
	}
	if a.Path != "" {
		return n.uniformly(a)
	}
	switch (schema.GroupResource{Group: a.Group, Resource: a.Resource}) {
	case schema.GroupResource{Resource: "secrets"}, schema.GroupResource{Resource: "configmaps"}:
		return n.reading(ctx, node, a)
	case schema.GroupResource{Resource: "persistentvolumeclaims"}:
		if a.Subresource != "status" {
			return n.getting(ctx, node, a)
		}
		if a.Verb != "update" && a.Verb != "patch" {
			return NoOpinion, "can only get/update/patch this type", nil
		}
		return n.related(ctx, node, a)
	case schema.GroupResource{Resource: "persistentvolumes"},
		schema.GroupResource{Group: "resource.k8s.io", Resource: "resourceclaims"},
		schema.GroupResource{Group: "storage.k8s.io", Resource: "volumeattachments"}:
		return n.getting(ctx, node, a)
	case schema.GroupResource{Resource: "serviceaccounts"}:
		return n.account(ctx, node, a)
	case schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}:
		if a.Namespace != corev1.NamespaceNodeLease {
			return NoOpinion, fmt.Sprintf("can only access leases in the %q system namespace",
				corev1.NamespaceNodeLease), nil
		}
		return own(node, a, "a node lease", "node lease")
	case schema.GroupResource{Group: "storage.k8s.io", Resource: "csinodes"}:
		if a.Subresource != "" {
			return NoOpinion, "cannot authorize CSINode subresources", nil
		}
		return own(node, a, "a CSINode", "CSINode")
	case schema.GroupResource{Group: "resource.k8s.io", Resource: "resourceslices"}:
		return n.slice(ctx, node, a)
	case schema.GroupResource{Resource: "nodes"}:
		return ownNode(node, a)
	case schema.GroupResource{Resource: "pods"}:
		return n.pod(ctx, node, a)
	}
	return n.uniformly(a)
}

// RulesFor implements Lister. Rights that depend on pods cannot be listed.
func (n *Node) RulesFor(user *authn.User, _ string) ([]rbacv1.PolicyRule, bool, error) {
	if _, isNode := nodeOf(user); isNode {
		return nil, true, errors.New("node authorizer does not support user rule resolution")
	}
	return nil, false, nil
}

// uniformly decides by the rights that every kubelet has.
func (n *Node) uniformly(a *Attributes) (Decision, string, error) {
	if q := newQuery(a); n.rules.allow(&q) {
		return Allow, "", nil
	}
	return NoOpinion, "", nil
}

// reading decides about objects that pods name and kubelets watch one by one.
func (n *Node) reading(ctx context.Context, node string, a *Attributes) (Decision, string, error) {
	switch {
	case a.Verb != "get" && a.Verb != "list" && a.Verb != "watch":
		return NoOpinion, "can only read resources of this type", nil
	case a.Subresource != "":
		return NoOpinion, "cannot read subresource", nil
	case a.Namespace == "":
		return NoOpinion, "can only read namespaced object of this type", nil
	}
	return n.related(ctx, node, a)
}

func (n *Node) getting(ctx context.Context, node string, a *Attributes) (Decision, string, error) {
	switch {
	case a.Verb != "get":
		return NoOpinion, "can only get individual resources of this type", nil
	case a.Subresource != "":
		return NoOpinion, "cannot get subresource", nil
	}
	return n.related(ctx, node, a)
}

func (n *Node) account(ctx context.Context, node string, a *Attributes) (Decision, string, error) {
	switch {
	case a.Verb == "get" && a.Subresource == "":
	case a.Verb != "create" || a.Name == "":
		return NoOpinion, "can only create tokens for individual service accounts", nil
	case a.Subresource != "token":
		return NoOpinion, "can only create token subresource of serviceaccount", nil
	}
	return n.related(ctx, node, a)
}

// own decides about objects with the node's name. A create has no name yet: the admission plugin NodeRestriction
// checks it.
func own(node string, a *Attributes, one, kind string) (Decision, string, error) {
	switch a.Verb {
	case "create":
		return Allow, "", nil
	case "get", "update", "patch", "delete":
		if a.Name == node {
			return Allow, "", nil
		}
		return NoOpinion, fmt.Sprintf("can only access %s with the same name as the requesting node", kind), nil
	}
	return NoOpinion, fmt.Sprintf("can only get, create, update, patch, or delete %s", one), nil
}

// ownNode lets a kubelet read its own Node; NodeRestriction ensures that it writes no other one.
func ownNode(node string, a *Attributes) (Decision, string, error) {
	switch a.Verb {
	case "update", "patch":
		if a.Subresource == "" || a.Subresource == "status" {
			return Allow, "", nil
		}
	case "create":
		if a.Subresource == "" {
			return Allow, "", nil
		}
	case "get", "list", "watch":
		switch {
		case a.Subresource != "":
		case a.Name == node:
			return Allow, "", nil
		case a.Name == "":
			return NoOpinion, fmt.Sprintf("node '%s' cannot read all nodes, only its own Node object", node), nil
		default:
			return NoOpinion, fmt.Sprintf("node '%s' cannot read '%s', only its own Node object", node, a.Name), nil
		}
	}
	return NoOpinion, "", nil
}

func (n *Node) pod(ctx context.Context, node string, a *Attributes) (Decision, string, error) {
	switch a.Subresource + "/" + a.Verb {
	case "/create", "/delete", "status/update", "status/patch", "eviction/create":
		// NodeRestriction limits these to the node's own pods.
		return Allow, "", nil
	case "/get":
		return n.related(ctx, node, a)
	case "/list", "/watch":
		switch {
		case a.selects("spec.nodeName", node):
			return Allow, "", nil
		case a.Name != "":
			return n.related(ctx, node, a)
		}
		return NoOpinion, "can only list/watch pods with spec.nodeName field selector", nil
	}
	return NoOpinion, "", nil
}

func (n *Node) slice(ctx context.Context, node string, a *Attributes) (Decision, string, error) {
	if a.Subresource != "" {
		return NoOpinion, "cannot authorize ResourceSlice subresources", nil
	}
	switch a.Verb {
	case "create":
		return Allow, "", nil
	case "get", "update", "patch", "delete":
		return n.related(ctx, node, a)
	case "list", "watch", "deletecollection":
		if a.selects("spec.nodeName", node) {
			return Allow, "", nil
		}
		return NoOpinion, "can only list/watch/deletecollection resourceslices with nodeName field selector", nil
	}
	return NoOpinion, "only the following verbs are allowed for a ResourceSlice: get, watch, list, create, " +
		"update, patch, delete, deletecollection", nil
}

// selects reports whether a list is restricted to a value of a field.
func (a *Attributes) selects(field, value string) bool {
	return slices.ContainsFunc(a.Fields, func(r fields.Requirement) bool {
		return r.Field == field && r.Value == value &&
			(r.Operator == selection.Equals || r.Operator == selection.DoubleEquals)
	})
}

// related allows a request for an object that the node's pods need.
func (n *Node) related(ctx context.Context, node string, a *Attributes) (Decision, string, error) {
	if a.Name == "" {
		return NoOpinion, "No Object name found", nil
	}
	ok, err := n.relates(ctx, node, a.Resource, a.Namespace, a.Name)
	if ok && err == nil {
		return Allow, "", nil
	}
	return NoOpinion, fmt.Sprintf("no relationship found between node '%s' and this object", node), err
}

func (n *Node) relates(ctx context.Context, node, resource, namespace, name string) (bool, error) {
	switch resource {
	case "persistentvolumes":
		return n.usesVolume(ctx, node, name)
	case "volumeattachments":
		va, err := n.Cluster.Attachment(ctx, name)
		return va != nil && va.Spec.NodeName == node, err
	case "resourceslices":
		slice, err := n.Cluster.Slice(ctx, name)
		return slice != nil && slice.Spec.NodeName != nil && *slice.Spec.NodeName == node, err
	}
	pods, err := n.Cluster.Pods(ctx, node, name)
	if err != nil {
		return false, err
	}
	for _, pod := range pods {
		// A node can create mirror pods itself, so they must not give it the right to read the objects that they
		// name.
		if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; mirror && resource != "pods" {
			continue
		}
		if pod.Namespace == namespace && podNames(pod, resource, name) {
			return true, nil
		}
	}
	if resource == "secrets" {
		return n.volumeNamesSecret(ctx, node, namespace, name)
	}
	return false, nil
}

// usesVolume reports whether a pod of the node uses the claim that the volume is bound to.
func (n *Node) usesVolume(ctx context.Context, node, name string) (bool, error) {
	pv, err := n.Cluster.Volume(ctx, name)
	if err != nil || pv == nil || pv.Spec.ClaimRef == nil {
		return false, err
	}
	ref := pv.Spec.ClaimRef
	pvc, err := n.Cluster.Claim(ctx, ref.Namespace, ref.Name)
	if err != nil || pvc == nil || pvc.Spec.VolumeName != name || ref.UID != "" && ref.UID != pvc.UID {
		return false, err
	}
	return n.relates(ctx, node, "persistentvolumeclaims", ref.Namespace, ref.Name)
}

// volumeNamesSecret reports whether a volume that the node uses needs the secret.
func (n *Node) volumeNamesSecret(ctx context.Context, node, namespace, name string) (bool, error) {
	volumes, err := n.Cluster.Volumes(ctx, name)
	if err != nil {
		return false, err
	}
	for _, pv := range volumes {
		if !slices.Contains(volumeSecrets(pv), corev1.SecretReference{Namespace: namespace, Name: name}) {
			continue
		}
		if ok, err := n.usesVolume(ctx, node, pv.Name); ok || err != nil {
			return ok, err
		}
	}
	return false, nil
}
