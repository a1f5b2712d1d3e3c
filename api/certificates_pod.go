package api

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"fmt"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"

	"github.com/coxswain-dev/coxswain/api/field"
)

func podCertificateRequests() *Resource {
	return &Resource{
		Group: certificatesv1.GroupName, Version: "v1", Kind: "PodCertificateRequest", Plural: "podcertificaterequests", Namespaced: true,
		New:         func() Object { return &certificatesv1.PodCertificateRequest{} },
		NewList:     func() runtime.Object { return &certificatesv1.PodCertificateRequestList{} },
		Conditional: true,

		Default: with(func(r *certificatesv1.PodCertificateRequest) {
			setDefaultPtr(&r.Spec.MaxExpirationSeconds, dayOfSeconds)
		}),
		ValidateName: segmentName,
		// A request from before a rule is not looked at again: its spec never changes.
		ValidateCreate: checked(validatePodCertificateRequest),
		ValidateUpdate: checked2(func(r, old *certificatesv1.PodCertificateRequest) field.ErrorList {
			return unchanged(r.Spec, old.Spec, field.NewPath("spec"))
		}),
		Status: statusOf(
			func(r *certificatesv1.PodCertificateRequest) *certificatesv1.PodCertificateRequestStatus {
				return &r.Status
			},
			(*certificatesv1.PodCertificateRequestStatus).DeepCopy,
		).checkedBy(checked2(validatePodCertificateStatus)).permittedBy(permitted(func(by Caller, r, old *certificatesv1.PodCertificateRequest) field.ErrorList {
			if sameValue(r.Status, old.Status) || mayUseSigner(by, "sign", old.Spec.SignerName) {
				return nil
			}
			return field.ErrorList{field.Forbidden(field.NewPath("spec", "signerName"),
				fmt.Sprintf("User %q is not permitted to \"sign\" for signer %q", by.User().Username, old.Spec.SignerName))}
		})),
		Fields: []string{"spec.signerName", "spec.podName", "spec.nodeName"}, FieldIndex: "spec.nodeName",

		Columns: []metav1.TableColumnDefinition{
			nameColumn,
			column("PodName", "string", certificatesv1.PodCertificateRequestSpec{}.SwaggerDoc()["podName"]),
			column("ServiceAccountName", "string", certificatesv1.PodCertificateRequestSpec{}.SwaggerDoc()["serviceAccountName"]),
			column("NodeName", "string", certificatesv1.PodCertificateRequestSpec{}.SwaggerDoc()["nodeName"]),
			column("SignerName", "string", certificatesv1.PodCertificateRequestSpec{}.SwaggerDoc()["signerName"]),
			column("State", "string", "Is the request Pending, Issued, Denied, or Failed?"),
		},
		Cells: row(func(r *certificatesv1.PodCertificateRequest) []any {
			state := "Pending"
			for _, c := range r.Status.Conditions {
				if isVerdict(c.Type) {
					state = c.Type
				}
			}
			return []any{r.Name, r.Spec.PodName, r.Spec.ServiceAccountName, string(r.Spec.NodeName), r.Spec.SignerName, state}
		}),
	}
}

// How long a certificate of a pod may be asked for, in seconds: Kubernetes' own signers give a day at most.
const (
	hourOfSeconds   = 60 * 60
	dayOfSeconds    = 24 * hourOfSeconds
	maxPodCertLife  = 91 * dayOfSeconds
	maxStubRequest  = 10 << 10
	maxUserNotes    = validation.TotalAnnotationSizeLimitB
	longestUID      = 128
	ownSignerDomain = "kubernetes.io/"
)

// mayUseSigner asks for a verb on a signer, or on all signers of its domain.
func mayUseSigner(by Caller, verb, signer string) bool {
	domain, _, _ := strings.Cut(signer, "/")
	return by.May(verb, certificatesv1.GroupName, "signers", "", "", signer) || by.May(verb, certificatesv1.GroupName, "signers", "", "", domain+"/*")
}

