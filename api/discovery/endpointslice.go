package discovery

import (
	"net"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/defaults"
	"github.com/coxswain-dev/coxswain/api/kit/table"
	"github.com/coxswain-dev/coxswain/api/kit/validate"
	"github.com/coxswain-dev/coxswain/api/kit/warning"
	"github.com/coxswain-dev/coxswain/api/naming"
)

func endpointSlices() *api.Resource {
	return &api.Resource{
		Names: api.Names{
			Group: discoveryv1.GroupName, Version: "v1", Kind: "EndpointSlice", Plural: "endpointslices",
			Namespaced: true,
		},
		Storage: api.Storage{
			New:     func() api.Object { return &discoveryv1.EndpointSlice{} },
			NewList: func() runtime.Object { return &discoveryv1.EndpointSliceList{} },
		},
		Strategy: api.Strategy{
			Default: api.Typed(func(s *discoveryv1.EndpointSlice) {
				for i := range s.Ports {
					defaults.SetPtr(&s.Ports[i].Name, "")
					defaults.SetPtr(&s.Ports[i].Protocol, corev1.ProtocolTCP)
				}
			}),
			PrepareCreate: api.Typed(func(s *discoveryv1.EndpointSlice) { dropTopology(s, nil) }),
			PrepareUpdate: api.Typed2(dropTopology),
			Validate:      api.Check(validateEndpointSlice),
			Warnings:      api.Warn(warnEndpointSlice),
			ValidateUpdate: api.CheckUpdate(func(s, old *discoveryv1.EndpointSlice) field.ErrorList {
				return validate.Unchanged(s.AddressType, old.AddressType, field.NewPath("addressType"))
			}),
			Generation: true,
		},
		Table: api.Table{
			Columns: []metav1.TableColumnDefinition{
				table.Name,
				table.Column("AddressType", "string", discoveryv1.EndpointSlice{}.SwaggerDoc()["addressType"]),
				table.Column("Ports", "string", discoveryv1.EndpointSlice{}.SwaggerDoc()["ports"]),
				table.Column("Endpoints", "string", discoveryv1.EndpointSlice{}.SwaggerDoc()["endpoints"]),
				table.Age,
			},
			Cells: api.Row(func(s *discoveryv1.EndpointSlice) []any {
				var ports, addresses []string
				for _, p := range s.Ports {
					number := "*"
					if p.Port != nil {
						number = strconv.Itoa(int(*p.Port))
					} else if p.Name != nil {
						number = *p.Name
					}
					ports = append(ports, number)
				}
				for _, e := range s.Endpoints {
					addresses = append(addresses, e.Addresses...)
				}
				return []any{
					s.Name, string(s.AddressType), listOrUnset(ports), listOrUnset(addresses),
					table.AgeOf(s.CreationTimestamp),
				}
			}),
		},
	}
}

func listOrUnset(list []string) string {
	if s := table.FirstAnd(list, len(list)); s != "" {
		return s
	}
	return table.Unset
}

func validateEndpointSlice(s *discoveryv1.EndpointSlice) field.ErrorList {
	errs := validate.RequiredOneOf(field.NewPath("addressType"), s.AddressType,
		discoveryv1.AddressTypeFQDN, discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6)
	const maxEndpoints, maxPorts, maxAddresses = 1000, 20000, 100
	path := field.NewPath("endpoints")
	if len(s.Endpoints) > maxEndpoints {
		return append(errs, field.TooMany(path, len(s.Endpoints), maxEndpoints))
	}
	for i := range s.Endpoints {
		if field.Enough(errs) {
			break
		}
		e, idxPath := &s.Endpoints[i], path.Index(i)
		switch n := len(e.Addresses); {
		case n == 0:
			errs = append(errs, field.Required(idxPath.Child("addresses"), "must contain at least 1 address"))
		case n > maxAddresses:
			errs = append(errs, field.TooMany(idxPath.Child("addresses"), n, maxAddresses))
		}
		for j, address := range e.Addresses {
			if field.Enough(errs) {
				break
			}
			errs = append(errs, validateEndpointAddress(s.AddressType, address, idxPath.Child("addresses").Index(j))...)
		}
		if e.NodeName != nil {
			errs = append(errs, validate.DnsSubdomain(idxPath.Child("nodeName"), *e.NodeName)...)
		}
		if e.Hostname != nil {
			errs = append(errs, validate.DnsLabel(idxPath.Child("hostname"), *e.Hostname)...)
		}
		if e.Hints != nil {
			errs = append(errs, validateHints(e.Hints, idxPath.Child("hints"))...)
		}
	}
	if len(s.Ports) > maxPorts {
		return append(errs, field.TooMany(field.NewPath("ports"), len(s.Ports), maxPorts))
	}
	return append(errs, validateSlicePorts(s.Ports, field.NewPath("ports"))...)
}

