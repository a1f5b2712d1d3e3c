package apiextensions

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"

	internal "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"

	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/validate"
	"github.com/coxswain-dev/coxswain/api/naming"
)

// reviewVersions are the versions of ConversionReview that the server can send.
var reviewVersions = []string{"v1", "v1beta1"}

func isReviewVersion(version string) bool { return slices.Contains(reviewVersions, version) }

func (v *validation) conversion(c *internal.CustomResourceConversion, at *field.Path) field.ErrorList {
	if c == nil {
		return nil
	}
	errs := validate.RequiredOneOf(at.Child("strategy"), c.Strategy, internal.NoneConverter, internal.WebhookConverter)
	client, versions := at.Child("webhookClientConfig"), at.Child("conversionReviewVersions")
	if c.Strategy != internal.WebhookConverter {
		const detail = "should not be set when strategy is not set to Webhook"
		if c.WebhookClientConfig != nil {
			errs = append(errs, field.Forbidden(client, detail))
		}
		if len(c.ConversionReviewVersions) > 0 {
			errs = append(errs, field.Forbidden(versions, detail))
		}
		return errs
	}
	if c.WebhookClientConfig == nil {
		errs = append(errs, field.Required(client, "required when strategy is set to Webhook"))
	} else {
		errs = append(errs, v.clientConfig(c.WebhookClientConfig, client)...)
	}
	return append(errs, v.reviews(c.ConversionReviewVersions, versions)...)
}

func (v *validation) clientConfig(c *internal.WebhookClientConfig, at *field.Path) (errs field.ErrorList) {
	switch {
	case (c.URL == nil) == (c.Service == nil):
		errs = append(errs, field.Required(at, "exactly one of url or service is required"))
	case c.URL != nil:
		errs = append(errs, validate.WebhookURL(*c.URL, at.Child("url"))...)
	default:
		errs = append(errs, validateService(c.Service, at.Child("service"))...)
	}
	if !v.anyCABundle {
		if err := checkCABundle(c.CABundle); err != nil {
			errs = append(errs, field.Invalid(at.Child("caBundle"), c.CABundle, err.Error()))
		}
	}
	return errs
}

// validateService checks the service of a webhook. A missing namespace is reported at the name, and a missing name at
// the namespace: kube-apiserver mixes them up.
func validateService(s *internal.ServiceReference, at *field.Path) field.ErrorList {
	errs := validate.Required(at.Child("name"), s.Namespace)
	errs = append(errs, validate.Required(at.Child("namespace"), s.Name)...)
	if why := utilvalidation.IsValidPortNum(int(s.Port)); len(why) > 0 {
		errs = append(errs, field.Invalid(at.Child("port"), s.Port, "port is not valid: "+strings.Join(why, ", ")))
	}
	if s.Path == nil {
		return errs
	}
	return append(errs, validateURLPath(*s.Path, at.Child("path"))...)
}

func validateURLPath(path string, at *field.Path) (errs field.ErrorList) {
	switch path {
	case "", "/":
		return nil
	case "//":
		return field.ErrorList{field.Invalid(at, path, "segment[0] may not be empty")}
	}
	if !strings.HasPrefix(path, "/") {
		errs = append(errs, field.Invalid(at, path, "must start with a '/'"))
	}
	for i, step := range strings.Split(strings.TrimSuffix(path[1:], "/"), "/") {
		if field.Enough(errs) {
			break
		}
		if step == "" {
			errs = append(errs, field.Invalid(at, path, fmt.Sprintf("segment[%d] may not be empty", i)))
			continue
		}
		for _, why := range naming.IsDNS1123Subdomain(step) {
			errs = append(errs, field.Invalid(at, path, fmt.Sprintf("segment[%d]: %s", i, why)))
		}
	}
	return errs
}

// checkCABundle returns why a client could not take the bundle for its certificate authorities. An empty bundle means
// the machine's own.
func checkCABundle(bundle []byte) error {
	if len(bundle) == 0 || x509.NewCertPool().AppendCertsFromPEM(bundle) {
		return nil
	}
	const detail = "unable to load root certificates: "
	for len(bundle) > 0 {
		var block *pem.Block
		if block, bundle = pem.Decode(bundle); block == nil {
			return errors.New(detail + "unable to parse bytes as PEM block")
		}
		if block.Type != "CERTIFICATE" || len(block.Headers) != 0 {
			continue
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return fmt.Errorf(detail+"failed to parse certificate: %w", err)
		}
	}
	return errors.New(detail + "no valid certificate authority data seen")
}

func (v *validation) reviews(versions []string, at *field.Path) (errs field.ErrorList) {
	if len(versions) == 0 {
		return field.ErrorList{field.Required(at, "")}
	}
	seen := map[string]bool{}
	for i, version := range versions {
		if field.Enough(errs) {
			break
		}
		if seen[version] {
			errs = append(errs, field.Invalid(at.Index(i), version, "duplicate version"))
			continue
		}
		seen[version] = true
		errs = append(errs, validate.Complaints(at.Index(i), version, utilvalidation.IsDNS1035Label(version))...)
	}
	if v.requireReview && !slices.ContainsFunc(versions, isReviewVersion) {
		errs = append(errs, field.Invalid(at, versions,
			"must include at least one of "+strings.Join(reviewVersions, ", ")))
	}
	return errs
}
