package admission

import (
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// byNode makes the agent of node-a the user of each write.
func byNode(decisions []decision) []decision {
	for _, d := range decisions {
		as(d.write, "system:node:node-a", "system:nodes")
	}
	return decisions
}

func podOn(node, name string, changes ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: meta(name)}
	pod.Spec.NodeName, pod.Spec.ServiceAccountName = node, "robot"
	return made(pod, changes...)
}

// mirrorPod returns a pod that node-a may create, with changes.
func mirrorPod(changes ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: meta("mirror")}
	pod.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "file"}
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "node-a",
		UID:        "node-a",
		Controller: ptr.To(true)}}
	pod.Spec.NodeName = "node-a"
	return made(pod, changes...)
}

// owned returns a mirror pod with a changed owner.
func owned(change func(*metav1.OwnerReference)) *corev1.Pod {
	return mirrorPod(func(p *corev1.Pod) { change(&p.OwnerReferences[0]) })
}

// mounting returns a mirror pod with a volume.
func mounting(v corev1.VolumeSource) *corev1.Pod {
	return mirrorPod(func(p *corev1.Pod) { p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: v}} })
}

func nodeWorld() *world {
	return newWorld(&corev1.Node{ObjectMeta: clusterMeta("node-a")},
		&corev1.Node{ObjectMeta: clusterMeta("node-b")},
		&corev1.ServiceAccount{ObjectMeta: meta("robot")}, podOn("node-a", "mine", withToken("")),
		podOn("node-b", "theirs", withToken("")))
}

// withToken gives a pod a volume with a token for an audience.
func withToken(audience string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "token", VolumeSource: corev1.VolumeSource{
			Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{
				ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Audience: audience}}}}}})
	}
}

func TestNodeRestriction_AppliesToNodesOnly(t *testing.T) {
	t.Parallel()
	node := &corev1.Node{ObjectMeta: clusterMeta("node-b")}
	nodeWorld().decides(t, "NodeRestriction", "", []decision{
		{name: "another user", write: creates(node)},
		{name: "a user of that name outside of the group", write: as(creates(node), "system:node:node-a")},
		{name: "a member of the group without a node", write: as(creates(node), "jane", "system:nodes"),
			words: `could not determine node from user "jane"`},
		{name: "an empty name of a node", write: as(creates(node), "system:node:", "system:nodes"),
			words: `could not determine node from user "system:node:"`},
	})
}

func TestNodeRestriction_ChecksMirrorPods(t *testing.T) {
	t.Parallel()
	alone := "can only create pods with an owner reference set to itself"
	nodeWorld().decides(t, "NodeRestriction", "", byNode([]decision{
		{name: "a mirror pod", write: creates(mirrorPod())},
		{name: "no mirror pod", write: creates(mirrorPod(func(p *corev1.Pod) { p.Annotations = nil })),
			words: `node "node-a" can only create mirror pods`},
		{name: "on another node", write: creates(mirrorPod(func(p *corev1.Pod) { p.Spec.NodeName = "node-b" })),
			words: "can only create pods with spec.nodeName set to itself"},
		{name: "two owners", write: creates(mirrorPod(func(p *corev1.Pod) {
			p.OwnerReferences = append(p.OwnerReferences, metav1.OwnerReference{Name: "other"})
		})), words: "with a single owner reference"},
		{name: "no owner", write: creates(mirrorPod(func(p *corev1.Pod) { p.OwnerReferences = nil })),
			words: alone},
		{name: "an owner of another API version", words: alone,
			write: creates(owned(func(r *metav1.OwnerReference) { r.APIVersion = "v2" }))},
		{name: "an owner of another kind", words: alone,
			write: creates(owned(func(r *metav1.OwnerReference) { r.Kind = "Pod" }))},
		{name: "another node as owner", words: alone,
			write: creates(owned(func(r *metav1.OwnerReference) { r.Name, r.UID = "node-b", "node-b" }))},
		{name: "an owner that is no controller", words: "with a controller owner reference set to itself",
			write: creates(owned(func(r *metav1.OwnerReference) { r.Controller = nil }))},
		{name: "an owner whose deletion it blocks", words: "must not set blockOwnerDeletion",
			write: creates(owned(func(r *metav1.OwnerReference) { r.BlockOwnerDeletion = ptr.To(true) }))},
		{name: "an earlier Node of its name as owner", words: "UID mismatch: expected earlier got node-a",
			write: creates(owned(func(r *metav1.OwnerReference) { r.UID = "earlier" }))},
		{name: "a service account", words: "that reference a service account",
			write: creates(mirrorPod(func(p *corev1.Pod) { p.Spec.ServiceAccountName = "robot" }))},
		{name: "a secret", words: "that reference secrets",
			write: creates(mounting(corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}))},
		{name: "a config map", words: "that reference configmaps",
			write: creates(mounting(corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{}}))},
		{name: "a claim", words: "that reference persistentvolumeclaims",
			write: creates(mounting(corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}))},
		{name: "a trust bundle", words: "that reference clustertrustbundles",
			write: creates(mounting(corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
				Sources: []corev1.VolumeProjection{{ClusterTrustBundle: &corev1.ClusterTrustBundleProjection{}}}}}))},
		{name: "a device", words: "that reference resourceclaims",
			write: creates(mirrorPod(func(p *corev1.Pod) {
				p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu"}}
			}))},
	}))
	newWorld().decides(t, "NodeRestriction", "", byNode([]decision{
		{name: "a Node that does not exist", write: creates(mirrorPod()),
			words: "error looking up node node-a to verify uid"},
	}))
}

