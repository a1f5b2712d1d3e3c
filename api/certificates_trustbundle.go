package api

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/naming"
)

func clusterTrustBundles() *Resource {
	return &Resource{
		Group: certificatesv1.GroupName, Version: "v1", Kind: "ClusterTrustBundle", Plural: "clustertrustbundles",
		New:         func() Object { return &certificatesv1.ClusterTrustBundle{} },
		NewList:     func() runtime.Object { return &certificatesv1.ClusterTrustBundleList{} },
		Conditional: true,

		// What the name must be depends on the signer: validateTrustBundle says.
		ValidateName: func(string, bool) []string { return nil },
		Validate:     checked(validateTrustBundle),
		ValidateCreate: checked(func(b *certificatesv1.ClusterTrustBundle) field.ErrorList {
			return validateTrustAnchors(b.Spec.TrustBundle, field.NewPath("spec", "trustBundle"))
		}),
		ValidateUpdate: checked2(func(b, old *certificatesv1.ClusterTrustBundle) field.ErrorList {
			path := field.NewPath("spec")
			errs := unchanged(b.Spec.SignerName, old.Spec.SignerName, path.Child("signerName"))
			if b.Spec.TrustBundle != old.Spec.TrustBundle { // one from before a rule stays as it is
				errs = append(errs, validateTrustAnchors(b.Spec.TrustBundle, path.Child("trustBundle"))...)
			}
			return errs
		}),
		Fields: []string{"spec.signerName"},

		Columns: []metav1.TableColumnDefinition{nameColumn, column("SignerName", "string", certificatesv1.ClusterTrustBundleSpec{}.SwaggerDoc()["signerName"])},
		Cells: row(func(b *certificatesv1.ClusterTrustBundle) []any {
			return []any{b.Name, orNone(b.Spec.SignerName)}
		}),
	}
}

func validateTrustBundle(b *certificatesv1.ClusterTrustBundle) field.ErrorList {
	path := field.NewPath("metadata")
	var errs field.ErrorList
	if b.GenerateName != "" {
		errs = append(errs, invalid(path.Child("generateName"), b.GenerateName, bundleName(b.Spec.SignerName, b.GenerateName, true))...)
	}
	if b.Name != "" {
		errs = append(errs, invalid(path.Child("name"), b.Name, bundleName(b.Spec.SignerName, b.Name, false))...)
	}
	if b.Spec.SignerName != "" {
		errs = append(errs, validateSignerName(b.Spec.SignerName, field.NewPath("spec", "signerName"))...)
	}
	return errs
}

// bundleName wants the bundles of a signer to bear its name: who may not attest for example.com/a cannot make
// what looks as if example.com/a had.
func bundleName(signer, name string, prefix bool) []string {
	if signer == "" {
		if strings.Contains(name, ":") {
			return []string{"ClusterTrustBundle without signer name must not have \":\" in its name"}
		}
		return naming.NameIsDNSSubdomain(name, prefix)
	}
	begins := strings.ReplaceAll(signer, "/", ":") + ":"
	rest, ok := strings.CutPrefix(name, begins)
	if !ok {
		return []string{fmt.Sprintf("ClusterTrustBundle for signerName %s must be named with prefix %s", signer, begins)}
	}
	return naming.NameIsDNSSubdomain(rest, prefix)
}

// maxTrustBundle is how many bytes of certificates there may be in one bundle: 1 MiB.
const maxTrustBundle = 1 << 20

// omitted stands for values that are too long to be told in a message.
const omitted = "<value omitted>"

// validateTrustAnchors wants PEM blocks, each a certificate of a CA, none of them twice.
func validateTrustAnchors(text string, path *field.Path) field.ErrorList {
	if len(text) > maxTrustBundle {
		return field.ErrorList{field.TooLong(path, "" /*unused*/, maxTrustBundle)}
	}
	var errs field.ErrorList
	var order []string
	at := map[string][]int{}
	rest := []byte(text)
	for i := 0; ; i++ {
		if field.Enough(errs) {
			break
		}
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if complaint := trustAnchor(block); complaint != "" {
			errs = append(errs, field.Invalid(path, omitted, fmt.Sprintf("entry %d %s", i, complaint)))
			continue
		}
		if at[string(block.Bytes)] == nil {
			order = append(order, string(block.Bytes))
		}
		at[string(block.Bytes)] = append(at[string(block.Bytes)], i)
	}
	if len(errs) > 0 {
		return errs
	}
	if len(at) == 0 {
		return field.ErrorList{field.Invalid(path, omitted, "at least one trust anchor must be provided")}
	}
	for _, der := range order {
		if field.Enough(errs) {
			break
		}
		if len(at[der]) > 1 {
			errs = append(errs, field.Invalid(path, omitted, fmt.Sprintf("duplicate trust anchor (indices %v)", at[der])))
		}
	}
	return errs
}

// trustAnchor says what is wrong with a block, or nothing.
func trustAnchor(block *pem.Block) string {
	if block.Type != "CERTIFICATE" {
		return "has bad block type: " + block.Type
	}
	if len(block.Headers) > 0 {
		return "has PEM block headers"
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	switch {
	case err != nil:
		return "does not parse as X.509"
	case !cert.IsCA:
		return "does not have the CA bit set"
	case !cert.BasicConstraintsValid:
		return "has invalid basic constraints"
	}
	return ""
}
