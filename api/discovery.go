package api

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

	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/naming"
)

func endpointSlices() *Resource {
	return &Resource{
		Group: discoveryv1.GroupName, Version: "v1", Kind: "EndpointSlice", Plural: "endpointslices", Namespaced: true,
		New:     func() Object { return &discoveryv1.EndpointSlice{} },
		NewList: func() runtime.Object { return &discoveryv1.EndpointSliceList{} },

		Default: with(func(s *discoveryv1.EndpointSlice) {
			for i := range s.Ports {
				setDefaultPtr(&s.Ports[i].Name, "")
				setDefaultPtr(&s.Ports[i].Protocol, corev1.ProtocolTCP)
			}
		}),
		PrepareCreate: with(func(s *discoveryv1.EndpointSlice) { dropTopology(s, nil) }),
		PrepareUpdate: with2(dropTopology),
		Validate:      checked(validateEndpointSlice),
		Warnings:      warned2(warnEndpointSlice),
		ValidateUpdate: checked2(func(s, old *discoveryv1.EndpointSlice) field.ErrorList {
			return unchanged(s.AddressType, old.AddressType, field.NewPath("addressType"))
		}),
		Generation: true,

		Columns: []metav1.TableColumnDefinition{
			nameColumn,
			column("AddressType", "string", discoveryv1.EndpointSlice{}.SwaggerDoc()["addressType"]),
			column("Ports", "string", discoveryv1.EndpointSlice{}.SwaggerDoc()["ports"]),
			column("Endpoints", "string", discoveryv1.EndpointSlice{}.SwaggerDoc()["endpoints"]),
			ageColumn,
		},
		Cells: row(func(s *discoveryv1.EndpointSlice) []any {
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
				s.Name, string(s.AddressType), listOrUnset(ports), listOrUnset(addresses), age(s.CreationTimestamp),
			}
		}),
	}
}

func listOrUnset(list []string) string {
	if s := firstAnd(list, len(list)); s != "" {
		return s
	}
	return unset
}

func validateEndpointSlice(s *discoveryv1.EndpointSlice) field.ErrorList {
	errs := requiredOneOf(field.NewPath("addressType"), s.AddressType,
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
		e, at := &s.Endpoints[i], path.Index(i)
		switch n := len(e.Addresses); {
		case n == 0:
			errs = append(errs, field.Required(at.Child("addresses"), "must contain at least 1 address"))
		case n > maxAddresses:
			errs = append(errs, field.TooMany(at.Child("addresses"), n, maxAddresses))
		}
		for j, address := range e.Addresses {
			if field.Enough(errs) {
				break
			}
			errs = append(errs, validateEndpointAddress(s.AddressType, address, at.Child("addresses").Index(j))...)
		}
		if e.NodeName != nil {
			errs = append(errs, dnsSubdomain(at.Child("nodeName"), *e.NodeName)...)
		}
		if e.Hostname != nil {
			errs = append(errs, dnsLabel(at.Child("hostname"), *e.Hostname)...)
		}
		if e.Hints != nil {
			errs = append(errs, validateHints(e.Hints, at.Child("hints"))...)
		}
	}
	if len(s.Ports) > maxPorts {
		return append(errs, field.TooMany(field.NewPath("ports"), len(s.Ports), maxPorts))
	}
	return append(errs, validateSlicePorts(s.Ports, field.NewPath("ports"))...)
}

// dropTopology keeps what older versions wrote into the field that apps of this version shall not
// set: as long as the endpoints stay as they are, and the node's name beyond that.
func dropTopology(s, old *discoveryv1.EndpointSlice) {
	known := map[string]bool{}
	if old != nil {
		if equality.Semantic.DeepEqual(s.Endpoints, old.Endpoints) {
			return
		}
		for _, e := range old.Endpoints {
			if node, ok := e.DeprecatedTopology[corev1.LabelHostname]; ok {
				known[node] = true
			}
		}
	}
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		if node := e.DeprecatedTopology[corev1.LabelHostname]; e.NodeName == nil && known[node] && len(naming.IsDNS1123Subdomain(node)) == 0 {
			e.NodeName = &node
		}
		e.DeprecatedTopology = nil
	}
}

