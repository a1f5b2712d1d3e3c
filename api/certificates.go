package api

import (
	"crypto/x509"
	"encoding/pem"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func certificateSigningRequests() *Resource {
	return &Resource{
		Group: certificatesv1.GroupName, Version: "v1", Kind: "CertificateSigningRequest", Plural: "certificatesigningrequests",
		ShortNames: []string{"csr"},
		New:        func() Object { return &certificatesv1.CertificateSigningRequest{} },
		NewList:    func() runtime.Object { return &certificatesv1.CertificateSigningRequestList{} },

		ValidateName: segmentName,
		Validate:     checked(validateSigningRequest),
		ValidateUpdate: checked2(func(c, old *certificatesv1.CertificateSigningRequest) field.ErrorList {
			return unchanged(c.Spec, old.Spec, field.NewPath("spec"))
		}),
		Status: &Status{
			// Approval is written to its own subresource, so a status write keeps it.
			Copy: with2(func(to, from *certificatesv1.CertificateSigningRequest) {
				decided := decisions(to.Status.Conditions)
				to.Status = *from.Status.DeepCopy()
				to.Status.Conditions = append(decided, slices.DeleteFunc(to.Status.Conditions, isDecision)...)
				if len(to.Status.Conditions) == 0 {
					to.Status.Conditions = nil
				}
			}),
			Reset: with(func(c *certificatesv1.CertificateSigningRequest) {
				c.Status = certificatesv1.CertificateSigningRequestStatus{}
			}),
			Validate: checked2(func(c, old *certificatesv1.CertificateSigningRequest) field.ErrorList {
				if len(old.Status.Certificate) > 0 {
					return unchanged(c.Status.Certificate, old.Status.Certificate, field.NewPath("status", "certificate"))
				}
				return nil
			}),
		},
		Parts: []Subresource{{
			Name: "approval", Group: certificatesv1.GroupName, Version: "v1", Kind: "CertificateSigningRequest",
			Verbs: []string{"get", "patch", "update"},
			Copy: with2(func(to, from *certificatesv1.CertificateSigningRequest) {
				to.Status.Conditions = append(slices.DeleteFunc(slices.Clone(to.Status.Conditions), isDecision), decisions(from.Status.Conditions)...)
			}),
			Validate: checked2(validateApproval),
		}},
		Fields: []string{"spec.signerName"},

		Columns: []metav1.TableColumnDefinition{
			nameColumn,
			ageColumn,
			column("SignerName", "string", certificatesv1.CertificateSigningRequestSpec{}.SwaggerDoc()["signerName"]),
			column("Requestor", "string", certificatesv1.CertificateSigningRequestSpec{}.SwaggerDoc()["request"]),
			column("RequestedDuration", "string", certificatesv1.CertificateSigningRequestSpec{}.SwaggerDoc()["expirationSeconds"]),
			column("Condition", "string", certificatesv1.CertificateSigningRequestStatus{}.SwaggerDoc()["conditions"]),
		},
		Cells: row(func(c *certificatesv1.CertificateSigningRequest) []any {
			lasting := none
			if s := c.Spec.ExpirationSeconds; s != nil {
				lasting = duration.HumanDuration(time.Duration(*s) * time.Second)
			}
			return []any{c.Name, age(c.CreationTimestamp), orNone(c.Spec.SignerName), c.Spec.Username, lasting, requestCondition(c)}
		}),
	}
}

func isDecision(c certificatesv1.CertificateSigningRequestCondition) bool {
	return c.Type == certificatesv1.CertificateApproved || c.Type == certificatesv1.CertificateDenied
}

func decisions(conditions []certificatesv1.CertificateSigningRequestCondition) []certificatesv1.CertificateSigningRequestCondition {
	var list []certificatesv1.CertificateSigningRequestCondition
	for _, c := range conditions {
		if isDecision(c) {
			list = append(list, c)
		}
	}
	return list
}

func hasCondition(c *certificatesv1.CertificateSigningRequest, kind certificatesv1.RequestConditionType) bool {
	return slices.ContainsFunc(c.Status.Conditions, func(c certificatesv1.CertificateSigningRequestCondition) bool { return c.Type == kind })
}

func requestCondition(c *certificatesv1.CertificateSigningRequest) string {
	var words []string
	switch {
	case hasCondition(c, certificatesv1.CertificateDenied):
		words = append(words, "Denied")
	case hasCondition(c, certificatesv1.CertificateApproved):
		words = append(words, "Approved")
	default:
		words = append(words, "Pending")
	}
	if hasCondition(c, certificatesv1.CertificateFailed) {
		words = append(words, "Failed")
	}
	if len(c.Status.Certificate) > 0 {
		words = append(words, "Issued")
	}
	return strings.Join(words, ",")
}

func validateSigningRequest(c *certificatesv1.CertificateSigningRequest) field.ErrorList {
	path := field.NewPath("spec")
	var errs field.ErrorList
	if err := parseRequest(c.Spec.Request); err != "" {
		errs = append(errs, field.Invalid(path.Child("request"), c.Spec.Request, err))
	}
	if len(c.Spec.Usages) == 0 {
		errs = append(errs, field.Required(path.Child("usages"), "usages must be provided"))
	}
	for i, u := range c.Spec.Usages {
		if slices.Contains(c.Spec.Usages[:i], u) {
			errs = append(errs, field.Duplicate(path.Child("usages").Index(i), u))
		}
	}
	at := path.Child("signerName")
	domain, rest, found := strings.Cut(c.Spec.SignerName, "/")
	switch {
	case c.Spec.SignerName == "":
		errs = append(errs, field.Required(at, ""))
	case !found || domain == "" || rest == "":
		errs = append(errs, field.Invalid(at, c.Spec.SignerName, "must be a fully qualified domain and path of the form 'example.com/signer-name'"))
	default:
		errs = append(errs, dnsSubdomain(at, domain)...)
	}
	if s := c.Spec.ExpirationSeconds; s != nil && *s < 600 {
		errs = append(errs, field.Invalid(path.Child("expirationSeconds"), *s, "may not specify a duration less than 600 seconds (10 minutes)"))
	}
	return errs
}

func parseRequest(data []byte) string {
	block, _ := pem.Decode(data)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return "PEM block type must be CERTIFICATE REQUEST"
	}
	if _, err := x509.ParseCertificateRequest(block.Bytes); err != nil {
		return err.Error()
	}
	return ""
}

