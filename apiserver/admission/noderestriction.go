package admission

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilsets "k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/apiserver/admission/nodewrites"
	"github.com/coxswain-dev/coxswain/apiserver/authn"
)

// nodeRestriction limits users system:node:NAME in the group system:nodes to their own objects, within the rights
// that authorization grants to every node.
// https://kubernetes.io/docs/reference/access-authn-authz/admission-controllers/#noderestriction
type nodeRestriction struct {
	cluster Cluster
	// tokenAudiences are Options.TokenAudiences.
	tokenAudiences []string
}

func newNodeRestriction(env *Env) (Plugin, error) {
	return &nodeRestriction{env.Cluster, env.Options.TokenAudiences}, nil
}

// nodeOf returns the name of the node if the user is its agent. isNode is true with an empty name for an agent
// whose user name lacks one.
func nodeOf(user *authn.User) (name string, isNode bool) {
	name, ok := strings.CutPrefix(user.Name, "system:node:")
	if !ok {
		name = ""
	}
	return name, slices.Contains(user.Groups, "system:nodes")
}

func (p *nodeRestriction) Validate(ctx context.Context, a *Attributes) error {
	node, isNode := nodeOf(a.User)
	if !isNode {
		return nil
	}
	if node == "" {
		return a.Forbid(fmt.Errorf("could not determine node from user %q", a.User.Name))
	}
	var err error
	switch a.Resource.Resource {
	case "pods":
		err = p.pod(ctx, node, a)
	case "nodes":
		err = p.node(ctx, node, a)
	case "persistentvolumeclaims":
		err = restrictClaim(node, a)
	case "serviceaccounts":
		err = p.token(ctx, node, a)
	case "leases":
		err = restrictLease(node, a)
	case "csinodes":
		if objectName(a) != node {
			err = errors.New("can only access CSINode with the same name as the requesting node")
		}
	case "podcertificaterequests":
		err = p.podCertificate(ctx, node, a)
	case "certificatesigningrequests":
		err = restrictSigningRequest(node, a)
	case "resourceslices":
		err = restrictSlice(node, a)
	}
	var retry *apierrors.StatusError
	if errors.As(err, &retry) {
		return err
	}
	if err != nil {
		return a.Forbid(err)
	}
	return nil
}

func objectName(a *Attributes) string {
	if a.Operation == Create {
		return a.Object.GetName()
	}
	return a.Name
}

func (p *nodeRestriction) pod(ctx context.Context, node string, a *Attributes) error {
	switch {
	case a.Subresource == "" && a.Operation == Create:
		return p.mirrorPod(ctx, node, a.Object.(*corev1.Pod))
	case a.Subresource == "" && a.Operation == Delete:
		if a.Old.(*corev1.Pod).Spec.NodeName != node {
			return fmt.Errorf("node %q can only delete pods with spec.nodeName set to itself", node)
		}
	case a.Subresource == "":
		return fmt.Errorf("unexpected operation %q, node %q can only create and delete mirror pods", a.Operation, node)
	case a.Subresource == "status" && a.Operation == Update:
		return p.podStatus(ctx, node, a.Object.(*corev1.Pod), a.Old.(*corev1.Pod))
	case a.Subresource == "eviction":
		pod, err := get[*corev1.Pod](ctx, p.cluster, pods, a.Namespace, a.Name)
		if err != nil {
			return notFound(err, pods, a.Name)
		}
		if pod.Spec.NodeName != node {
			return fmt.Errorf("node %s can only evict pods with spec.nodeName set to itself", node)
		}
	default:
		return fmt.Errorf("unexpected pod subresource %q, only 'status' and 'eviction' are allowed", a.Subresource)
	}
	return nil
}

// mirrorPod lets a node create pods that mirror its static pods, and no others: a pod that refers to secrets would
// let the node read them.
func (p *nodeRestriction) mirrorPod(ctx context.Context, node string, pod *corev1.Pod) error {
	if !isMirror(pod) {
		return fmt.Errorf("pod does not have %q annotation, node %q can only create mirror pods",
			corev1.MirrorPodAnnotationKey, node)
	}
	if pod.Spec.NodeName != node {
		return fmt.Errorf("node %q can only create pods with spec.nodeName set to itself", node)
	}
	if err := p.ownedBy(ctx, node, pod.OwnerReferences); err != nil {
		return err
	}
	if pod.Spec.ServiceAccountName != "" {
		return fmt.Errorf("node %q can not create pods that reference a service account", node)
	}
	for use := range podReferences(pod) {
		return fmt.Errorf("node %q can not create pods that reference %s", node, use.kind)
	}
	if len(pod.Spec.ResourceClaims) > 0 {
		return fmt.Errorf("node %q can not create pods that reference resourceclaims", node)
	}
	return nil
}

