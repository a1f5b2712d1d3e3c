// Package csr reads CertificateSigningRequests, for the controllers that approve, sign and delete them.
// https://kubernetes.io/docs/reference/access-authn-authz/certificate-signing-requests/
package csr

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
)

// Parse reads the PKCS #10 request in a CertificateSigningRequest.
func Parse(r *certificatesv1.CertificateSigningRequest) (*x509.CertificateRequest, error) {
	block, _ := pem.Decode(r.Spec.Request)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return nil, errors.New("PEM block type must be CERTIFICATE REQUEST")
	}
	request, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("parse the certificate request: %w", err)
	}
	return request, nil
}

// Has returns the condition of a type if it is true, otherwise nil.
func Has(r *certificatesv1.CertificateSigningRequest,
	t certificatesv1.RequestConditionType) *certificatesv1.CertificateSigningRequestCondition {
	for i := range r.Status.Conditions {
		if c := &r.Status.Conditions[i]; c.Type == t && (c.Status == "" || c.Status == corev1.ConditionTrue) {
			return c
		}
	}
	return nil
}

const (
	nodeUserPrefix = "system:node:"
	nodesGroup     = "system:nodes"
)

// CheckSigner returns an error if one of Kubernetes' own signers must not sign the request. Other signers, and
// legacy-unknown, have no rules.
func CheckSigner(r *certificatesv1.CertificateSigningRequest, request *x509.CertificateRequest) error {
	switch r.Spec.SignerName {
	case certificatesv1.KubeAPIServerClientSignerName:
		return checkUsages(r.Spec.Usages, certificatesv1.UsageClientAuth)
	case certificatesv1.KubeAPIServerClientKubeletSignerName:
		if err := checkNode(request); err != nil {
			return err
		}
		if len(request.DNSNames)+len(request.EmailAddresses)+len(request.IPAddresses)+len(request.URIs) > 0 {
			return errors.New("a kubelet's client certificate has no subject alternative names")
		}
		return checkUsages(r.Spec.Usages, certificatesv1.UsageClientAuth)
	case certificatesv1.KubeletServingSignerName:
		if err := checkNode(request); err != nil {
			return err
		}
		if len(request.EmailAddresses)+len(request.URIs) > 0 {
			return errors.New("a kubelet's serving certificate has no email or URI subject alternative names")
		}
		if len(request.DNSNames)+len(request.IPAddresses) == 0 {
			return errors.New("a kubelet's serving certificate needs a DNS or IP subject alternative name")
		}
		return checkUsages(r.Spec.Usages, certificatesv1.UsageServerAuth)
	}
	return nil
}

func checkNode(request *x509.CertificateRequest) error {
	if !slices.Equal(request.Subject.Organization, []string{nodesGroup}) {
		return fmt.Errorf("subject organization is not %s", nodesGroup)
	}
	if name, ok := strings.CutPrefix(request.Subject.CommonName, nodeUserPrefix); !ok || name == "" {
		return fmt.Errorf("subject common name does not begin with %s", nodeUserPrefix)
	}
	return nil
}

// checkUsages requires one usage, and allows beside it only the usages that TLS needs.
func checkUsages(usages []certificatesv1.KeyUsage, needed certificatesv1.KeyUsage) error {
	if !slices.Contains(usages, needed) {
		return fmt.Errorf("usages did not contain %s", needed)
	}
	for _, u := range usages {
		if u != needed && u != certificatesv1.UsageDigitalSignature && u != certificatesv1.UsageKeyEncipherment {
			return fmt.Errorf("usages must not contain %s", u)
		}
	}
	return nil
}
