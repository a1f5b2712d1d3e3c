package core

import (
	"net"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/defaults"
	"github.com/coxswain-dev/coxswain/api/kit/table"
	"github.com/coxswain-dev/coxswain/api/kit/validate"
	"github.com/coxswain-dev/coxswain/api/naming"
)

func endpoints() *api.Resource {
	return &api.Resource{
		Names: api.Names{
			Version: "v1", Kind: "Endpoints", Plural: "endpoints", Namespaced: true,
			ShortNames: []string{"ep"},
		},
		Storage: api.Storage{
			New:     func() api.Object { return &corev1.Endpoints{} },
			NewList: func() runtime.Object { return &corev1.EndpointsList{} },
		},
		Strategy: api.Strategy{
			CreateOnUpdate: true,
			Default: api.Typed(func(e *corev1.Endpoints) {
				for i := range e.Subsets {
					for j := range e.Subsets[i].Ports {
						defaults.Set(&e.Subsets[i].Ports[j].Protocol, corev1.ProtocolTCP)
					}
				}
			}),
			Validate: api.Check(validateEndpoints),
		},
		Table: api.Table{
			Columns: []metav1.TableColumnDefinition{table.Name,
				table.Column("Endpoints", "string", corev1.Endpoints{}.SwaggerDoc()["subsets"]), table.Age},
			Cells: api.Row(func(e *corev1.Endpoints) []any {
				return []any{e.Name, endpointsCell(e), table.AgeOf(e.CreationTimestamp)}
			}),
		},
	}
}

func endpointsCell(e *corev1.Endpoints) string {
	if len(e.Subsets) == 0 {
		return table.None
	}
	var list []string
	for _, s := range e.Subsets {
		for _, p := range s.Ports {
			for _, a := range s.Addresses {
				list = append(list, net.JoinHostPort(a.IP, strconv.Itoa(int(p.Port))))
			}
		}
		if len(s.Ports) == 0 {
			for _, a := range s.Addresses {
				list = append(list, a.IP)
			}
		}
	}
	return table.FirstAnd(list, len(list))
}

func validateEndpoints(e *corev1.Endpoints) field.ErrorList {
	var errs field.ErrorList
	for i := range e.Subsets {
		if field.Enough(errs) {
			break
		}
		s, idxPath := &e.Subsets[i], field.NewPath("subsets").Index(i)
		if len(s.Addresses)+len(s.NotReadyAddresses) == 0 {
			errs = append(errs, field.Required(idxPath, "must specify `addresses` or `notReadyAddresses`"))
		}
		for j := range s.Addresses {
			if field.Enough(errs) {
				break
			}
			errs = append(errs, validateSubsetAddress(&s.Addresses[j], idxPath.Child("addresses").Index(j))...)
		}
		for j := range s.NotReadyAddresses {
			if field.Enough(errs) {
				break
			}
			errs = append(errs, validateSubsetAddress(&s.NotReadyAddresses[j],
				idxPath.Child("notReadyAddresses").Index(j))...)
		}
		for j, p := range s.Ports {
			if field.Enough(errs) {
				break
			}
			idxPath := idxPath.Child("ports").Index(j)
			if p.Name == "" && len(s.Ports) > 1 {
				errs = append(errs, field.Required(idxPath.Child("name"), ""))
			} else if p.Name != "" {
				errs = append(errs, validate.DnsLabel(idxPath.Child("name"), p.Name)...)
			}
			errs = append(errs, validate.PortNumber(idxPath.Child("port"), p.Port)...)
			errs = append(errs, validate.RequiredOneOf(idxPath.Child("protocol"), p.Protocol, corev1.ProtocolSCTP,
				corev1.ProtocolTCP, corev1.ProtocolUDP)...)
			if p.AppProtocol != nil {
				errs = append(errs, validate.Complaints(idxPath.Child("appProtocol"), *p.AppProtocol,
					naming.IsQualifiedName(*p.AppProtocol))...)
			}
		}
	}
	return errs
}

func validateSubsetAddress(a *corev1.EndpointAddress, path *field.Path) field.ErrorList {
	errs := validate.IP(path.Child("ip"), a.IP)
	bad := len(errs) > 0
	if a.Hostname != "" {
		errs = append(errs, validate.DnsLabel(path.Child("hostname"), a.Hostname)...)
	}
	if a.NodeName != nil {
		errs = append(errs, validate.DnsSubdomain(path.Child("nodeName"), *a.NodeName)...)
	}
	if bad {
		return append(errs, field.Invalid(path.Child("ip"), a.IP, "must be a valid IP address"))
	}
	return append(errs, validate.UsableIP(path.Child("ip"), a.IP)...)
}
