package admission

import (
	"crypto/x509/pkix"
	"encoding/pem"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
)

// decidesBySigner requires a plugin to admit a write with a verb on the signer or on all signers of its domain, and
// with no other right.
func decidesBySigner(t *testing.T, plugin, verb, words string, write func() *Attributes) {
	t.Helper()
	for right, allowed := range map[string]bool{
		verb + " signers example.com/signer": true, verb + " signers example.com/*": true,
		verb + " signers example.com/other": false, verb + " signers *": false,
		"use signers example.com/signer":            false,
		verb + " signers/status example.com/signer": false, verb + " signers default/example.com/signer": false,
	} {
		d := decision{name: right, write: write(), words: words}
		if allowed {
			d.words = ""
		}
		newWorld().may(right).decides(t, plugin, "", []decision{d})
	}
}

func TestCertificateApproval_RequiresTheRightForTheSigner(t *testing.T) {
	t.Parallel()
	r := signingRequest("example.com/signer", nil)
	decidesBySigner(t, "CertificateApproval", "approve",
		`user not permitted to approve requests with signerName "example.com/signer"`,
		func() *Attributes { return subresource(updates(r, r), "approval") })
	// The stored request is approved, not the one that is sent.
	newWorld().may("approve signers example.com/mine").decides(t, "CertificateApproval", "", []decision{
		{name: "another signer in the update", write: subresource(updates(signingRequest("example.com/mine", nil),
			r), "approval"),
			words: `signerName "example.com/signer"`},
	})
}

func TestCertificateSigning_RequiresTheRightForTheSigner(t *testing.T) {
	t.Parallel()
	const words = `user not permitted to sign requests with signerName "example.com/signer"`
	r := signingRequest("example.com/signer", nil)
	issued := made(r, func(r *certificatesv1.CertificateSigningRequest) { r.Status.Certificate = []byte("x") })
	failed := made(r, func(r *certificatesv1.CertificateSigningRequest) {
		r.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: "Failed"}}
	})
	decidesBySigner(t, "CertificateSigning", "sign", words,
		func() *Attributes { return subresource(updates(issued, r), "status") })
	newWorld().decides(t, "CertificateSigning", "", []decision{
		{name: "neither a certificate nor a condition", write: subresource(updates(r, r), "status")},
		{name: "a certificate", write: subresource(updates(issued, r), "status"), words: words},
		{name: "a condition", write: subresource(updates(failed, r), "status"), words: words},
	})
	newWorld().may("sign signers example.com/mine").decides(t, "CertificateSigning", "", []decision{
		{name: "another signer in the update", words: words,
			write: subresource(updates(signingRequest("example.com/mine", nil), issued), "status")},
	})
}

func TestCertificateSubjectRestriction_RejectsMasters(t *testing.T) {
	t.Parallel()
	masters := pemRequest(t, pkix.Name{Organization: []string{"devs", "system:masters"}})
	broken := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: []byte("x")})
	const client = "kubernetes.io/kube-apiserver-client"
	newWorld().decides(t, "CertificateSubjectRestriction", "", []decision{
		{name: "another group", write: creates(signingRequest(client, pemRequest(t,
			pkix.Name{Organization: []string{"a"}})))},
		{name: "masters", write: creates(signingRequest(client, masters)),
			words: "with system:masters group is not allowed"},
		{name: "masters by another signer", write: creates(signingRequest("example.com/signer", masters))},
		{name: "not in PEM", write: creates(signingRequest(client, []byte("x"))),
			words: "PEM block type must be CERTIFICATE REQUEST"},
		{name: "without a request", write: creates(signingRequest(client, broken)),
			words: "unable to parse csr: asn1"},
	})
}

func TestClusterTrustBundleAttest_RequiresTheRightForTheSigner(t *testing.T) {
	t.Parallel()
	const words = `user not permitted to attest for signerName "example.com/signer"`
	bundle := &certificatesv1.ClusterTrustBundle{ObjectMeta: clusterMeta("b")}
	bundle.Spec.SignerName = "example.com/signer"
	changed := made(bundle, func(b *certificatesv1.ClusterTrustBundle) { b.Spec.TrustBundle = "x" })
	labelled := made(bundle,
		func(b *certificatesv1.ClusterTrustBundle) { b.Labels = map[string]string{"a": "b"} })
	unsigned := made(bundle, func(b *certificatesv1.ClusterTrustBundle) { b.Spec.SignerName = "" })
	decidesBySigner(t, "ClusterTrustBundleAttest", "attest", words,
		func() *Attributes { return creates(bundle) })
	newWorld().decides(t, "ClusterTrustBundleAttest", "", []decision{
		{name: "a new bundle", write: creates(bundle), words: words},
		{name: "other certificates", write: updates(changed, bundle), words: words},
		{name: "other metadata", write: updates(labelled, bundle)},
		{name: "a bundle of no signer", write: creates(unsigned)},
	})
}
