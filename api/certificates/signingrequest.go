package certificates

import (
	"bytes"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/table"
	"github.com/coxswain-dev/coxswain/api/kit/validate"
)

func certificateSigningRequests() *api.Resource {
	return &api.Resource{
		Names: api.Names{
			Group: certificatesv1.GroupName, Version: "v1", Kind: "CertificateSigningRequest",
			Plural:     "certificatesigningrequests",
			ShortNames: []string{"csr"},
		},
		Storage: api.Storage{
			New:     func() api.Object { return &certificatesv1.CertificateSigningRequest{} },
			NewList: func() runtime.Object { return &certificatesv1.CertificateSigningRequestList{} },
			Fields:  []string{"spec.signerName"},
		},
		Strategy: api.Strategy{
			// Signers decide by the requester, so it always is the caller.
			SetRequester: func(obj api.Object, user authenticationv1.UserInfo) {
				spec := &obj.(*certificatesv1.CertificateSigningRequest).Spec
				spec.Username, spec.UID, spec.Groups, spec.Extra = user.Username, user.UID, user.Groups, nil
				for key, values := range user.Extra {
					if spec.Extra == nil {
						spec.Extra = map[string]certificatesv1.ExtraValue{}
					}
					spec.Extra[key] = certificatesv1.ExtraValue(values)
				}
			},
			SetStatusTimes: func(obj, old api.Object, now metav1.Time) {
				setConditionTimes(obj.(*certificatesv1.CertificateSigningRequest).Status.Conditions,
					old.(*certificatesv1.CertificateSigningRequest).Status.Conditions, now)
			},
			ValidateName: validate.SegmentName,
			Validate:     api.Check(validateSigningRequest),
			ValidateUpdate: api.CheckUpdate(func(c, old *certificatesv1.CertificateSigningRequest) field.ErrorList {
				return validate.Unchanged(c.Spec, old.Spec, field.NewPath("spec"))
			}),
			Status: api.StatusOf(
				func(c *certificatesv1.CertificateSigningRequest) *certificatesv1.CertificateSigningRequestStatus {
					return &c.Status
				},
				(*certificatesv1.CertificateSigningRequestStatus).DeepCopy,
			).WithMetadata(api.AllMetadata).WrittenBy(api.Typed2(keepDecisions)).CheckedBy(
				api.CheckUpdate(validateIssued)),
			Subresources: []api.Subresource{{
				Name: "approval", Group: certificatesv1.GroupName, Version: "v1", Kind: "CertificateSigningRequest",
				Verbs: []string{"get", "patch", "update"}, Metadata: api.AllMetadata,
				Copy: api.Typed2(func(dst, src *certificatesv1.CertificateSigningRequest) {
					dst.Status.Conditions = slices.Clone(src.Status.Conditions)
				}),
				Validate: api.CheckUpdate(validateApproval),
			}},
		},
		Table: api.Table{
			Columns: []metav1.TableColumnDefinition{
				table.Name,
				table.Age,
				table.Column("SignerName", "string",
					certificatesv1.CertificateSigningRequestSpec{}.SwaggerDoc()["signerName"]),
				table.Column("Requestor", "string",
					certificatesv1.CertificateSigningRequestSpec{}.SwaggerDoc()["request"]),
				table.Column("RequestedDuration", "string",
					certificatesv1.CertificateSigningRequestSpec{}.SwaggerDoc()["expirationSeconds"]),
				table.Column("Condition", "string",
					certificatesv1.CertificateSigningRequestStatus{}.SwaggerDoc()["conditions"]),
			},
			Cells: api.Row(func(c *certificatesv1.CertificateSigningRequest) []any {
				lasting := table.None
				if s := c.Spec.ExpirationSeconds; s != nil {
					lasting = duration.HumanDuration(time.Duration(*s) * time.Second)
				}
				return []any{c.Name, table.AgeOf(c.CreationTimestamp), table.OrNone(c.Spec.SignerName),
					c.Spec.Username, lasting, requestCondition(c)}
			}),
		},
	}
}

// setConditionTimes sets the times of conditions that a write left out.
func setConditionTimes(conditions, was []certificatesv1.CertificateSigningRequestCondition, now metav1.Time) {
	type state struct {
		kind   certificatesv1.RequestConditionType
		status corev1.ConditionStatus
	}
	since := make(map[state]metav1.Time, len(was))
	for _, c := range was {
		if !c.LastTransitionTime.IsZero() {
			since[state{c.Type, c.Status}] = c.LastTransitionTime
		}
	}
	for i := range conditions {
		c := &conditions[i]
		if c.LastUpdateTime.IsZero() {
			c.LastUpdateTime = now
		}
		if !c.LastTransitionTime.IsZero() {
			continue
		}
		c.LastTransitionTime = now
		if before, ok := since[state{c.Type, c.Status}]; ok {
			c.LastTransitionTime = before
		}
	}
}

