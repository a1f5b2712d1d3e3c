package authz

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/utils/ptr"
)

// nodeObjects is a Cluster of a few objects.
type nodeObjects struct {
	pods        []*corev1.Pod
	volumes     []*corev1.PersistentVolume
	claims      []*corev1.PersistentVolumeClaim
	attachments []*storagev1.VolumeAttachment
	slices      []*resourcev1.ResourceSlice
}

func (o *nodeObjects) Pods(_ context.Context, node, _ string) (found []*corev1.Pod, err error) {
	for _, pod := range o.pods {
		if pod.Spec.NodeName == node {
			found = append(found, pod)
		}
	}
	return found, nil
}

func (o *nodeObjects) Volumes(context.Context, string) ([]*corev1.PersistentVolume, error) {
	return o.volumes, nil
}

func (o *nodeObjects) Volume(_ context.Context, name string) (*corev1.PersistentVolume, error) {
	return called(o.volumes, "", name), nil
}

func (o *nodeObjects) Claim(_ context.Context, namespace, name string) (*corev1.PersistentVolumeClaim, error) {
	return called(o.claims, namespace, name), nil
}

func (o *nodeObjects) Attachment(_ context.Context, name string) (*storagev1.VolumeAttachment, error) {
	return called(o.attachments, "", name), nil
}

func (o *nodeObjects) Slice(_ context.Context, name string) (*resourcev1.ResourceSlice, error) {
	return called(o.slices, "", name), nil
}

// called returns the object with a name, nil if there is none.
func called[T metav1.Object](objects []T, namespace, name string) (none T) {
	for _, obj := range objects {
		if obj.GetNamespace() == namespace && obj.GetName() == name {
			return obj
		}
	}
	return none
}

// usingAll returns a pod in the namespace web that uses one object of each kind, named after the pod.
func usingAll(name, node string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "web", Name: name}}
	pod.Spec.NodeName, pod.Spec.ServiceAccountName = node, name+"-account"
	pod.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: name + "-secret"}}
	pod.Spec.Volumes = []corev1.Volume{
		{VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: name + "-map"}}}},
		{VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{
			ClaimName: name + "-claim"}}},
		{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}},
	}
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu",
		ResourceClaimName: ptr.To(name + "-device")}}
	return pod
}

// volumeOf returns a volume that is bound to a claim and needs a secret.
func volumeOf(name, claim string) *corev1.PersistentVolume {
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}}
	pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "web", Name: claim, UID: "1"}
	pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{
		NodeStageSecretRef: &corev1.SecretReference{Namespace: "web", Name: name + "-secret"}}
	return pv
}

func claimOf(name, volume string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "web", Name: name, UID: "1"},
		Spec: corev1.PersistentVolumeClaimSpec{VolumeName: volume}}
}

// twoNodes returns a pod "mine" on node a, a pod "theirs" on node b, the objects that they use, and a mirror pod on
// node a.
func twoNodes() *nodeObjects {
	mirror := usingAll("mirror", "a")
	mirror.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "file"}
	mine := usingAll("mine", "a")
	mine.Spec.Volumes = append(mine.Spec.Volumes, corev1.Volume{VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "new-claim"}}})
	earlier := volumeOf("earlier-volume", "new-claim")
	earlier.Spec.ClaimRef.UID = "0"
	free := volumeOf("free-volume", "")
	free.Spec.ClaimRef = nil
	attached := func(name, node string) *storagev1.VolumeAttachment {
		return &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: storagev1.VolumeAttachmentSpec{NodeName: node}}
	}
	devices := func(name string, node *string) *resourcev1.ResourceSlice {
		return &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: resourcev1.ResourceSliceSpec{NodeName: node}}
	}
	return &nodeObjects{
		pods: []*corev1.Pod{mine, usingAll("theirs", "b"), mirror},
		volumes: []*corev1.PersistentVolume{volumeOf("mine-volume", "mine-claim"),
			volumeOf("theirs-volume", "theirs-claim"), volumeOf("other-volume", "mine-claim"),
			volumeOf("lost-volume", "lost-claim"), earlier, free},
		claims: []*corev1.PersistentVolumeClaim{claimOf("mine-claim", "mine-volume"),
			claimOf("theirs-claim", "theirs-volume"), claimOf("new-claim", "earlier-volume")},
		attachments: []*storagev1.VolumeAttachment{attached("mine", "a"), attached("theirs", "b")},
		slices: []*resourcev1.ResourceSlice{devices("mine", ptr.To("a")), devices("theirs", ptr.To("b")),
			devices("shared", nil)},
	}
}