func TestNodeRestriction_ChecksPods(t *testing.T) {
	t.Parallel()
	mine, theirs := podOn("node-a", "mine"), podOn("node-b", "theirs")
	eviction := func(name string) *Attributes {
		return subresource(creates(&policyv1.Eviction{ObjectMeta: meta(name)}), "eviction")
	}
	changed := func(change func(*corev1.Pod)) *Attributes {
		return subresource(updates(made(mine, change),
			mine), "status")
	}
	nodeWorld().decides(t, "NodeRestriction", "", byNode([]decision{
		{name: "its pod's end", write: deletes(mine)},
		{name: "another's end", write: deletes(theirs),
			words: "can only delete pods with spec.nodeName set to itself"},
		{name: "an update", write: updates(mine, mine), words: "can only create and delete mirror pods"},
		{name: "its pod's status", write: changed(func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning })},
		{name: "another's status", write: subresource(updates(theirs, theirs), "status"),
			words: "can only update pod status for pods with spec.nodeName set to itself"},
		{name: "a status with a label", words: "cannot update labels through pod status",
			write: changed(func(p *corev1.Pod) { p.Labels = map[string]string{"a": "b"} })},
		{name: "a status with a device", words: "cannot update resource claim statues",
			write: changed(func(p *corev1.Pod) {
				p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "gpu"}}
			})},
		{name: "a status with an extended resource's claim", words: "cannot update extended resource claim status",
			write: changed(func(p *corev1.Pod) {
				p.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "gpu"}
			})},
		{name: "a status that is created", write: subresource(creates(mine), "status"),
			words: `unexpected pod subresource "status"`},
		{name: "its pod's eviction", write: eviction("mine")},
		{name: "another's eviction", write: eviction("theirs"),
			words: "can only evict pods with spec.nodeName set to itself"},
		{name: "nothing's eviction", write: eviction("none"), words: `pods "none" not found`,
			reason: metav1.StatusReasonNotFound},
		{name: "a binding", write: subresource(creates(&corev1.Binding{ObjectMeta: meta("mine")}), "binding"),
			words: `unexpected pod subresource "binding"`},
	}))
}

func TestNodeRestriction_ChecksNodes(t *testing.T) {
	t.Parallel()
	a, b := &corev1.Node{ObjectMeta: clusterMeta("node-a")}, &corev1.Node{ObjectMeta: clusterMeta("node-b")}
	const notMine = `node "node-a" is not allowed to modify node "node-b"`
	source := func(name string) func(*corev1.Node) {
		return func(n *corev1.Node) {
			n.Spec.ConfigSource = &corev1.NodeConfigSource{ConfigMap: &corev1.ConfigMapNodeConfigSource{Name: name}}
		}
	}
	changed := func(change func(*corev1.Node)) *Attributes { return updates(made(a, change), a) }
	nodeWorld().decides(t, "NodeRestriction", "", byNode([]decision{
		{name: "its creation", write: creates(a)},
		{name: "another's creation", write: creates(b), words: notMine},
		{name: "another's update", write: updates(b, b), words: notMine},
		{name: "another's status", write: subresource(updates(b, b), "status"), words: notMine},
		{name: "another's end", write: deletes(b), words: notMine},
		{name: "its end", write: deletes(a)},
		{name: "a configuration at its creation", write: creates(made(a, source("c"))),
			words: "with a non-nil configSource"},
		{name: "a new configuration", write: changed(source("c")),
			words: "is not allowed to update configSource"},
		{name: "the configuration that it has", write: updates(made(a, source("c")), made(a, source("c")))},
		{name: "no configuration any more", write: updates(a, made(a, source("c")))},
		{name: "a taint", words: "is not allowed to modify taints", write: changed(func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "k"}}
		})},
		{name: "an owner", words: "is not allowed to modify ownerReferences",
			write: changed(func(n *corev1.Node) {
				n.OwnerReferences = []metav1.OwnerReference{{Name: "o"}}
			})},
	}))
}

