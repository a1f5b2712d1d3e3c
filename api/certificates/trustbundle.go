package certificates

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/table"
	"github.com/coxswain-dev/coxswain/api/kit/validate"
	"github.com/coxswain-dev/coxswain/api/naming"
)

func clusterTrustBundles() *api.Resource {
	return &api.Resource{
		Names: api.Names{
			Group: certificatesv1.GroupName, Version: "v1", Kind: "ClusterTrustBundle", Plural: "clustertrustbundles",
		},
		Storage: api.Storage{
			New:     func() api.Object { return &certificatesv1.ClusterTrustBundle{} },
			NewList: func() runtime.Object { return &certificatesv1.ClusterTrustBundleList{} },
			Fields:  []string{"spec.signerName"},
		},
		Strategy: api.Strategy{
			Conditional: true,
			// The form of the name depends on the signer, so validateTrustBundle checks it.
			ValidateName: func(string, bool) []string { return nil },
			Validate:     api.Check(validateTrustBundle),
			ValidateCreate: api.Check(func(b *certificatesv1.ClusterTrustBundle) field.ErrorList {
				return validateTrustAnchors(b.Spec.TrustBundle, field.NewPath("spec", "trustBundle"))
			}),
			ValidateUpdate: api.CheckUpdate(func(b, old *certificatesv1.ClusterTrustBundle) field.ErrorList {
				path := field.NewPath("spec")
				errs := validate.Unchanged(b.Spec.SignerName, old.Spec.SignerName, path.Child("signerName"))
				if b.Spec.TrustBundle != old.Spec.TrustBundle { // a stored bundle is not checked again
					errs = append(errs, validateTrustAnchors(b.Spec.TrustBundle, path.Child("trustBundle"))...)
				}
				return errs
			}),
		},
		Table: api.Table{
			Columns: []metav1.TableColumnDefinition{table.Name,
				table.Column("SignerName", "string",
					certificatesv1.ClusterTrustBundleSpec{}.SwaggerDoc()["signerName"])},
			Cells: api.Row(func(b *certificatesv1.ClusterTrustBundle) []any {
				return []any{b.Name, table.OrNone(b.Spec.SignerName)}
			}),
		},
	}
}

func validateTrustBundle(b *certificatesv1.ClusterTrustBundle) field.ErrorList {
	path := field.NewPath("metadata")
	var errs field.ErrorList
	if b.GenerateName != "" {
		errs = append(errs, validate.Complaints(path.Child("generateName"), b.GenerateName,
			bundleName(b.Spec.SignerName, b.GenerateName, true))...)
	}
	if b.Name != "" {
		errs = append(errs, validate.Complaints(path.Child("name"), b.Name,
			bundleName(b.Spec.SignerName, b.Name, false))...)
	}
	if b.Spec.SignerName != "" {
		errs = append(errs, validate.SignerName(b.Spec.SignerName, field.NewPath("spec", "signerName"))...)
	}
	return errs
}

// bundleName requires the name of a signer's bundle to begin with the signer's name: without the permission to attest
// for example.com/a, no client can create a bundle that looks like one of example.com/a.
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
		return []string{fmt.Sprintf("ClusterTrustBundle for signerName %s must be named with prefix %s",
			signer, begins)}
	}
	return naming.NameIsDNSSubdomain(rest, prefix)
}

// maxTrustBundle limits a bundle's certificates, in bytes.
const maxTrustBundle = 1 << 20

// validateTrustAnchors requires PEM blocks with CA certificates, without duplicates.
func validateTrustAnchors(text string, path *field.Path) field.ErrorList {
	if len(text) > maxTrustBundle {
		return field.ErrorList{field.TooLong(path, "" /*unused*/, maxTrustBundle)}
	}
	var errs field.ErrorList
	var order []string
	indexes := map[string][]int{}
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
			errs = append(errs, field.Invalid(path, validate.Omitted, fmt.Sprintf("entry %d %s", i, complaint)))
			continue
		}
		if indexes[string(block.Bytes)] == nil {
			order = append(order, string(block.Bytes))
		}
		indexes[string(block.Bytes)] = append(indexes[string(block.Bytes)], i)
	}
	if len(errs) > 0 {
		return errs
	}
	if len(indexes) == 0 {
		return field.ErrorList{field.Invalid(path, validate.Omitted, "at least one trust anchor must be provided")}
	}
	for _, der := range order {
		if field.Enough(errs) {
			break
		}
		if len(indexes[der]) > 1 {
			errs = append(errs,
				field.Invalid(path, validate.Omitted, fmt.Sprintf("duplicate trust anchor (indices %v)", indexes[der])))
		}
	}
	return errs
}

// trustAnchor returns the reason why a block is not a trust anchor, or "".
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