// decidesNode requires decisions about requests of node a's kubelet: by the request, the reason of the rejection,
// or "allowed".
func decidesNode(t *testing.T, want map[string]string) {
	t.Helper()
	n := NewNode(twoNodes())
	for text, words := range want {
		d, reason, err := n.Authorize(t.Context(), asking(user("system:node:a", "system:nodes"), text))
		require.NoError(t, err, text)
		if words == "allowed" {
			require.Equal(t, Allow, d, "%s: %s", text, reason)
			continue
		}
		require.Equal(t, NoOpinion, d, text)
		require.Equal(t, words, reason, text)
	}
}

const (
	unrelated      = "no relationship found between node 'a' and this object"
	readOnly       = "can only read resources of this type"
	getOnly        = "can only get individual resources of this type"
	tokensOnly     = "can only create tokens for individual service accounts"
	notAToken      = "can only create token subresource of serviceaccount"
	ownLease       = "can only access node lease with the same name as the requesting node"
	ownCSINode     = "can only access CSINode with the same name as the requesting node"
	ownLeaseVerbs  = "can only get, create, update, patch, or delete a node lease"
	ownCSIVerbs    = "can only get, create, update, patch, or delete a CSINode"
	leaseNamespace = `can only access leases in the "kube-node-lease" system namespace`
)

func TestNode_ReadsTheObjectsOfItsPods(t *testing.T) {
	t.Parallel()
	decidesNode(t, map[string]string{
		"get secrets in web named mine-secret":                               "allowed",
		"list secrets in web named mine-secret":                              "allowed",
		"watch secrets in web named mine-secret":                             "allowed",
		"get secrets in web named theirs-secret":                             unrelated,
		"get secrets in web named mirror-secret":                             unrelated,
		"get secrets in ops named mine-secret":                               unrelated,
		"get secrets in web":                                                 "No Object name found",
		"list secrets":                                                       "can only read namespaced object of this type",
		"update secrets in web named mine-secret":                            readOnly,
		"get secrets/status in web named mine-secret":                        "cannot read subresource",
		"get configmaps in web named mine-map":                               "allowed",
		"get configmaps in web named theirs-map":                             unrelated,
		"delete configmaps in web named mine-map":                            readOnly,
		"get resource.k8s.io:resourceclaims in web named mine-device":        "allowed",
		"get resource.k8s.io:resourceclaims in web named theirs-device":      unrelated,
		"list resource.k8s.io:resourceclaims in web named mine-device":       getOnly,
		"get resource.k8s.io:resourceclaims/status in web named mine-device": "cannot get subresource",
	})
}