func TestNodeRestriction_ChecksLabels(t *testing.T) {
	t.Parallel()
	node := func(key, value string) *corev1.Node {
		n := &corev1.Node{ObjectMeta: clusterMeta("node-a")}
		if value != "" {
			n.Labels = map[string]string{key: value}
		}
		return n
	}
	for key, allowed := range map[string]bool{
		"plain": true, "example.com/a": true, "kubernetes.io/hostname": true,
		"topology.kubernetes.io/zone": true,
		"beta.kubernetes.io/os":       true, "kubelet.kubernetes.io/a": true, "node.kubernetes.io/a": true,
		"sub.node.kubernetes.io/a": true, "notkubernetes.io/a": true,
		"node-restriction.kubernetes.io/a": false, "sub.node-restriction.kubernetes.io/a": false,
		"kubernetes.io/a": false, "k8s.io/a": false, "sub.k8s.io/a": false,
		"node-role.kubernetes.io/master": false,
	} {
		decisions := byNode([]decision{
			{name: "set at its creation", write: creates(node(key, "b")),
				words: "is not allowed to set the following labels: " + key},
			{name: "added", write: updates(node(key, "b"), node(key, "")),
				words: "is not allowed to modify labels: " + key},
			{name: "changed", write: updates(node(key, "c"), node(key, "b")),
				words: "is not allowed to modify labels: " + key},
			{name: "removed", write: updates(node(key, ""), node(key, "b")),
				words: "is not allowed to modify labels: " + key},
			{name: "kept", write: updates(node(key, "b"), node(key, "b"))},
		})
		for i := range decisions {
			decisions[i].name = key + " " + decisions[i].name
			if allowed {
				decisions[i].words = ""
			}
		}
		nodeWorld().decides(t, "NodeRestriction", "", decisions)
	}
}

func TestNodeRestriction_ChecksClaims(t *testing.T) {
	t.Parallel()
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: meta("c")}
	changed := func(change func(*corev1.PersistentVolumeClaim)) *Attributes {
		return subresource(updates(made(claim, change), claim), "status")
	}
	nodeWorld().decides(t, "NodeRestriction", "", byNode([]decision{
		{name: "what it reports of a resize", write: changed(func(c *corev1.PersistentVolumeClaim) {
			size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
			c.ResourceVersion, c.ManagedFields = "2", []metav1.ManagedFieldsEntry{{Manager: "kubelet"}}
			c.Status.Capacity, c.Status.AllocatedResources = size, size
			c.Status.Conditions = []corev1.PersistentVolumeClaimCondition{{Type: "Resizing"}}
			c.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{"storage": "x"}
		})},
		{name: "the claim itself", write: updates(claim, claim), words: "may only update PVC status"},
		{name: "a status that is created", write: subresource(creates(claim), "status"),
			words: `unexpected operation "CREATE"`},
		{name: "a phase", words: "is not allowed to update fields other than status.quantity",
			write: changed(func(c *corev1.PersistentVolumeClaim) { c.Status.Phase = corev1.ClaimBound })},
		{name: "a label", words: "is not allowed to update fields other than status.quantity",
			write: changed(func(c *corev1.PersistentVolumeClaim) { c.Labels = map[string]string{"a": "b"} })},
	}))
}

func TestNodeRestriction_ChecksObjectsWithItsName(t *testing.T) {
	t.Parallel()
	lease := func(namespace, name string) *coordinationv1.Lease {
		return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	}
	csi := func(name string) *storagev1.CSINode { return &storagev1.CSINode{ObjectMeta: clusterMeta(name)} }
	slice := func(node *string) *resourcev1.ResourceSlice {
		return &resourcev1.ResourceSlice{ObjectMeta: clusterMeta("s"),
			Spec: resourcev1.ResourceSliceSpec{NodeName: node}}
	}
	const (
		itsLease = "can only access node lease with the same name as the requesting node"
		itsCSI   = "can only access CSINode with the same name as the requesting node"
	)
	mine, theirs := lease("kube-node-lease", "node-a"), lease("kube-node-lease", "node-b")
	nodeWorld().decides(t, "NodeRestriction", "", byNode([]decision{
		{name: "its lease", write: creates(mine)},
		{name: "its lease's renewal", write: updates(mine, mine)},
		{name: "another's lease", write: creates(theirs), words: itsLease},
		{name: "another's renewal", write: updates(theirs, theirs), words: itsLease},
		{name: "another's end", write: deletes(theirs), words: itsLease},
		{name: "a lease elsewhere", write: creates(lease("default", "node-a")),
			words: `can only access leases in the "kube-node-lease" system namespace`},
		{name: "its CSINode", write: creates(csi("node-a"))},
		{name: "another's CSINode", write: creates(csi("node-b")), words: itsCSI},
		{name: "another's CSINode's update", write: updates(csi("node-b"), csi("node-b")), words: itsCSI},
		{name: "its devices", write: creates(slice(ptr.To("node-a")))},
		{name: "its devices' end", write: deletes(slice(ptr.To("node-a")))},
		{name: "another's devices", write: creates(slice(ptr.To("node-b"))),
			words: "can only create ResourceSlice"},
		{name: "another's devices' end", write: deletes(slice(ptr.To("node-b"))),
			words: "can only delete ResourceSlice"},
		{name: "devices of no node", write: creates(slice(nil)), words: "can only create ResourceSlice"},
	}))
}
