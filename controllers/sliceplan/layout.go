// Package sliceplan works out which EndpointSlices to write, so that they show the endpoints that they should
// and as few as possible are written.
//
// A slice is read by every node, so churn is expensive: a slice whose endpoints did not change is not touched, and
// one endpoint's change writes one slice. Slices are not kept compact for that reason. The endpoints come from
// Services' pods (package endpointslice) or from Endpoints objects (package endpointslicemirroring).
package sliceplan

import (
	"encoding/json"
	"slices"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// Layout is all that an owner's slices should show: for each address type the endpoints, in
// groups that have the same ports. A slice's endpoints share its ports.
type Layout map[discoveryv1.AddressType]Groups

// Groups are endpoints in groups that have the same ports; empty to begin with.
type Groups map[string]*group

type group struct {
	ports     []discoveryv1.EndpointPort
	endpoints map[string]discoveryv1.Endpoint // by identity
}

// Add adds an endpoint to the group of its ports. Of two that are one and the same (same addresses, same pod)
// the later one stays.
func (g Groups) Add(ports []discoveryv1.EndpointPort, e discoveryv1.Endpoint) {
	key := portsKey(ports)
	if g[key] == nil {
		g[key] = &group{ports: ports, endpoints: map[string]discoveryv1.Endpoint{}}
	}
	g[key].endpoints[identity(&e)] = e
}

// portsKey is the same for the same ports, whatever their order.
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

// identity is what makes an endpoint another one, rather than the same in another condition.
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
