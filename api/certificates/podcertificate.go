package certificates

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"fmt"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/defaults"
	"github.com/coxswain-dev/coxswain/api/kit/table"
	"github.com/coxswain-dev/coxswain/api/kit/validate"
	"github.com/coxswain-dev/coxswain/api/podspec"
)

func podCertificateRequests(now func() time.Time) *api.Resource {
	return &api.Resource{
		Names: api.Names{
			Group: certificatesv1.GroupName, Version: "v1", Kind: "PodCertificateRequest",
			Plural:     "podcertificaterequests",
			Namespaced: true,
		},
		Storage: api.Storage{
			New:     func() api.Object { return &certificatesv1.PodCertificateRequest{} },
			NewList: func() runtime.Object { return &certificatesv1.PodCertificateRequestList{} },
			Fields:  []string{"spec.signerName", "spec.podName", "spec.nodeName"}, FieldIndex: "spec.nodeName",
		},
		Strategy: api.Strategy{
			Conditional: true,
			Default: api.Typed(func(r *certificatesv1.PodCertificateRequest) {
				defaults.SetPtr(&r.Spec.MaxExpirationSeconds, 24*60*60)
			}),
			ValidateName: validate.SegmentName,
			// The spec is immutable, so a stored request is not checked again.
			ValidateCreate: api.Check(validatePodCertificateRequest),
			ValidateUpdate: api.CheckUpdate(func(r, old *certificatesv1.PodCertificateRequest) field.ErrorList {
				return validate.Unchanged(r.Spec, old.Spec, field.NewPath("spec"))
			}),
			Status: api.StatusOf(
				func(r *certificatesv1.PodCertificateRequest) *certificatesv1.PodCertificateRequestStatus {
					return &r.Status
				},
				(*certificatesv1.PodCertificateRequestStatus).DeepCopy,
			).CheckedBy(api.CheckUpdate(func(r, old *certificatesv1.PodCertificateRequest) field.ErrorList {
				return validatePodCertificateStatus(r, old, now())
			})).PermittedBy(
				api.Permitted(func(caller api.Caller, r, old *certificatesv1.PodCertificateRequest) field.ErrorList {
					if equality.Semantic.DeepEqual(r.Status, old.Status) ||
						mayUseSigner(caller, "sign", old.Spec.SignerName) {
						return nil
					}
					return field.ErrorList{field.Forbidden(field.NewPath("spec", "signerName"),
						fmt.Sprintf("User %q is not permitted to \"sign\" for signer %q", caller.User().Username,
							old.Spec.SignerName))}
				})),
		},
		Table: api.Table{
			Columns: []metav1.TableColumnDefinition{
				table.Name,
				table.Column("PodName", "string", certificatesv1.PodCertificateRequestSpec{}.SwaggerDoc()["podName"]),
				table.Column("ServiceAccountName", "string",
					certificatesv1.PodCertificateRequestSpec{}.SwaggerDoc()["serviceAccountName"]),
				table.Column("NodeName", "string", certificatesv1.PodCertificateRequestSpec{}.SwaggerDoc()["nodeName"]),
				table.Column("SignerName", "string",
					certificatesv1.PodCertificateRequestSpec{}.SwaggerDoc()["signerName"]),
				table.Column("State", "string", "Is the request Pending, Issued, Denied, or Failed?"),
			},
			Cells: api.Row(func(r *certificatesv1.PodCertificateRequest) []any {
				state := "Pending"
				for _, c := range r.Status.Conditions {
					if isVerdict(c.Type) {
						state = c.Type
					}
				}
				return []any{r.Name, r.Spec.PodName, r.Spec.ServiceAccountName, string(r.Spec.NodeName),
					r.Spec.SignerName, state}
			}),
		},
	}
}

const (
	maxStubRequest = 10 << 10
	longestUID     = 128
)

// mayUseSigner reports whether the user may use the verb on the signer, or on all signers of its domain.
func mayUseSigner(caller api.Caller, verb, signer string) bool {
	domain, _, _ := strings.Cut(signer, "/")
	return caller.May(verb, certificatesv1.GroupName, "signers", "", "", signer) ||
		caller.May(verb, certificatesv1.GroupName, "signers", "", "", domain+"/*")
}

func validatePodCertificateRequest(r *certificatesv1.PodCertificateRequest) field.ErrorList {
	path, spec := field.NewPath("spec"), &r.Spec
	errs := validate.SignerName(spec.SignerName, path.Child("signerName"))
	errs = append(errs, validate.DnsSubdomain(path.Child("podName"), spec.PodName)...)
	errs = append(errs, validateUIDOf(path.Child("podUID"), spec.PodUID)...)
	errs = append(errs, validate.DnsSubdomain(path.Child("serviceAccountName"), spec.ServiceAccountName)...)
	errs = append(errs, validateUIDOf(path.Child("serviceAccountUID"), spec.ServiceAccountUID)...)
	errs = append(errs, validate.DnsSubdomain(path.Child("nodeName"), string(spec.NodeName))...)
	errs = append(errs, validateUIDOf(path.Child("nodeUID"), spec.NodeUID)...)
	errs = append(errs, podspec.ValidateUserNotes(spec.UnverifiedUserAnnotations,
		path.Child("unverifiedUserAnnotations"))...)

	errs = append(errs, podspec.ValidatePodCertificateLife(spec.MaxExpirationSeconds, spec.SignerName,
		path.Child("maxExpirationSeconds"))...)
	return append(errs, validateStubRequest(spec.StubPKCS10Request, path.Child("stubPKCS10Request"))...)
}

// validateUIDOf checks a UID, which distinguishes an object from a later one with the same name.
func validateUIDOf(path *field.Path, uid types.UID) field.ErrorList {
	switch {
	case uid == "":
		return field.ErrorList{field.Invalid(path, uid, "must not be empty")}
	case len(uid) > longestUID:
		return field.ErrorList{field.TooLong(path, uid, longestUID)}
	}
	return nil
}

// validateStubRequest requires a request that is signed with the key to certify, as proof of possession.
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
			return field.ErrorList{field.Invalid(path, "curve "+key.Curve.Params().Name,
				"elliptic public keys must use curve P256, P384, or P521")}
		}
	case *rsa.PublicKey:
		if bits := key.Size() * 8; bits != 3072 && bits != 4096 {
			return field.ErrorList{field.Invalid(path, fmt.Sprintf("%d-bit modulus", bits),
				"RSA keys must have modulus size 3072 or 4096")}
		}
	default:
		return field.ErrorList{field.Invalid(path, field.OmitValueType{},
			"unknown public key type; supported types are Ed25519, ECDSA, and RSA")}
	}
	if err := request.CheckSignature(); err != nil {
		return field.ErrorList{field.Invalid(path, field.OmitValueType{}, "could not verify the signature of the CSR")}
	}
	return nil
}
