package admission

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"testing"

	"github.com/stretchr/testify/require"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// certified gives a pod a volume with a certificate of example.com/signer.
func certified(p *corev1.Pod) {
	p.Spec.Volumes = []corev1.Volume{{Name: "v",
		VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
			Sources: []corev1.VolumeProjection{
				{PodCertificate: &corev1.PodCertificateProjection{SignerName: "example.com/signer"}}}}}}}
}

func TestNodeRestriction_ChecksPodCertificates(t *testing.T) {
	t.Parallel()
	w := newWorld(&corev1.Node{ObjectMeta: clusterMeta("node-a")},
		&corev1.ServiceAccount{ObjectMeta: meta("robot")},
		podOn("node-a", "mine", certified), podOn("node-b", "theirs", certified),
		podOn("node-a", "of-a-file", certified, func(p *corev1.Pod) {
			p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "file"}
		}),
		podOn("node-a", "lost", certified, func(p *corev1.Pod) { p.Spec.ServiceAccountName = "none" }))
	request := func(change func(*certificatesv1.PodCertificateRequestSpec)) *certificatesv1.PodCertificateRequest {
		r := &certificatesv1.PodCertificateRequest{ObjectMeta: meta("r")}
		r.Spec = certificatesv1.PodCertificateRequestSpec{NodeName: "node-a", NodeUID: "node-a",
			PodName: "mine",
			PodUID:  "mine", ServiceAccountName: "robot", ServiceAccountUID: "robot",
			SignerName: "example.com/signer"}
		change(&r.Spec)
		return r
	}
	asks := func(change func(*certificatesv1.PodCertificateRequestSpec)) *Attributes {
		return creates(request(change))
	}
	forPod := func(name string) *Attributes {
		return asks(func(s *certificatesv1.PodCertificateRequestSpec) {
			s.PodName, s.PodUID = name,
				types.UID(name)
		})
	}
	sound := request(func(*certificatesv1.PodCertificateRequestSpec) {})
	decisions := []decision{
		{name: "for its pod", write: creates(sound)},
		{name: "an update", write: updates(sound, sound), words: "unexpected operation UPDATE"},
		{name: "a status", write: subresource(creates(sound), "status"), words: "unexpected subresource status"},
		{name: "for another node", words: `NodeName="node-b", which is not the requesting node "node-a"`,
			write: asks(func(s *certificatesv1.PodCertificateRequestSpec) { s.NodeName = "node-b" })},
		{name: "for an earlier Node of its name", words: `names node UID "earlier"`,
			write: asks(func(s *certificatesv1.PodCertificateRequestSpec) { s.NodeUID = "earlier" })},
		{name: "for a pod that does not exist", write: forPod("none"), words: `pod "default/none"`,
			reason: metav1.StatusReasonInternalError},
		{name: "for an earlier pod of the name", words: `contains pod UID ("earlier")`,
			write: asks(func(s *certificatesv1.PodCertificateRequestSpec) { s.PodUID = "earlier" })},
		{name: "for another node's pod", write: forPod("theirs"), words: `is not running on node "node-a"`},
		{name: "for a mirror pod", write: forPod("of-a-file"), words: "is a mirror pod"},
		{name: "for another account", words: `contains serviceAccountName ("other")`,
			write: asks(func(s *certificatesv1.PodCertificateRequestSpec) { s.ServiceAccountName = "other" })},
		{name: "for an account that does not exist", words: `service account "default/none"`,
			reason: metav1.StatusReasonInternalError,
			write: asks(func(s *certificatesv1.PodCertificateRequestSpec) {
				s.PodName, s.PodUID, s.ServiceAccountName = "lost", "lost", "none"
			})},
		{name: "for an earlier account of the name", words: `names service account UID "earlier"`,
			write: asks(func(s *certificatesv1.PodCertificateRequestSpec) { s.ServiceAccountUID = "earlier" })},
		{name: "from a signer that the pod does not name",
			words: `podCertificate projection for signer "example.com/x"`,
			write: asks(func(s *certificatesv1.PodCertificateRequestSpec) { s.SignerName = "example.com/x" })},
	}
	w.decides(t, "NodeRestriction", "", byNode(decisions))

	w.objects = w.objects[:2] // only the namespaces remain
	w.decides(t, "NodeRestriction", "", byNode([]decision{
		{name: "for a Node that does not exist", write: creates(sound), words: `node "node-a"`,
			reason: metav1.StatusReasonInternalError},
	}))
}

func TestNodeRestriction_PodCertificateOfAnySignerByRight(t *testing.T) {
	t.Parallel()
	r := &certificatesv1.PodCertificateRequest{ObjectMeta: meta("r")}
	r.Spec = certificatesv1.PodCertificateRequestSpec{NodeName: "node-a", NodeUID: "node-a", PodName: "mine",
		PodUID: "mine", ServiceAccountName: "robot", ServiceAccountUID: "robot", SignerName: "example.com/x"}
	const words = "does not have a podCertificate projection"
	for right, allowed := range map[string]bool{
		"request-serviceaccounts-podcertificate-signer example.com:x default/robot": true,
		"request-serviceaccounts-podcertificate-signer example.com:x default/other": false,
		"request-serviceaccounts-podcertificate-signer example.com:x other/robot":   false,
		"request-serviceaccounts-podcertificate-signer example.com:y default/robot": false,
		"sign example.com:x default/robot":                                          false,
	} {
		d := decision{name: right, write: creates(r), words: words}
		if allowed {
			d.words = ""
		}
		nodeWorld().may(right).decides(t, "NodeRestriction", "", byNode([]decision{d}))
	}
}

// pemRequest returns a certificate request in PEM.
func pemRequest(t *testing.T, subject pkix.Name) []byte {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: subject}, key)
	require.NoError(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

func signingRequest(signer string, request []byte) *certificatesv1.CertificateSigningRequest {
	r := &certificatesv1.CertificateSigningRequest{ObjectMeta: clusterMeta("r")}
	r.Spec.SignerName, r.Spec.Request = signer, request
	return r
}

func TestNodeRestriction_ChecksSigningRequests(t *testing.T) {
	t.Parallel()
	mine := pemRequest(t, pkix.Name{CommonName: "system:node:node-a"})
	theirs := pemRequest(t, pkix.Name{CommonName: "system:node:node-b"})
	broken := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: []byte("x")})
	var decisions []decision
	for _, signer := range []string{"kubernetes.io/kubelet-serving", "kubernetes.io/kube-apiserver-client-kubelet"} {
		decisions = append(decisions,
			decision{name: signer + " for itself", write: creates(signingRequest(signer, mine))},
			decision{name: signer + " for another node", write: creates(signingRequest(signer, theirs)),
				words: "can only create a node CSR with CN=system:node:node-a"},
			decision{name: signer + " not in PEM", write: creates(signingRequest(signer, []byte("x"))),
				words: "PEM block type must be CERTIFICATE REQUEST"},
			decision{name: signer + " without a request", write: creates(signingRequest(signer, broken)),
				words: "unable to parse csr: asn1"})
	}
	nodeWorld().decides(t, "NodeRestriction", "", byNode(append(decisions,
		decision{name: "another signer", write: creates(signingRequest("example.com/signer", theirs))})))
}
