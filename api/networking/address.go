package networking

import (
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	netutils "k8s.io/utils/net"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/table"
	"github.com/coxswain-dev/coxswain/api/kit/validate"
)

func ipAddresses() *api.Resource {
	return &api.Resource{
		Names: api.Names{
			Group: networkingGroup, Version: "v1", Kind: "IPAddress", Plural: "ipaddresses",
			ShortNames: []string{"ip"},
		},
		Storage: api.Storage{
			New:     func() api.Object { return &networkingv1.IPAddress{} },
			NewList: func() runtime.Object { return &networkingv1.IPAddressList{} },
			Fields: []string{"spec.parentRef.name", "spec.parentRef.namespace", "spec.parentRef.resource",
				"spec.parentRef.group"},
		},
		Strategy: api.Strategy{
			ValidateName: func(name string, _ bool) []string {
				var complaints []string
				for _, err := range utilvalidation.IsValidIP(nil, name) {
					complaints = append(complaints, err.Detail)
				}
				return complaints
			},
			Validate: api.Check(func(a *networkingv1.IPAddress) field.ErrorList {
				parentRefPath, ref := field.NewPath("spec", "parentRef"), a.Spec.ParentRef
				if ref == nil {
					return field.ErrorList{field.Required(parentRefPath, "")}
				}
				var errs field.ErrorList
				if ref.Group != "" { // the core group has no name
					errs = append(errs, validate.DnsSubdomain(parentRefPath.Child("group"), ref.Group)...)
				}
				errs = append(errs, validate.RequiredSegment(parentRefPath.Child("resource"), ref.Resource)...)
				errs = append(errs, validate.RequiredSegment(parentRefPath.Child("name"), ref.Name)...)
				if ref.Namespace != "" {
					errs = append(errs, validate.Segment(parentRefPath.Child("namespace"), ref.Namespace)...)
				}
				return errs
			}),
			ValidateUpdate: api.CheckUpdate(func(a, old *networkingv1.IPAddress) field.ErrorList {
				return validate.Unchanged(a.Spec.ParentRef, old.Spec.ParentRef, field.NewPath("spec", "parentRef"))
			}),
		},
		Table: api.Table{
			Columns: []metav1.TableColumnDefinition{table.Name,
				table.Column("ParentRef", "string", networkingv1.IPAddressSpec{}.SwaggerDoc()["parentRef"])},
			Cells: api.Row(func(a *networkingv1.IPAddress) []any {
				parent := table.None
				if ref := a.Spec.ParentRef; ref != nil {
					parts := []string{ref.Resource}
					if ref.Group != "" {
						parts[0] += "." + ref.Group
					}
					if ref.Namespace != "" {
						parts = append(parts, ref.Namespace)
					}
					parent = strings.Join(append(parts, ref.Name), "/")
				}
				return []any{a.Name, parent}
			}),
		},
	}
}

func serviceCIDRs() *api.Resource {
	return &api.Resource{
		Names: api.Names{Group: networkingGroup, Version: "v1", Kind: "ServiceCIDR", Plural: "servicecidrs"},
		Storage: api.Storage{
			New:     func() api.Object { return &networkingv1.ServiceCIDR{} },
			NewList: func() runtime.Object { return &networkingv1.ServiceCIDRList{} },
		},
		Strategy: api.Strategy{
			Validate:       api.Check(validateServiceCIDR),
			ValidateUpdate: api.CheckUpdate(validateServiceCIDRUpdate),
			Status: api.StatusOf(
				func(c *networkingv1.ServiceCIDR) *networkingv1.ServiceCIDRStatus { return &c.Status },
				(*networkingv1.ServiceCIDRStatus).DeepCopy,
			).WithMetadata(api.AllMetadata),
		},
		Table: api.Table{
			Columns: []metav1.TableColumnDefinition{table.Name,
				table.Column("CIDRs", "string", networkingv1.ServiceCIDRSpec{}.SwaggerDoc()["cidrs"]), table.Age},
			Cells: api.Row(func(c *networkingv1.ServiceCIDR) []any {
				return []any{c.Name, strings.Join(c.Spec.CIDRs, ","), table.AgeOf(c.CreationTimestamp)}
			}),
		},
	}
}

func validateServiceCIDR(c *networkingv1.ServiceCIDR) field.ErrorList {
	path, cidrs := field.NewPath("spec", "cidrs"), c.Spec.CIDRs
	switch {
	case len(cidrs) == 0:
		return field.ErrorList{field.Required(path, "at least one CIDR required")}
	case len(cidrs) > 2:
		return field.ErrorList{field.Invalid(path, c.Spec, "may only hold up to 2 values")}
	}
	var errs field.ErrorList
	for i, cidr := range cidrs {
		if field.Enough(errs) {
			break
		}
		errs = append(errs, utilvalidation.IsValidCIDR(path.Index(i).Plain(), cidr)...)
	}
	if len(cidrs) == 2 {
		family := netutils.IPFamilyOfCIDRString(cidrs[0])
		if family != netutils.IPFamilyUnknown && family == netutils.IPFamilyOfCIDRString(cidrs[1]) {
			errs = append(errs, field.Invalid(path, cidrs, "may specify no more than one IP for each IP family, "+
				"i.e 192.168.0.0/24 and 2001:db8::/64"))
		}
	}
	return errs
}

// validateServiceCIDRUpdate only allows a second address family to be added.
func validateServiceCIDRUpdate(c, old *networkingv1.ServiceCIDR) field.ErrorList {
	path, is, was := field.NewPath("spec", "cidrs"), c.Spec.CIDRs, old.Spec.CIDRs
	if len(is) != len(was) && (len(was) != 1 || len(is) != 2) {
		return field.ErrorList{field.Invalid(path, is, validate.Immutable)}
	}
	var errs field.ErrorList
	for i := range was {
		if field.Enough(errs) {
			break
		}
		if is[i] != was[i] {
			errs = append(errs, field.Invalid(path.Index(i), is[i], validate.Immutable))
		}
	}
	return errs
}
