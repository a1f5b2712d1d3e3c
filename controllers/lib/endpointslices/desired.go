// Package endpointslices reconciles the EndpointSlices of an owner with the endpoints that they should show, as
// k8s.io/endpointslice does, with as few writes as possible.
//
// Desired endpoints and the existing slices go in; Changes come out: the slices to create, update and delete, which
// Changes.Finalize writes. Every node reads every slice, so churn is expensive: a slice with the same endpoints as
// before is not touched, and the change of one endpoint writes one slice. Slices are not kept compact for that reason.
// The endpoints come from Services' pods (package endpointslice) or from Endpoints objects (package
// endpointslicemirroring).
package endpointslices

import (
	"encoding/json"
	"slices"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// Desired holds all that an owner's slices should show: the endpoints of each address type, in groups that have the
// same ports. The endpoints of a slice share its ports.
type Desired map[discoveryv1.AddressType]PortGroups

// PortGroups holds endpoints by their ports; empty to begin with.
type PortGroups map[string]*portGroup

type portGroup struct {
	ports     []discoveryv1.EndpointPort
	endpoints map[string]discoveryv1.Endpoint // by identity
}

// Add adds an endpoint to the group of its ports. Of two endpoints with the same identity (addresses, pod)
// the later one stays.
func (g PortGroups) Add(ports []discoveryv1.EndpointPort, e discoveryv1.Endpoint) {
	key := portsKey(ports)
	if g[key] == nil {
		g[key] = &portGroup{ports: ports, endpoints: map[string]discoveryv1.Endpoint{}}
	}
	g[key].endpoints[identity(&e)] = e
}

// portsKey returns the same key for the same ports in any order.
func portsKey(ports []discoveryv1.EndpointPort) string {
	keys := make([]string, len(ports))
	for i := range ports {
		text, err := json.Marshal(&ports[i])
		if err != nil {
			panic(err) // API types always have a JSON form
		}
		keys[i] = string(text)
	}
	slices.Sort(keys)
	return strings.Join(keys, "")
}

// identity returns the same text for two states of one endpoint: addresses, host name, node, zone and target identify
// it, its conditions and hints do not.
func identity(e *discoveryv1.Endpoint) string {
	parts := slices.Clone(e.Addresses)
	for _, p := range []*string{e.Hostname, e.NodeName, e.Zone} {
		if p == nil {
			p = new(string)
		}
		parts = append(parts, *p)
	}
	if e.TargetRef != nil {
		parts = append(parts, e.TargetRef.Kind, e.TargetRef.Namespace, e.TargetRef.Name, string(e.TargetRef.UID))
	}
	return strings.Join(parts, "\x00")
}
