package crd

import (
	"crypto/x509"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// establish decides, once and for all, whether the kind is served.
func establish(crd *apiextensionsv1.CustomResourceDefinition) {
	established := condition(apiextensionsv1.Established, true, "InitialNamesAccepted",
		"the initial names have been accepted")
	switch {
	case apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established):
		return
	case !apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.NamesAccepted):
		established = condition(apiextensionsv1.Established, false, "NotAccepted", "not all names are accepted")
	case !isCABundleValid(crd.Spec.Conversion):
		established = condition(apiextensionsv1.Established, false, "InvalidCABundle",
			"The conversion webhook CABundle is invalid")
	}
	apihelpers.SetCRDCondition(crd, established)
}

// isCABundleValid reports whether the CA bundle of the conversion webhook, if there is one, has certificates.
func isCABundleValid(c *apiextensionsv1.CustomResourceConversion) bool {
	if c == nil || c.Webhook == nil || c.Webhook.ClientConfig == nil {
		return true
	}
	bundle := c.Webhook.ClientConfig.CABundle
	return len(bundle) == 0 || x509.NewCertPool().AppendCertsFromPEM(bundle)
}
