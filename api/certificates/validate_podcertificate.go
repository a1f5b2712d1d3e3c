package certificates

import (
	"bytes"
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/mail"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/validate"
)

// The limits of an issued certificate.
const (
	maxCertificateChain = 100 << 10
	minPodCertLife      = time.Hour
	// clockSkew is the accepted error of a signer's clock.
	clockSkew = 5 * time.Minute
	// refreshMargin is the minimum time from issue to refresh, and from refresh to expiry.
	refreshMargin = 10 * time.Minute
)

// isVerdict reports whether a condition ends a request.
func isVerdict(condition string) bool {
	switch condition {
	case certificatesv1.PodCertificateRequestConditionTypeIssued,
		certificatesv1.PodCertificateRequestConditionTypeDenied,
		certificatesv1.PodCertificateRequestConditionTypeFailed:
		return true
	}
	return false
}

// verdict returns the condition that has ended a request, or "".
func verdict(s *certificatesv1.PodCertificateRequestStatus) string {
	for _, c := range s.Conditions {
		if isVerdict(c.Type) && c.Status == metav1.ConditionTrue {
			return c.Type
		}
	}
	return ""
}

// validatePodCertificateStatus checks that a request is answered once, and completely.
func validatePodCertificateStatus(r, old *certificatesv1.PodCertificateRequest, now time.Time) field.ErrorList {
	path := field.NewPath("status")
	if errs := validateVerdicts(r.Status.Conditions, path.Child("conditions")); len(errs) > 0 {
		return errs
	}
	if verdict(&old.Status) != "" {
		return sameStatus(r.Status, old.Status, path,
			"immutable after PodCertificateRequest is issued, denied, or failed")
	}
	switch verdict(&r.Status) {
	case "":
		return sameStatus(r.Status, old.Status, path,
			`status is immutable unless transitioning to "Issued", "Denied", or "Failed"`)
	case certificatesv1.PodCertificateRequestConditionTypeIssued:
		return validateIssuedChain(r, path, now)
	}
	alone := certificatesv1.PodCertificateRequestStatus{Conditions: r.Status.Conditions}
	return sameStatus(r.Status, alone, path,
		"non-condition status fields must be empty when denying or failing the PodCertificateRequest")
}

func sameStatus(is, want certificatesv1.PodCertificateRequestStatus, path *field.Path, detail string) field.ErrorList {
	if equality.Semantic.DeepEqual(is, want) {
		return nil
	}
	return field.ErrorList{field.Invalid(path, field.OmitValueType{}, detail)}
}

func validateVerdicts(conditions []metav1.Condition, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := 0
	for i, c := range conditions {
		if field.Enough(errs) {
			break
		}
		idxPath := path.Index(i)
		if !isVerdict(c.Type) {
			errs = append(errs,
				field.NotSupported(idxPath.Child("type"), c.Type,
					[]string{certificatesv1.PodCertificateRequestConditionTypeIssued,
						certificatesv1.PodCertificateRequestConditionTypeDenied,
						certificatesv1.PodCertificateRequestConditionTypeFailed}))
			continue
		}
		if seen++; seen > 1 {
			errs = append(errs,
				field.Invalid(idxPath.Child("type"), c.Type,
					`There may be at most one condition with type "Issued", "Denied", or "Failed"`))
		}
		errs = append(errs, validate.OneOf(idxPath.Child("status"), c.Status, metav1.ConditionTrue)...)
	}
	return append(errs, metav1validation.ValidateConditions(conditions, path.Plain())...)
}

// validateIssuedChain checks the certificate against the request, and the times of the status against the certificate.
// It stops at the first error, since the later checks depend on the earlier ones.
func validateIssuedChain(r *certificatesv1.PodCertificateRequest, path *field.Path, now time.Time) field.ErrorList {
	fldPath, chain := path.Child("certificateChain"), r.Status.CertificateChain
	if len(chain) > maxCertificateChain {
		return field.ErrorList{field.TooLong(fldPath, "" /*unused*/, maxCertificateChain)}
	}
	leaf, complaint := parseChain([]byte(chain))
	if complaint != "" {
		return field.ErrorList{field.Invalid(fldPath, chain, complaint)}
	}
	if errs := validateLeafNames(leaf, fldPath); len(errs) > 0 {
		return errs
	}
	if !issuedTo(leaf, r.Spec.StubPKCS10Request) {
		return field.ErrorList{
			field.Invalid(fldPath, chain, "leaf certificate was not issued to the requested public key")}
	}
	return validateIssuedTimes(r, leaf, path, now)
}