func validatePodCertificateRequest(r *certificatesv1.PodCertificateRequest) field.ErrorList {
	path, spec := field.NewPath("spec"), &r.Spec
	errs := validateSignerName(spec.SignerName, path.Child("signerName"))
	errs = append(errs, dnsSubdomain(path.Child("podName"), spec.PodName)...)
	errs = append(errs, validateUIDOf(path.Child("podUID"), spec.PodUID)...)
	errs = append(errs, dnsSubdomain(path.Child("serviceAccountName"), spec.ServiceAccountName)...)
	errs = append(errs, validateUIDOf(path.Child("serviceAccountUID"), spec.ServiceAccountUID)...)
	errs = append(errs, dnsSubdomain(path.Child("nodeName"), string(spec.NodeName))...)
	errs = append(errs, validateUIDOf(path.Child("nodeUID"), spec.NodeUID)...)
	errs = append(errs, validateUserNotes(spec.UnverifiedUserAnnotations, path.Child("unverifiedUserAnnotations"))...)

	errs = append(errs, validatePodCertificateLife(spec.MaxExpirationSeconds, spec.SignerName, path.Child("maxExpirationSeconds"))...)
	return append(errs, validateStubRequest(spec.StubPKCS10Request, path.Child("stubPKCS10Request"))...)
}

// validatePodCertificateLife checks how long a signer is asked to make a certificate good for, which has a default.
func validatePodCertificateLife(seconds *int32, signer string, path *field.Path) field.ErrorList {
	longest := int32(maxPodCertLife)
	if strings.HasPrefix(signer, ownSignerDomain) {
		longest = dayOfSeconds
	}
	switch {
	case seconds == nil:
		return field.ErrorList{field.Required(path, "must be set")}
	case *seconds < hourOfSeconds || *seconds > longest:
		return field.ErrorList{field.Invalid(path, *seconds, fmt.Sprintf("must be in the range [%d, %d]", hourOfSeconds, longest))}
	}
	return nil
}

// validateUIDOf checks the UID of an object that is meant and no other of its name.
func validateUIDOf(path *field.Path, uid types.UID) field.ErrorList {
	switch {
	case uid == "":
		return field.ErrorList{field.Invalid(path, uid, "must not be empty")}
	case len(uid) > longestUID:
		return field.ErrorList{field.TooLong(path, uid, longestUID)}
	}
	return nil
}

// validateUserNotes wants keys of annotations that say in whose domain they mean something.
func validateUserNotes(notes map[string]string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	total := 0
	for key, value := range notes {
		if field.Enough(errs) {
			break
		}
		errs = append(errs, utilvalidation.IsDomainPrefixedKey(path.Plain(), strings.ToLower(key))...)
		total += len(key) + len(value)
	}
	if total > maxUserNotes {
		errs = append(errs, field.TooLong(path, "" /*unused*/, maxUserNotes))
	}
	return errs
}

// validateStubRequest wants a request signed with the key that the certificate is to be for: that is the proof of its
// possession.
func validateStubRequest(der []byte, path *field.Path) field.ErrorList {
	if len(der) == 0 {
		return field.ErrorList{field.Required(path, "")}
	}
	if len(der) > maxStubRequest {
		return field.ErrorList{field.TooLong(path, "" /*unused*/, maxStubRequest)}
	}
	request, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return field.ErrorList{field.Invalid(path, field.OmitValueType{}, "must be a valid PKCS#10 CSR")}
	}
	switch key := request.PublicKey.(type) {
	case ed25519.PublicKey:
	case *ecdsa.PublicKey:
		if key.Curve != elliptic.P256() && key.Curve != elliptic.P384() && key.Curve != elliptic.P521() {
			return field.ErrorList{field.Invalid(path, "curve "+key.Curve.Params().Name, "elliptic public keys must use curve P256, P384, or P521")}
		}
	case *rsa.PublicKey:
		if bits := key.Size() * 8; bits != 3072 && bits != 4096 {
			return field.ErrorList{field.Invalid(path, fmt.Sprintf("%d-bit modulus", bits), "RSA keys must have modulus size 3072 or 4096")}
		}
	default:
		return field.ErrorList{field.Invalid(path, field.OmitValueType{}, "unknown public key type; supported types are Ed25519, ECDSA, and RSA")}
	}
	if err := request.CheckSignature(); err != nil {
		return field.ErrorList{field.Invalid(path, field.OmitValueType{}, "could not verify the signature of the CSR")}
	}
	return nil
}