// validateApproval keeps a decision once it is made, and to one of the two.
func validateApproval(c, old *certificatesv1.CertificateSigningRequest) field.ErrorList {
	path := field.NewPath("status", "conditions")
	var errs field.ErrorList
	if hasCondition(c, certificatesv1.CertificateApproved) && hasCondition(c, certificatesv1.CertificateDenied) {
		errs = append(errs, field.Invalid(path, field.OmitValueType{}, "Approved and Denied conditions are mutually exclusive"))
	}
	for _, kind := range []certificatesv1.RequestConditionType{certificatesv1.CertificateApproved, certificatesv1.CertificateDenied} {
		if hasCondition(old, kind) && !hasCondition(c, kind) {
			errs = append(errs, field.Forbidden(path, "updates may not remove a condition of type \""+string(kind)+"\""))
		}
	}
	for i, cond := range c.Status.Conditions {
		at := path.Index(i).Child("status")
		if isDecision(cond) && cond.Status != corev1.ConditionTrue {
			errs = append(errs, field.NotSupported(at, cond.Status, []corev1.ConditionStatus{corev1.ConditionTrue}))
		}
	}
	if !equality.Semantic.DeepEqual(c.Spec, old.Spec) {
		errs = append(errs, field.Forbidden(field.NewPath("spec"), "may not be changed by an approval"))
	}
	return errs
}