func TestNode_UsesTheVolumesOfItsPods(t *testing.T) {
	t.Parallel()
	decidesNode(t, map[string]string{
		"get persistentvolumeclaims in web named mine-claim":            "allowed",
		"get persistentvolumeclaims in web named mine-scratch":          "allowed",
		"get persistentvolumeclaims in web named theirs-claim":          unrelated,
		"list persistentvolumeclaims in web":                            getOnly,
		"update persistentvolumeclaims in web named mine-claim":         getOnly,
		"update persistentvolumeclaims/status in web named mine-claim":  "allowed",
		"patch persistentvolumeclaims/status in web named mine-claim":   "allowed",
		"patch persistentvolumeclaims/status in web named theirs-claim": unrelated,
		"delete persistentvolumeclaims/status in web named mine-claim":  "can only get/update/patch this type",
		"get persistentvolumes named mine-volume":                       "allowed",
		"get persistentvolumes named theirs-volume":                     unrelated,
		// its claim is bound to another one
		"get persistentvolumes named other-volume": unrelated,
		// it belongs to an earlier claim of that name
		"get persistentvolumes named earlier-volume":        unrelated,
		"get persistentvolumes named lost-volume":           unrelated,
		"get persistentvolumes named free-volume":           unrelated,
		"get persistentvolumes named none":                  unrelated,
		"list persistentvolumes":                            getOnly,
		"get secrets in web named mine-volume-secret":       "allowed",
		"get secrets in web named theirs-volume-secret":     unrelated,
		"get secrets in ops named mine-volume-secret":       unrelated,
		"get storage.k8s.io:volumeattachments named mine":   "allowed",
		"get storage.k8s.io:volumeattachments named theirs": unrelated,
		"get storage.k8s.io:volumeattachments named none":   unrelated,
		"list storage.k8s.io:volumeattachments":             getOnly,
	})
}

func TestNode_RequestsTokensOfItsPodsAccounts(t *testing.T) {
	t.Parallel()
	decidesNode(t, map[string]string{
		"get serviceaccounts in web named mine-account":            "allowed",
		"get serviceaccounts in web named theirs-account":          unrelated,
		"create serviceaccounts/token in web named mine-account":   "allowed",
		"create serviceaccounts/token in web named theirs-account": unrelated,
		"create serviceaccounts/token in web named mirror-account": unrelated,
		"create serviceaccounts/token in ops named mine-account":   unrelated,
		"create serviceaccounts/token in web":                      tokensOnly,
		"create serviceaccounts in web named mine-account":         notAToken,
		"create serviceaccounts/status in web named mine-account":  notAToken,
		"get serviceaccounts/token in web named mine-account":      tokensOnly,
		"update serviceaccounts/token in web named mine-account":   tokensOnly,
		"list serviceaccounts in web":                              tokensOnly,
	})
}

func TestNode_WritesTheObjectsOfItsName(t *testing.T) {
	t.Parallel()
	want := map[string]string{
		"create coordination.k8s.io:leases in kube-node-lease": "allowed",
		"get coordination.k8s.io:leases in default named a":    leaseNamespace,
		"create coordination.k8s.io:leases in default":         leaseNamespace,
		"list coordination.k8s.io:leases in kube-node-lease":   ownLeaseVerbs,
		"create storage.k8s.io:csinodes":                       "allowed",
		"list storage.k8s.io:csinodes":                         ownCSIVerbs,
		"update storage.k8s.io:csinodes/status named a":        "cannot authorize CSINode subresources",
		"create nodes":                                         "allowed",
		"create nodes/status":                                  "",
		"update nodes named a":                                 "allowed",
		"patch nodes/status named a":                           "allowed",
		"update nodes/proxy named a":                           "",
		"delete nodes named a":                                 "",
		"get nodes named a":                                    "allowed",
		"watch nodes named a":                                  "allowed",
		"get nodes/proxy named a":                              "",
		"list nodes":                                           "node 'a' cannot read all nodes, only its own Node object",
		"get nodes named b":                                    "node 'a' cannot read 'b', only its own Node object",
		"create resource.k8s.io:resourceslices":                "allowed",
		"get resource.k8s.io:resourceslices named mine":        "allowed",
		"delete resource.k8s.io:resourceslices named theirs":   unrelated,
		"update resource.k8s.io:resourceslices named shared":   unrelated,
		"patch resource.k8s.io:resourceslices named none":      unrelated,
		"get resource.k8s.io:resourceslices/status named mine": "cannot authorize ResourceSlice subresources",
		"list resource.k8s.io:resourceslices":                  "can only list/watch/deletecollection resourceslices with nodeName field selector",
		"frobnicate resource.k8s.io:resourceslices": "only the following verbs are allowed for a ResourceSlice: get, " +
			"watch, list, create, update, patch, delete, deletecollection",
	}
	for _, verb := range []string{"get", "update", "patch", "delete"} {
		want[verb+" coordination.k8s.io:leases in kube-node-lease named a"] = "allowed"
		want[verb+" coordination.k8s.io:leases in kube-node-lease named b"] = ownLease
		want[verb+" storage.k8s.io:csinodes named a"] = "allowed"
		want[verb+" storage.k8s.io:csinodes named b"] = ownCSINode
	}
	decidesNode(t, want)
}