// parseChain parses a certificate chain and returns the first certificate, which is the pod's.
func parseChain(rest []byte) (leaf *x509.Certificate, complaint string) {
	for {
		var block *pem.Block
		block, rest = pem.Decode(rest)
		switch {
		case block == nil && leaf == nil:
			return nil, "issued certificate chain must contain at least one certificate"
		case block == nil:
			return leaf, ""
		case block.Type != "CERTIFICATE":
			return nil, "issued certificate chain must consist entirely of CERTIFICATE PEM blocks"
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		switch {
		case err != nil && leaf == nil:
			return nil, "leaf certificate does not parse as valid X.509"
		case err != nil:
			return nil, "intermediate certificate does not parse as valid X.509"
		case leaf == nil:
			leaf = cert
		}
	}
}

// validateLeafNames rejects names that Go's parser accepts but others reject.
func validateLeafNames(leaf *x509.Certificate, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, name := range leaf.DNSNames {
		if field.Enough(errs) {
			break
		}
		switch {
		case name == "":
			errs = append(errs, field.Invalid(path, name, "leaf certificate should not contain empty DNSName"))
		case strings.Contains(name, ".."):
			errs = append(errs, field.Invalid(path, name, "leaf certificate's DNSName should not contain '..'"))
		case strings.HasPrefix(name, ".") || strings.HasSuffix(name, "."):
			errs = append(errs,
				field.Invalid(path, name, "leaf certificate's DNSName should not start or end with '.'"))
		}
	}
	for _, address := range leaf.EmailAddresses {
		if field.Enough(errs) {
			break
		}
		if _, err := mail.ParseAddress(address); err != nil {
			errs = append(errs,
				field.Invalid(path, address, "leaf certificate should not contain invalid EmailAddress"))
		}
	}
	return errs
}

// issuedTo reports whether a certificate is for the key of a request.
func issuedTo(leaf *x509.Certificate, request []byte) bool {
	parsed, err := x509.ParseCertificateRequest(request)
	if err != nil {
		return false
	}
	key, ok := parsed.PublicKey.(interface{ Equal(crypto.PublicKey) bool })
	return ok && key.Equal(leaf.PublicKey) || bytes.Equal(parsed.RawSubjectPublicKeyInfo, leaf.RawSubjectPublicKeyInfo)
}

func validateIssuedTimes(r *certificatesv1.PodCertificateRequest, leaf *x509.Certificate, path *field.Path,
	now time.Time) field.ErrorList {
	s, chain := &r.Status, path.Child("certificateChain")
	before, after, refresh := path.Child("notBefore"), path.Child("notAfter"), path.Child("beginRefreshAt")
	var errs field.ErrorList
	if s.NotBefore == nil {
		errs = append(errs, field.Required(before, "must be present and consistent with the issued certificate"))
	}
	if s.NotAfter == nil {
		errs = append(errs, field.Required(after, "must be present and consistent with the issued certificate"))
	}
	if s.BeginRefreshAt == nil {
		errs = append(errs,
			field.Required(refresh, "must be present and in the range [notbefore+10min, notafter-10min]"))
	}
	if len(errs) > 0 {
		return errs
	}
	longest := time.Duration(ptr.Deref(r.Spec.MaxExpirationSeconds, 0)) * time.Second
	switch life := leaf.NotAfter.Sub(leaf.NotBefore); {
	case !s.NotBefore.Time.Equal(leaf.NotBefore):
		return field.ErrorList{field.Invalid(before, s.NotBefore.Time,
			"must be set to the NotBefore time encoded in the leaf certificate")}
	case s.NotBefore.Time.Sub(now).Abs() >= clockSkew:
		return field.ErrorList{field.Invalid(before, s.NotBefore.Time,
			"must be set to within 5 minutes of kube-apiserver's current time")}
	case !s.NotAfter.Time.Equal(leaf.NotAfter):
		return field.ErrorList{field.Invalid(after, s.NotAfter.Time,
			"must be set to the NotAfter time encoded in the leaf certificate")}
	case life < minPodCertLife:
		return field.ErrorList{field.Invalid(chain, life.String(), "leaf certificate lifetime must be >= 1 hour")}
	case life > longest:
		return field.ErrorList{field.Invalid(chain, life.String(), fmt.Sprintf("leaf certificate lifetime must be "+
			"<= spec.maxExpirationSeconds (%v)", ptr.Deref(r.Spec.MaxExpirationSeconds, 0)))}
	case s.BeginRefreshAt.Time.Before(s.NotBefore.Add(refreshMargin)):
		return field.ErrorList{field.Invalid(refresh, s.BeginRefreshAt.Time,
			"must be at least 10 minutes after status.notBefore")}
	case s.BeginRefreshAt.Time.After(s.NotAfter.Add(-refreshMargin)):
		return field.ErrorList{field.Invalid(refresh, s.BeginRefreshAt.Time,
			"must be at least 10 minutes before status.notAfter")}
	}
	return nil
}