// keepDecisions copies a status in a write to /status. It does not change the conditions of approval. A write that
// adds or removes one is rejected later (validateIssued).
func keepDecisions(dst, src *certificatesv1.CertificateSigningRequest) {
	had := dst.Status.Conditions
	dst.Status = *src.Status.DeepCopy()
	for _, kind := range decisions {
		was := conditionsOf(had, kind)
		if len(was) != len(conditionsOf(dst.Status.Conditions, kind)) {
			continue
		}
		for i := range dst.Status.Conditions {
			if c := &dst.Status.Conditions[i]; c.Type == kind {
				*c, was = was[0], was[1:]
			}
		}
	}
}

// decisions are the conditions that only a write to /approval may change.
var decisions = []certificatesv1.RequestConditionType{certificatesv1.CertificateApproved,
	certificatesv1.CertificateDenied}

func isDecision(c certificatesv1.CertificateSigningRequestCondition) bool {
	return slices.Contains(decisions, c.Type)
}

type signingCondition = certificatesv1.CertificateSigningRequestCondition

func conditionsOf(conditions []signingCondition, kind certificatesv1.RequestConditionType) []signingCondition {
	var list []signingCondition
	for _, c := range conditions {
		if c.Type == kind {
			list = append(list, c)
		}
	}
	return list
}

func hasCondition(c *certificatesv1.CertificateSigningRequest, kind certificatesv1.RequestConditionType) bool {
	return slices.ContainsFunc(c.Status.Conditions, func(c certificatesv1.CertificateSigningRequestCondition) bool {
		return c.Type == kind
	})
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
	var before validate.Seen
	for i, u := range c.Spec.Usages {
		if field.Enough(errs) {
			break
		}
		errs = append(errs, validate.OneOf(path.Child("usages").Index(i), u, keyUsages...)...)
		if validate.Repeated(&before, c.Spec.Usages[:i], u) {
			errs = append(errs, field.Duplicate(path.Child("usages").Index(i), u))
		}
	}
	if fldPath := path.Child("signerName"); c.Spec.SignerName == legacySigner {
		errs = append(errs,
			field.Invalid(fldPath, c.Spec.SignerName, "the legacy signerName is not allowed via this API version"))
	} else {
		errs = append(errs, validate.SignerName(c.Spec.SignerName, fldPath)...)
	}
	if s := c.Spec.ExpirationSeconds; s != nil && *s < 600 {
		errs = append(errs, field.Invalid(path.Child("expirationSeconds"), *s,
			"may not specify a duration less than 600 seconds (10 minutes)"))
	}
	return errs
}

// legacySigner is the signer of requests that are older than signer names.
const legacySigner = "kubernetes.io/legacy-unknown"

// keyUsages are the key usages of RFC 5280, with the names of this API.
var keyUsages = []certificatesv1.KeyUsage{
	certificatesv1.UsageAny, certificatesv1.UsageCertSign, certificatesv1.UsageClientAuth,
	certificatesv1.UsageCodeSigning,
	certificatesv1.UsageContentCommitment, certificatesv1.UsageCRLSign, certificatesv1.UsageDataEncipherment,
	certificatesv1.UsageDecipherOnly,
	certificatesv1.UsageDigitalSignature, certificatesv1.UsageEmailProtection, certificatesv1.UsageEncipherOnly,
	certificatesv1.UsageIPsecEndSystem,
	certificatesv1.UsageIPsecTunnel, certificatesv1.UsageIPsecUser, certificatesv1.UsageKeyAgreement,
	certificatesv1.UsageKeyEncipherment,
	certificatesv1.UsageMicrosoftSGC, certificatesv1.UsageNetscapeSGC, certificatesv1.UsageOCSPSigning,
	certificatesv1.UsageSMIME,
	certificatesv1.UsageServerAuth, certificatesv1.UsageSigning, certificatesv1.UsageTimestamping,
}

// validateRequestConditions requires each type of condition to occur once, and decisions to be true. Stored conditions
// that break these rules may stay.
func validateRequestConditions(conditions, old []signingCondition) field.ErrorList {
	var errs field.ErrorList
	path := field.NewPath("status", "conditions")
	var before validate.Seen
	mayRepeat, mayLackType := repeatsConditions(old), len(conditionsOf(old, "")) > 0
	for i, c := range conditions {
		if field.Enough(errs) {
			break
		}
		idxPath := path.Index(i)
		if c.Type == "" && !mayLackType {
			errs = append(errs, field.Required(idxPath.Child("type"), ""))
		}
		if !mayRepeat && validate.RepeatedBy(&before, conditions[:i], c.Type, requestConditionType) {
			errs = append(errs, field.Duplicate(idxPath.Child("type"), c.Type))
		}
		if isDecision(c) || c.Type == certificatesv1.CertificateFailed {
			errs = append(errs, validate.RequiredOneOf(idxPath.Child("status"), c.Status, corev1.ConditionTrue)...)
		} else {
			errs = append(errs, validate.RequiredOneOf(idxPath.Child("status"), c.Status, corev1.ConditionFalse,
				corev1.ConditionTrue, corev1.ConditionUnknown)...)
		}
	}
	return append(errs, removedConditions(conditions, old)...)
}