// dropTopology drops deprecatedTopology, which clients of discovery.k8s.io/v1 may not set. Topology that older
// versions wrote is kept as long as the endpoints do not change. Then the node's name in it moves to nodeName.
func dropTopology(s, old *discoveryv1.EndpointSlice) {
	nodes := map[string]bool{}
	if old != nil {
		if equality.Semantic.DeepEqual(s.Endpoints, old.Endpoints) {
			return
		}
		for _, e := range old.Endpoints {
			if node, ok := e.DeprecatedTopology[corev1.LabelHostname]; ok {
				nodes[node] = true
			}
		}
	}
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		if node := e.DeprecatedTopology[corev1.LabelHostname]; e.NodeName == nil && nodes[node] &&
			len(naming.IsDNS1123Subdomain(node)) == 0 {
			e.NodeName = &node
		}
		e.DeprecatedTopology = nil
	}
}

func validateHints(h *discoveryv1.EndpointHints, path *field.Path) field.ErrorList {
	const maxHints = 8
	var errs field.ErrorList
	check := func(names []string, path *field.Path, complaints func(string) []string) {
		if len(names) > maxHints {
			errs = append(errs, field.TooMany(path, len(names), maxHints))
			return
		}
		var before validate.Seen
		for i, name := range names {
			if field.Enough(errs) {
				break
			}
			namePath := path.Index(i).Child("name")
			if validate.Repeated(&before, names[:i], name) {
				errs = append(errs, field.Duplicate(namePath, name))
			}
			errs = append(errs, validate.Complaints(namePath, name, complaints(name))...)
		}
	}
	zones, nodes := make([]string, len(h.ForZones)), make([]string, len(h.ForNodes))
	for i := range h.ForZones {
		zones[i] = h.ForZones[i].Name
	}
	for i := range h.ForNodes {
		nodes[i] = h.ForNodes[i].Name
	}
	check(zones, path.Child("forZones"), naming.IsValidLabelValue)
	check(nodes, path.Child("forNodes"), naming.IsDNS1123Subdomain)
	return errs
}

func warnEndpointSlice(s, _ *discoveryv1.EndpointSlice) []string {
	var w warning.List
	if s.AddressType == discoveryv1.AddressTypeFQDN {
		w.Add(field.NewPath("addressType"), "FQDN endpoints are deprecated")
		return w
	}
	for i := range s.Endpoints {
		for j, address := range s.Endpoints[i].Addresses {
			w.Address(field.NewPath("endpoints").Index(i).Child("addresses").Index(j), address)
		}
	}
	return w
}

func validateEndpointAddress(kind discoveryv1.AddressType, address string, path *field.Path) field.ErrorList {
	switch kind {
	case discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6:
		if errs := validate.IP(path, address); len(errs) > 0 {
			return errs
		}
		if v6 := net.ParseIP(address).To4() == nil; v6 != (kind == discoveryv1.AddressTypeIPv6) {
			return field.ErrorList{field.Invalid(path, address, "must be an "+string(kind)+" address")}
		}
		return validate.UsableIP(path, address)
	case discoveryv1.AddressTypeFQDN:
		return utilvalidation.IsFullyQualifiedDomainName(path.Plain(), address)
	}
	return nil
}

func validateSlicePorts(ports []discoveryv1.EndpointPort, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	names := make(map[string]bool, len(ports))
	for i, p := range ports {
		if field.Enough(errs) {
			break
		}
		idxPath, name := path.Index(i), ptr.Deref(p.Name, "")
		if name != "" {
			errs = append(errs, validate.DnsLabel(idxPath.Child("name"), name)...)
		}
		if names[name] {
			errs = append(errs, field.Duplicate(idxPath.Child("name"), p.Name))
		}
		names[name] = true
		if p.Port != nil {
			errs = append(errs, validate.PortNumber(idxPath.Child("port"), *p.Port)...)
		}
		errs = append(errs, validate.RequiredOneOf(idxPath.Child("protocol"), ptr.Deref(p.Protocol, ""),
			corev1.ProtocolSCTP,
			corev1.ProtocolTCP, corev1.ProtocolUDP)...)
		if p.AppProtocol != nil {
			errs = append(errs, validate.QualifiedName(idxPath.Child("appProtocol"), *p.AppProtocol)...)
		}
	}
	return errs
}
