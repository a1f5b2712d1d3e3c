package admission

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/coxswain-dev/coxswain/apiserver/authn"
)

var (
	signingRequests = group("certificates.k8s.io", "certificatesigningrequests")
	trustBundles    = group("certificates.k8s.io", "clustertrustbundles")
	podCertificates = group("certificates.k8s.io", "podcertificaterequests")
	signers         = certificatesv1.SchemeGroupVersion.WithResource("signers")
)

// mayUseSigner reports whether a user may use a verb on a signer, or on all signers of its domain.
func mayUseSigner(ctx context.Context, c Cluster, user *authn.User, verb, signer string) bool {
	domain, _, _ := strings.Cut(signer, "/")
	for _, name := range []string{signer, domain + "/*"} {
		if ok, _, err := c.Authorize(ctx, user, verb, signers, "", "", name); ok && err == nil {
			return true
		}
	}
	return false
}

// certificateApproval checks that an approver may approve for the request's signer.
type certificateApproval struct{ cluster Cluster }

func newCertificateApproval(env *Env) (Plugin, error) { return &certificateApproval{env.Cluster}, nil }

func (p *certificateApproval) Validate(ctx context.Context, a *Attributes) error {
	signer := a.Old.(*certificatesv1.CertificateSigningRequest).Spec.SignerName
	if mayUseSigner(ctx, p.cluster, a.User, "approve", signer) {
		return nil
	}
	return a.Forbid(fmt.Errorf("user not permitted to approve requests with signerName %q", signer))
}

// certificateSigning checks that the issuer of a certificate may sign as the signer.
type certificateSigning struct{ cluster Cluster }

func newCertificateSigning(env *Env) (Plugin, error) { return &certificateSigning{env.Cluster}, nil }

func (p *certificateSigning) Validate(ctx context.Context, a *Attributes) error {
	request, old := a.Object.(*certificatesv1.CertificateSigningRequest),
		a.Old.(*certificatesv1.CertificateSigningRequest)
	if bytes.Equal(request.Status.Certificate, old.Status.Certificate) &&
		equality.Semantic.DeepEqual(request.Status.Conditions, old.Status.Conditions) {
		return nil
	}
	if mayUseSigner(ctx, p.cluster, a.User, "sign", old.Spec.SignerName) {
		return nil
	}
	return a.Forbid(fmt.Errorf("user not permitted to sign requests with signerName %q", old.Spec.SignerName))
}

// certificateSubject rejects requests for certificates whose rights RBAC cannot limit.
type certificateSubject struct{}

func newCertificateSubject(*Env) (Plugin, error) { return certificateSubject{}, nil }

func (certificateSubject) Validate(_ context.Context, a *Attributes) error {
	request := a.Object.(*certificatesv1.CertificateSigningRequest)
	if request.Spec.SignerName != certificatesv1.KubeAPIServerClientSignerName {
		return nil
	}
	block, _ := pem.Decode(request.Spec.Request)
	if block == nil {
		return a.Forbid(fmt.Errorf("unable to parse csr: PEM block type must be CERTIFICATE REQUEST"))
	}
	parsed, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return a.Forbid(fmt.Errorf("unable to parse csr: %w", err))
	}
	if slices.Contains(parsed.Subject.Organization, "system:masters") {
		return a.Forbid(fmt.Errorf("use of %s signer with system:masters group is not allowed",
			request.Spec.SignerName))
	}
	return nil
}

// trustBundleAttest checks that the writer of a signer's trust bundle may attest for the signer.
type trustBundleAttest struct{ cluster Cluster }

func newTrustBundleAttest(env *Env) (Plugin, error) { return &trustBundleAttest{env.Cluster}, nil }

func (p *trustBundleAttest) Validate(ctx context.Context, a *Attributes) error {
	bundle := a.Object.(*certificatesv1.ClusterTrustBundle)
	// The garbage collector changes metadata of objects of any kind.
	if old, ok := a.Old.(*certificatesv1.ClusterTrustBundle); ok && equality.Semantic.DeepEqual(old.Spec, bundle.Spec) {
		return nil
	}
	if bundle.Spec.SignerName == "" || mayUseSigner(ctx, p.cluster, a.User, "attest", bundle.Spec.SignerName) {
		return nil
	}
	return a.Forbid(fmt.Errorf("user not permitted to attest for signerName %q", bundle.Spec.SignerName))
}