func (p *nodeRestriction) ownedBy(ctx context.Context, node string, owners []metav1.OwnerReference) error {
	if len(owners) > 1 {
		return fmt.Errorf("node %q can only create pods with a single owner reference set to itself", node)
	}
	if len(owners) == 0 || owners[0].APIVersion != "v1" || owners[0].Kind != "Node" || owners[0].Name != node {
		return fmt.Errorf("node %q can only create pods with an owner reference set to itself", node)
	}
	owner := owners[0]
	if !ptr.Deref(owner.Controller, false) {
		return fmt.Errorf("node %q can only create pods with a controller owner reference set to itself", node)
	}
	if ptr.Deref(owner.BlockOwnerDeletion, false) {
		return fmt.Errorf("node %q must not set blockOwnerDeletion on an owner reference", node)
	}
	is, err := get[*corev1.Node](ctx, p.cluster, nodes, "", node)
	if err != nil {
		return fmt.Errorf("error looking up node %s to verify uid: %w", node, err)
	}
	if owner.UID != is.UID {
		return fmt.Errorf("node %s UID mismatch: expected %s got %s", node, owner.UID, is.UID)
	}
	return nil
}

func (p *nodeRestriction) podStatus(ctx context.Context, node string, pod, old *corev1.Pod) error {
	switch {
	case old.Spec.NodeName != node:
		return fmt.Errorf("node %q can only update pod status for pods with spec.nodeName set to itself", node)
	case !equality.Semantic.DeepEqual(pod.Labels, old.Labels):
		return fmt.Errorf("node %q cannot update labels through pod status", node)
	case !equality.Semantic.DeepEqual(pod.Status.ResourceClaimStatuses, old.Status.ResourceClaimStatuses):
		return fmt.Errorf("node %q cannot update resource claim statues", node)
	case !equality.Semantic.DeepEqual(pod.Status.ExtendedResourceClaimStatus, old.Status.ExtendedResourceClaimStatus):
		// The Node authorizer lets the node read the claim that it names.
		return fmt.Errorf("node %q cannot update extended resource claim status", node)
	}
	return nodewrites.OfPod(ctx, nodeCluster{p.cluster}, pod, old)
}

func (p *nodeRestriction) node(ctx context.Context, node string, a *Attributes) error {
	if name := objectName(a); name != node {
		return fmt.Errorf("node %q is not allowed to modify node %q", node, name)
	}
	switch a.Operation {
	case Create:
		is := a.Object.(*corev1.Node)
		if is.Spec.ConfigSource != nil {
			return fmt.Errorf("node %q is not allowed to create pods with a non-nil configSource", node)
		}
		if labels := forbiddenLabels(is.Labels, nil); len(labels) > 0 {
			return fmt.Errorf("node %q is not allowed to set the following labels: %s", node,
				strings.Join(labels, ", "))
		}
		return nodewrites.OfNode(ctx, nodeCluster{p.cluster}, is, &corev1.Node{})
	case Update:
		is, was := a.Object.(*corev1.Node), a.Old.(*corev1.Node)
		switch {
		case is.Spec.ConfigSource != nil && !equality.Semantic.DeepEqual(is.Spec.ConfigSource, was.Spec.ConfigSource):
			return fmt.Errorf("node %q is not allowed to update configSource to a new non-nil configSource", node)
		case !equality.Semantic.DeepEqual(is.Spec.Taints, was.Spec.Taints):
			return fmt.Errorf("node %q is not allowed to modify taints", node)
		case !equality.Semantic.DeepEqual(is.OwnerReferences, was.OwnerReferences):
			return fmt.Errorf("node %q is not allowed to modify ownerReferences", node)
		}
		if labels := forbiddenLabels(is.Labels, was.Labels); len(labels) > 0 {
			return fmt.Errorf("is not allowed to modify labels: %s", strings.Join(labels, ", "))
		}
		return nodewrites.OfNode(ctx, nodeCluster{p.cluster}, is, was)
	}
	return nil
}

