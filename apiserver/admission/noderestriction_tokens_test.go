package admission

import (
	"io"
	"testing"

	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestNodeRestriction_ChecksTokens(t *testing.T) {
	t.Parallel()
	token := func(change func(*authenticationv1.TokenRequest)) *Attributes {
		r := &authenticationv1.TokenRequest{ObjectMeta: meta("robot")}
		r.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod",
			Name: "mine",
			UID:  "mine"}
		change(r)
		return subresource(creates(r), "token")
	}
	bound := func(change func(*authenticationv1.BoundObjectReference)) *Attributes {
		return token(func(r *authenticationv1.TokenRequest) { change(r.Spec.BoundObjectRef) })
	}
	const unbound = "node requested token not bound to a pod"
	nodeWorld().decides(t, "NodeRestriction", "", byNode([]decision{
		{name: "for its pod", write: bound(func(*authenticationv1.BoundObjectReference) {})},
		{name: "another object", write: subresource(creates(&corev1.ServiceAccount{ObjectMeta: meta("robot")}), "token"),
			words: "unexpected type *v1.ServiceAccount"},
		{name: "for nothing", words: unbound,
			write: token(func(r *authenticationv1.TokenRequest) { r.Spec.BoundObjectRef = nil })},
		{name: "for another API version", words: unbound,
			write: bound(func(r *authenticationv1.BoundObjectReference) { r.APIVersion = "v2" })},
		{name: "for another kind", words: unbound,
			write: bound(func(r *authenticationv1.BoundObjectReference) { r.Kind = "Secret" })},
		{name: "for a pod without a name", words: unbound,
			write: bound(func(r *authenticationv1.BoundObjectReference) { r.Name = "" })},
		{name: "for a pod without a UID", words: "with a pod binding without a uid",
			write: bound(func(r *authenticationv1.BoundObjectReference) { r.UID = "" })},
		{name: "for a pod that does not exist", words: `pods "none" not found`,
			reason: metav1.StatusReasonNotFound,
			write:  bound(func(r *authenticationv1.BoundObjectReference) { r.Name = "none" })},
		{name: "for an earlier pod of the name",
			words: "the UID in the bound object reference (earlier) does not match",
			write: bound(func(r *authenticationv1.BoundObjectReference) { r.UID = "earlier" })},
		{name: "for another node's pod", words: "bound to a pod scheduled on a different node",
			write: bound(func(r *authenticationv1.BoundObjectReference) {
				r.Name, r.UID = "theirs",
					"theirs"
			})},
	}))
}

func TestNodeRestriction_ChecksAudiencesOfTokens(t *testing.T) {
	t.Parallel()
	volume := func(v corev1.VolumeSource) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "v", VolumeSource: v})
		}
	}
	claim := func(name, volume string) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{ObjectMeta: meta(name),
			Spec: corev1.PersistentVolumeClaimSpec{VolumeName: volume}}
	}
	claiming := func(name string) func(*corev1.Pod) {
		return volume(corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}})
	}
	w := newWorld(
		podOn("node-a", "api", withToken("")),
		podOn("node-a", "vault", withToken("vault"), withToken("other")),
		podOn("node-a", "without"),
		podOn("node-a", "inline", volume(corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "driver"}})),
		podOn("node-a", "unknown", volume(corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "none"}})),
		podOn("node-a", "claims", claiming("bound")), podOn("node-a", "unbound", claiming("unbound")),
		podOn("node-a", "missing", claiming("none")), podOn("node-a", "disk", claiming("disk")),
		podOn("node-a", "generic", volume(corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}})),
		claim("bound", "pv"), claim("unbound", ""), claim("disk", "disk"), claim("generic-v", "pv"),
		&corev1.PersistentVolume{ObjectMeta: clusterMeta("pv"), Spec: corev1.PersistentVolumeSpec{
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: "driver"}}}},
		&corev1.PersistentVolume{ObjectMeta: clusterMeta("disk")},
		&storagev1.CSIDriver{ObjectMeta: clusterMeta("driver"), Spec: storagev1.CSIDriverSpec{
			TokenRequests: []storagev1.TokenRequest{{Audience: "storage"}}}},
	).may("request-serviceaccounts-token-audience registry default/robot")
	w.tokenAudiences = []string{"https://api", "second"}
	ask := func(pod string, audiences ...string) *Attributes {
		r := &authenticationv1.TokenRequest{ObjectMeta: meta("robot")}
		r.Spec.Audiences = audiences
		r.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod,
			UID: meta(pod).UID}
		return subresource(creates(r), "token")
	}
	foreign := func(audience string) string {
		return `audience "` + audience + `" not found in pod spec volume, system:node:node-a is not authorized to request ` +
			`tokens for this audience`
	}
	w.decides(t, "NodeRestriction", "", byNode([]decision{
		{name: "the default of a pod with a token for it", write: ask("api", "https://api", "second")},
		{name: "the default of a pod without a token for it", write: ask("vault", "https://api", "second"),
			words: foreign("")},
		{name: "the default of a pod without a token", write: ask("without", "https://api", "second"), words: foreign("")},
		{name: "the audience of a volume", write: ask("vault", "vault")},
		{name: "the audience of another volume", write: ask("vault", "other")},
		{name: "another audience", write: ask("vault", "bank"), words: foreign("bank")},
		{name: "another audience for a pod of the API", write: ask("api", "vault"), words: foreign("vault")},
		{name: "two audiences of volumes", write: ask("vault", "vault", "other"),
			words: "node may only request 0 or 1 audiences"},
		{name: "an audience besides the default", write: ask("api", "https://api", "second", "bank"),
			words: "node may only request 0 or 1 audiences"},
		{name: "that of an inline CSI volume", write: ask("inline", "storage")},
		{name: "another than that of an inline CSI volume", write: ask("inline", "vault"), words: foreign("vault")},
		{name: "of a driver that is unknown", write: ask("unknown", "storage"), words: foreign("storage")},
		{name: "that of a claim's CSI volume", write: ask("claims", "storage")},
		{name: "another than that of a claim's CSI volume", write: ask("claims", "vault"), words: foreign("vault")},
		{name: "that of a generic ephemeral CSI volume", write: ask("generic", "storage")},
		{name: "of a claim without a volume", write: ask("unbound", "storage"), words: foreign("storage")},
		{name: "of a claim that does not exist", write: ask("missing", "storage"), words: foreign("storage")},
		{name: "of a volume that is not of CSI", write: ask("disk", "storage"), words: foreign("storage")},
		{name: "one by a right", write: ask("without", "registry")},
	}))
	w.err = io.ErrUnexpectedEOF
	failing := byNode([]decision{{write: ask("inline", "storage")}})[0].write
	require.ErrorContains(t, w.admit(t, "NodeRestriction", "", failing), "unexpected EOF")
}