func validateHints(h *discoveryv1.EndpointHints, path *field.Path) field.ErrorList {
	const most = 8
	var errs field.ErrorList
	check := func(names []string, path *field.Path, complaints func(string) []string) {
		if len(names) > most {
			errs = append(errs, field.TooMany(path, len(names), most))
			return
		}
		var before seen
		for i, name := range names {
			if field.Enough(errs) {
				break
			}
			at := path.Index(i).Child("name")
			if repeated(&before, names[:i], name) {
				errs = append(errs, field.Duplicate(at, name))
			}
			errs = append(errs, invalid(at, name, complaints(name))...)
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
	var w warnings
	if s.AddressType == discoveryv1.AddressTypeFQDN {
		w.add(field.NewPath("addressType"), "FQDN endpoints are deprecated")
		return w
	}
	for i := range s.Endpoints {
		for j, address := range s.Endpoints[i].Addresses {
			w.address(field.NewPath("endpoints").Index(i).Child("addresses").Index(j), address)
		}
	}
	return w
}

func validateEndpointAddress(kind discoveryv1.AddressType, address string, path *field.Path) field.ErrorList {
	switch kind {
	case discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6:
		if errs := validIP(path, address); len(errs) > 0 {
			return errs
		}
		if v6 := net.ParseIP(address).To4() == nil; v6 != (kind == discoveryv1.AddressTypeIPv6) {
			return field.ErrorList{field.Invalid(path, address, "must be an "+string(kind)+" address")}
		}
		return usableIP(path, address)
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
		at, name := path.Index(i), ptr.Deref(p.Name, "")
		if name != "" {
			errs = append(errs, dnsLabel(at.Child("name"), name)...)
		}
		if names[name] {
			errs = append(errs, field.Duplicate(at.Child("name"), p.Name))
		}
		names[name] = true
		if p.Port != nil {
			errs = append(errs, portNumber(at.Child("port"), *p.Port)...)
		}
		errs = append(errs, requiredOneOf(at.Child("protocol"), ptr.Deref(p.Protocol, ""), corev1.ProtocolSCTP, corev1.ProtocolTCP, corev1.ProtocolUDP)...)
		if p.AppProtocol != nil {
			errs = append(errs, qualifiedName(at.Child("appProtocol"), *p.AppProtocol)...)
		}
	}
	return errs
}

func endpoints() *Resource {
	return &Resource{
		Version: "v1", Kind: "Endpoints", Plural: "endpoints", Namespaced: true,
		ShortNames:     []string{"ep"},
		New:            func() Object { return &corev1.Endpoints{} },
		NewList:        func() runtime.Object { return &corev1.EndpointsList{} },
		CreateOnUpdate: true,

		Default: with(func(e *corev1.Endpoints) {
			for i := range e.Subsets {
				for j := range e.Subsets[i].Ports {
					setDefault(&e.Subsets[i].Ports[j].Protocol, corev1.ProtocolTCP)
				}
			}
		}),
		Validate: checked(validateEndpoints),

		Columns: []metav1.TableColumnDefinition{nameColumn, column("Endpoints", "string", corev1.Endpoints{}.SwaggerDoc()["subsets"]), ageColumn},
		Cells: row(func(e *corev1.Endpoints) []any {
			return []any{e.Name, endpointsCell(e), age(e.CreationTimestamp)}
		}),
	}
}

func endpointsCell(e *corev1.Endpoints) string {
	if len(e.Subsets) == 0 {
		return none
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
	return firstAnd(list, len(list))
}

func validateEndpoints(e *corev1.Endpoints) field.ErrorList {
	var errs field.ErrorList
	for i := range e.Subsets {
		if field.Enough(errs) {
			break
		}
		s, at := &e.Subsets[i], field.NewPath("subsets").Index(i)
		if len(s.Addresses)+len(s.NotReadyAddresses) == 0 {
			errs = append(errs, field.Required(at, "must specify `addresses` or `notReadyAddresses`"))
		}
		for j := range s.Addresses {
			if field.Enough(errs) {
				break
			}
			errs = append(errs, validateSubsetAddress(&s.Addresses[j], at.Child("addresses").Index(j))...)
		}
		for j := range s.NotReadyAddresses {
			if field.Enough(errs) {
				break
			}
			errs = append(errs, validateSubsetAddress(&s.NotReadyAddresses[j], at.Child("notReadyAddresses").Index(j))...)
		}
		for j, p := range s.Ports {
			if field.Enough(errs) {
				break
			}
			at := at.Child("ports").Index(j)
			if p.Name == "" && len(s.Ports) > 1 {
				errs = append(errs, field.Required(at.Child("name"), ""))
			} else if p.Name != "" {
				errs = append(errs, dnsLabel(at.Child("name"), p.Name)...)
			}
			errs = append(errs, portNumber(at.Child("port"), p.Port)...)
			errs = append(errs, requiredOneOf(at.Child("protocol"), p.Protocol, corev1.ProtocolSCTP, corev1.ProtocolTCP, corev1.ProtocolUDP)...)
			if p.AppProtocol != nil {
				errs = append(errs, invalid(at.Child("appProtocol"), *p.AppProtocol, naming.IsQualifiedName(*p.AppProtocol))...)
			}
		}
	}
	return errs
}

func validateSubsetAddress(a *corev1.EndpointAddress, path *field.Path) field.ErrorList {
	errs := validIP(path.Child("ip"), a.IP)
	bad := len(errs) > 0
	if a.Hostname != "" {
		errs = append(errs, dnsLabel(path.Child("hostname"), a.Hostname)...)
	}
	if a.NodeName != nil {
		errs = append(errs, dnsSubdomain(path.Child("nodeName"), *a.NodeName)...)
	}
	if bad {
		return append(errs, field.Invalid(path.Child("ip"), a.IP, "must be a valid IP address"))
	}
	return append(errs, usableIP(path.Child("ip"), a.IP)...)
}