// kubeletLabels are the labels of Kubernetes' own domains that a node may set on itself, in addition to the labels
// in kubeletLabelDomains.
var (
	kubeletLabels = utilsets.New(corev1.LabelHostname, corev1.LabelTopologyZone, corev1.LabelTopologyRegion,
		corev1.LabelFailureDomainBetaZone, corev1.LabelFailureDomainBetaRegion, corev1.LabelInstanceType,
		corev1.LabelInstanceTypeStable, corev1.LabelOSStable, corev1.LabelArchStable, "beta.kubernetes.io/os",
		"beta.kubernetes.io/arch")
	kubeletLabelDomains = []string{"kubelet.kubernetes.io", "node.kubernetes.io"}
)

// forbiddenLabels returns the changed labels that a node must not set, since it could attract pods with them.
func forbiddenLabels(is, was map[string]string) []string {
	changed := utilsets.New[string]()
	for _, pair := range [][2]map[string]string{{is, was}, {was, is}} {
		for key, value := range pair[0] {
			if other, ok := pair[1][key]; !ok || other != value {
				changed.Insert(key)
			}
		}
	}
	return slices.DeleteFunc(utilsets.List(changed), func(key string) bool {
		domain, _, ok := strings.Cut(key, "/")
		if !ok {
			return true
		}
		if inDomain(domain, corev1.LabelNamespaceNodeRestriction) {
			return false
		}
		if !inDomain(domain, "kubernetes.io") && !inDomain(domain, "k8s.io") || kubeletLabels.Has(key) {
			return true
		}
		return slices.ContainsFunc(kubeletLabelDomains, func(kubelet string) bool { return inDomain(domain, kubelet) })
	})
}

func inDomain(domain, parent string) bool {
	return domain == parent || strings.HasSuffix(domain, "."+parent)
}

func restrictClaim(node string, a *Attributes) error {
	if a.Subresource != "status" {
		return errors.New("may only update PVC status")
	}
	if a.Operation != Update {
		return fmt.Errorf("unexpected operation %q", a.Operation)
	}
	was, is := a.Old.(*corev1.PersistentVolumeClaim).DeepCopy(), a.Object.(*corev1.PersistentVolumeClaim).DeepCopy()
	for _, claim := range []*corev1.PersistentVolumeClaim{was, is} {
		claim.ResourceVersion, claim.ManagedFields = "", nil
		claim.Status.Capacity, claim.Status.Conditions = nil, nil
		claim.Status.AllocatedResources, claim.Status.AllocatedResourceStatuses = nil, nil
	}
	if !equality.Semantic.DeepEqual(was, is) {
		return fmt.Errorf("node %q is not allowed to update fields other than status.quantity, status.conditions, "+
			"status.allocatedResourceStatuses and status.allocatedResources", node)
	}
	return nil
}

func restrictLease(node string, a *Attributes) error {
	if a.Namespace != corev1.NamespaceNodeLease {
		return fmt.Errorf("can only access leases in the %q system namespace", corev1.NamespaceNodeLease)
	}
	if objectName(a) != node {
		return errors.New("can only access node lease with the same name as the requesting node")
	}
	return nil
}

// nodeCluster provides the state that nodewrites' rows need.
type nodeCluster struct{ Cluster }

func (c nodeCluster) Node(ctx context.Context, name string) (*corev1.Node, error) {
	node, err := get[*corev1.Node](ctx, c, nodes, "", name)
	if errors.Is(err, ErrNotFound) {
		return nil, nil
	}
	return node, err
}

func (c nodeCluster) Nodes(ctx context.Context) ([]*corev1.Node, error) {
	return list[*corev1.Node](ctx, c, nodes, "")
}

func (c nodeCluster) ServiceCIDRs(ctx context.Context) ([]*networkingv1.ServiceCIDR, error) {
	return list[*networkingv1.ServiceCIDR](ctx, c, serviceCIDRs, "")
}

func (c nodeCluster) PodsMentioning(ctx context.Context, text string) ([]*corev1.Pod, error) {
	found, err := c.Mentioning(ctx, pods, text)
	return assert[*corev1.Pod](found), err
}
