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

// reviewVersions are the versions of ConversionReview that this server can send.
var reviewVersions = []string{"v1", "v1beta1"}

func isReviewVersion(version string) bool { return slices.Contains(reviewVersions, version) }

func (v *validation) conversion(c *internal.CustomResourceConversion, path *field.Path) field.ErrorList {
	if c == nil {
		return nil
	}
	errs := validate.RequiredOneOf(path.Child("strategy"), c.Strategy, internal.NoneConverter,
		internal.WebhookConverter)
	client, versions := path.Child("webhookClientConfig"), path.Child("conversionReviewVersions")
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

func (v *validation) clientConfig(c *internal.WebhookClientConfig, path *field.Path) (errs field.ErrorList) {
	switch {
	case (c.URL == nil) == (c.Service == nil):
		errs = append(errs, field.Required(path, "exactly one of url or service is required"))
	case c.URL != nil:
		errs = append(errs, validate.WebhookURL(*c.URL, path.Child("url"))...)
	default:
		errs = append(errs, validateService(c.Service, path.Child("service"))...)
	}
	if !v.anyCABundle {
		if err := checkCABundle(c.CABundle); err != nil {
			errs = append(errs, field.Invalid(path.Child("caBundle"), c.CABundle, err.Error()))
		}
	}
	return errs
}

// validateService checks the service of a webhook. Like kube-apiserver, which mixes them up, it reports a missing
// namespace at name and a missing name at namespace.
func validateService(s *internal.ServiceReference, path *field.Path) field.ErrorList {
	errs := validate.Required(path.Child("name"), s.Namespace)
	errs = append(errs, validate.Required(path.Child("namespace"), s.Name)...)
	if why := utilvalidation.IsValidPortNum(int(s.Port)); len(why) > 0 {
		errs = append(errs, field.Invalid(path.Child("port"), s.Port, "port is not valid: "+strings.Join(why, ", ")))
	}
	if s.Path == nil {
		return errs
	}
	return append(errs, validateURLPath(*s.Path, path.Child("path"))...)
}

func validateURLPath(path string, fldPath *field.Path) (errs field.ErrorList) {
	switch path {
	case "", "/":
		return nil
	case "//":
		return field.ErrorList{field.Invalid(fldPath, path, "segment[0] may not be empty")}
	}
	if !strings.HasPrefix(path, "/") {
		errs = append(errs, field.Invalid(fldPath, path, "must start with a '/'"))
	}
	for i, step := range strings.Split(strings.TrimSuffix(path[1:], "/"), "/") {
		if field.Enough(errs) {
			break
		}
		if step == "" {
			errs = append(errs, field.Invalid(fldPath, path, fmt.Sprintf("segment[%d] may not be empty", i)))
			continue
		}
		for _, why := range naming.IsDNS1123Subdomain(step) {
			errs = append(errs, field.Invalid(fldPath, path, fmt.Sprintf("segment[%d]: %s", i, why)))
		}
	}
	return errs
}

// checkCABundle returns the reason why the bundle cannot be used as certificate authorities. An empty bundle means the
// machine's own authorities.
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

func (v *validation) reviews(versions []string, path *field.Path) (errs field.ErrorList) {
	if len(versions) == 0 {
		return field.ErrorList{field.Required(path, "")}
	}
	seen := map[string]bool{}
	for i, version := range versions {
		if field.Enough(errs) {
			break
		}
		if seen[version] {
			errs = append(errs, field.Invalid(path.Index(i), version, "duplicate version"))
			continue
		}
		seen[version] = true
		errs = append(errs, validate.Complaints(path.Index(i), version, utilvalidation.IsDNS1035Label(version))...)
	}
	if v.requireReview && !slices.ContainsFunc(versions, isReviewVersion) {
		errs = append(errs, field.Invalid(path, versions,
			"must include at least one of "+strings.Join(reviewVersions, ", ")))
	}
	return errs
}