func repeatsConditions(conditions []signingCondition) bool {
	kinds := make(map[certificatesv1.RequestConditionType]bool, len(conditions))
	for _, c := range conditions {
		kinds[c.Type] = true
	}
	return len(kinds) < len(conditions)
}

// removedConditions rejects the removal of a decision or a failure.
func removedConditions(conditions, old []signingCondition) field.ErrorList {
	path := field.NewPath("status", "conditions")
	var errs field.ErrorList
	for _, kind := range append(slices.Clone(decisions), certificatesv1.CertificateFailed) {
		if len(conditionsOf(conditions, kind)) < len(conditionsOf(old, kind)) {
			errs = append(errs,
				field.Forbidden(path, fmt.Sprintf("updates may not remove a condition of type %q", kind)))
		}
	}
	return errs
}

func requestConditionType(c *certificatesv1.CertificateSigningRequestCondition) certificatesv1.RequestConditionType {
	return c.Type
}

// validateIssued checks a write to /status.
func validateIssued(c, old *certificatesv1.CertificateSigningRequest) field.ErrorList {
	path := field.NewPath("status")
	errs := validateRequestConditions(c.Status.Conditions, old.Status.Conditions)
	for _, kind := range decisions { // keepDecisions has restored existing decisions
		if len(conditionsOf(c.Status.Conditions, kind)) > len(conditionsOf(old.Status.Conditions, kind)) {
			complaint := fmt.Sprintf("updates may not add a condition of type %q", kind)
			errs = append(errs, field.Forbidden(path.Child("conditions"), complaint))
		}
	}
	if bytes.Equal(c.Status.Certificate, old.Status.Certificate) {
		return errs
	}
	certificatePath := path.Child("certificate")
	if complaint := parseIssued(c.Status.Certificate); complaint != "" && parseIssued(old.Status.Certificate) == "" {
		errs = append(errs, field.Invalid(certificatePath, "<certificate data>", complaint))
	}
	if len(old.Status.Certificate) > 0 {
		errs = append(errs, field.Forbidden(certificatePath, "updates may not modify existing certificate content"))
	}
	return errs
}

// parseIssued returns the reason why a certificate is not a list of PEM certificates, or "".
func parseIssued(rest []byte) string {
	if len(rest) == 0 {
		return ""
	}
	var block *pem.Block
	for blocks := 0; ; blocks++ {
		block, rest = pem.Decode(rest)
		switch {
		case block == nil && blocks == 0:
			return "must contain at least one CERTIFICATE PEM block"
		case block == nil:
			return ""
		case block.Type != "CERTIFICATE":
			return fmt.Sprintf("only CERTIFICATE PEM blocks are allowed, found %q", block.Type)
		case len(block.Headers) != 0:
			return "no PEM block headers are permitted"
		}
		certificates, err := x509.ParseCertificates(block.Bytes)
		if err != nil {
			return err.Error()
		}
		if len(certificates) == 0 {
			return "found CERTIFICATE PEM block containing 0 certificates"
		}
	}
}

// parseRequest returns the reason why data is not a PKCS#10 request signed with its own key, or "".
func parseRequest(data []byte) string {
	block, _ := pem.Decode(data)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return "PEM block type must be CERTIFICATE REQUEST"
	}
	request, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return err.Error()
	}
	if key, ok := request.PublicKey.(*rsa.PublicKey); ok && key.N.BitLen() > maxRSABits {
		return fmt.Sprintf("RSA keys may have at most %d bits", maxRSABits)
	}
	if err := request.CheckSignature(); err != nil { // proves that the requester has the private key
		return err.Error()
	}
	return ""
}

// maxRSABits limits the work of checking a signature, which grows with the square of the key size. The requester
// chooses that size. OpenSSL has the same limit.
const maxRSABits = 16384

// validateApproval checks a write to /approval.
func validateApproval(c, old *certificatesv1.CertificateSigningRequest) field.ErrorList {
	errs := validateRequestConditions(c.Status.Conditions, old.Status.Conditions)
	if decidedBoth(c) && !decidedBoth(old) {
		path := field.NewPath("status", "conditions")
		errs = append(errs,
			field.Invalid(path, field.OmitValueType{}, "Approved and Denied conditions are mutually exclusive"))
	}
	return errs
}

func decidedBoth(c *certificatesv1.CertificateSigningRequest) bool {
	return hasCondition(c, certificatesv1.CertificateApproved) && hasCondition(c, certificatesv1.CertificateDenied)
}