func TestNode_ReadsItsPods(t *testing.T) {
	t.Parallel()
	const selectorless = "can only list/watch pods with spec.nodeName field selector"
	decidesNode(t, map[string]string{
		"create pods in web": "allowed", "delete pods in web named theirs": "allowed",
		// NodeRestriction limits these
		"update pods/status in web named mine": "allowed", "patch pods/status in web named mine": "allowed",
		"create pods/eviction in web named mine": "allowed",
		"update pods in web named mine":          "", "create pods/binding in web named mine": "",
		"get pods/log in web named mine": "", "deletecollection pods in web": "",
		"get pods in web named mine": "allowed", "get pods in web named mirror": "allowed",
		"get pods in web named theirs": unrelated, "get pods in ops named mine": unrelated,
		"list pods in web named mine": "allowed", "watch pods in web named theirs": unrelated,
		"list pods": selectorless, "watch pods in web": selectorless,
	})
}

func TestNode_ListsByItsNameAlone(t *testing.T) {
	t.Parallel()
	n := NewNode(twoNodes())
	for _, text := range []string{"list pods", "watch pods in web", "list resource.k8s.io:resourceslices",
		"watch resource.k8s.io:resourceslices", "deletecollection resource.k8s.io:resourceslices"} {
		for selector, want := range map[string]Decision{
			"spec.nodeName=a": Allow, "spec.nodeName==a": Allow, "spec.nodeName=a,metadata.name=x": Allow,
			"spec.nodeName=b": NoOpinion, "spec.nodeName!=a": NoOpinion, "metadata.name=a": NoOpinion,
		} {
			a := asking(user("system:node:a", "system:nodes"), text)
			parsed, err := fields.ParseSelector(selector)
			require.NoError(t, err)
			a.Fields = parsed.Requirements()
			d, reason, err := n.Authorize(t.Context(), a)
			require.NoError(t, err)
			require.Equal(t, want, d, "%s with %s: %s", text, selector, reason)
		}
	}
}

func TestNode_DecidesOnlyAboutNodes(t *testing.T) {
	t.Parallel()
	n := NewNode(twoNodes())
	for name, c := range map[string]struct {
		user   []string
		want   Decision
		reason string
	}{
		"a node":       {[]string{"system:node:a", "system:nodes"}, Allow, ""},
		"another user": {[]string{"jane", "system:nodes"}, NoOpinion, ""},
		"a user of that name outside of the group": {[]string{"system:node:a"}, NoOpinion, ""},
		"an empty name of a node": {[]string{"system:node:", "system:nodes"}, NoOpinion,
			`unknown node for user "system:node:"`},
	} {
		d, reason, err := n.Authorize(t.Context(), asking(user(c.user[0], c.user[1:]...), "get nodes named a"))
		require.NoError(t, err)
		require.Equal(t, c.want, d, name)
		require.Equal(t, c.reason, reason, name)
	}
	decidesNode(t, map[string]string{
		"get services in web named s": "allowed", "create events in web": "allowed",
		"delete services in web named s":      "",
		"get apps:deployments in web named d": "", "get /metrics": "",
	})
}
