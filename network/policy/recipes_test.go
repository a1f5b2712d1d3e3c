package policy

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"
)

// recipePods are the pods of the recipes: namespace, labels and address. Each has the TCP ports redis (6379) and http
// (80).
var recipePods = map[string]struct {
	namespace, labels, address string
}{
	"db":       {"default", "role=db", "10.244.0.1"},
	"front":    {"default", "role=frontend", "10.244.0.2"},
	"plain":    {"default", "", "10.244.0.3"},
	"client":   {"mine", "role=client", "10.244.0.4"},
	"stranger": {"mine", "role=stranger", "10.244.0.5"},
	"far":      {"far", "role=client", "10.244.0.6"},
}

// recipeNamespaces are the namespaces of the recipes, with the label project.
var recipeNamespaces = map[string]string{"default": "", "mine": "myproject", "far": "theirs"}

const (
	dbSpec  = `podSelector: {matchLabels: {role: db}}`
	allSpec = `podSelector: {}`
)

// recipes are examples of https://kubernetes.io/docs/concepts/services-networking/network-policies/, and other common
// ones. All policies are in the namespace default. Flows are SOURCE DESTINATION PORT, of TCP unless the port says
// otherwise; sources and destinations are pods or addresses.
var recipes = []struct {
	name     string
	policies []string
	allowed  []string
	denied   []string
}{
	{"no policy", nil, []string{"far db 6379", "db 8.8.8.8 443", "8.8.8.8 db 1/UDP"}, nil},
	{"the documentation's first example", []string{dbSpec + `, policyTypes: [Ingress, Egress],
		ingress: [{from: [{ipBlock: {cidr: 172.17.0.0/16, except: [172.17.1.0/24]}},
			{namespaceSelector: {matchLabels: {project: myproject}}}, {podSelector: {matchLabels: {role: frontend}}}],
			ports: [{protocol: TCP, port: 6379}]}],
		egress: [{to: [{ipBlock: {cidr: 10.0.0.0/24}}], ports: [{protocol: TCP, port: 5978}]}]`},
		[]string{"172.17.0.5 db 6379", "172.17.2.5 db 6379", "client db 6379", "stranger db 6379", "front db 6379",
			"db 10.0.0.7 5978", "front plain 1", "plain 8.8.8.8 443"},
		[]string{"172.17.1.5 db 6379", "172.18.0.1 db 6379", "plain db 6379", "far db 6379", "front db 80",
			"front db 6379/UDP", "db 10.0.0.7 5979", "db 10.0.1.7 5978", "db front 5978"}},
	{"deny all ingress", []string{allSpec + `, policyTypes: [Ingress]`},
		[]string{"db 8.8.8.8 443", "db client 80", "db far 1/UDP"}, []string{"front db 80", "client db 80", "db front 80"}},
	{"deny all egress", []string{allSpec + `, policyTypes: [Egress]`},
		[]string{"client db 80", "8.8.8.8 db 80"}, []string{"db 8.8.8.8 443", "db client 80", "front db 53/UDP"}},
	{"deny all", []string{allSpec + `, policyTypes: [Ingress, Egress]`},
		[]string{"client stranger 80"}, []string{"client db 80", "db client 80", "front db 80", "db 8.8.8.8 443"}},
	{"allow all ingress, whatever others deny", []string{allSpec + `, policyTypes: [Ingress]`, allSpec + `, ingress: [{}]`},
		[]string{"far db 1", "8.8.8.8 front 443/UDP"}, nil},
	{"allow all egress, whatever others deny",
		[]string{allSpec + `, policyTypes: [Egress]`, allSpec + `, policyTypes: [Egress], egress: [{}]`},
		[]string{"db far 1", "front 8.8.8.8 443/UDP"}, nil},
	{"a range of ports", []string{dbSpec + `, policyTypes: [Egress],
		egress: [{to: [{ipBlock: {cidr: 10.0.0.0/24}}], ports: [{protocol: TCP, port: 32000, endPort: 32768}]}]`},
		[]string{"db 10.0.0.1 32000", "db 10.0.0.1 32500", "db 10.0.0.1 32768", "front db 1"},
		[]string{"db 10.0.0.1 31999", "db 10.0.0.1 32769", "db 10.0.0.1 32500/UDP", "db 10.0.1.1 32000"}},
	{"several namespaces by an expression", []string{dbSpec + `, policyTypes: [Egress], egress: [{to: [
		{namespaceSelector: {matchExpressions: [{key: project, operator: In, values: [myproject, another]}]}}]}]`},
		[]string{"db client 80", "db stranger 1/UDP"}, []string{"db far 80", "db front 80", "db 8.8.8.8 443"}},
	{"a namespace by its name", []string{dbSpec + `,
		ingress: [{from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: far}}}]}]`},
		[]string{"far db 1"}, []string{"client db 1", "front db 1", "8.8.8.8 db 1"}},
	{"a namespace and a pod in one peer: both", []string{dbSpec + `, ingress: [{from: [
		{namespaceSelector: {matchLabels: {project: myproject}}, podSelector: {matchLabels: {role: client}}}]}]`},
		[]string{"client db 1"}, []string{"stranger db 1", "far db 1", "front db 1"}},
	{"a namespace and a pod in two peers: either, the pod of the policy's namespace", []string{dbSpec + `, ingress: [{from: [
		{namespaceSelector: {matchLabels: {project: myproject}}}, {podSelector: {matchLabels: {role: frontend}}}]}]`},
		[]string{"client db 1", "stranger db 1", "front db 1"}, []string{"far db 1", "plain db 1"}},
	{"pods of all namespaces", []string{dbSpec + `,
		ingress: [{from: [{namespaceSelector: {}, podSelector: {matchLabels: {role: client}}}]}]`},
		[]string{"client db 1", "far db 1"}, []string{"stranger db 1", "8.8.8.8 db 1"}},
	{"all pods, but nothing else", []string{dbSpec + `, ingress: [{from: [{namespaceSelector: {}}]}]`},
		[]string{"client db 1", "far db 1", "plain db 1"}, []string{"8.8.8.8 db 1"}},
	{"the own namespace only", []string{allSpec + `, ingress: [{from: [{podSelector: {}}]}]`},
		[]string{"front db 1", "db plain 1/UDP"}, []string{"client db 1", "8.8.8.8 db 1"}},
	{"an empty list of peers: everybody", []string{dbSpec + `, ingress: [{from: [], ports: [{port: 80}]}]`},
		[]string{"8.8.8.8 db 80", "far db 80"}, []string{"far db 81"}},
	{"a named port", []string{dbSpec + `, ingress: [{ports: [{port: redis}]}]`},
		[]string{"far db 6379"}, []string{"far db 80", "far db 6379/UDP"}},
	{"a named port, which none has", []string{dbSpec + `, ingress: [{ports: [{port: nothing}]}]`},
		nil, []string{"far db 6379", "far db 80"}},
	{"a named port of the destination", []string{allSpec + `, policyTypes: [Egress], egress: [{ports: [{port: http}]}]`},
		[]string{"db client 80"}, []string{"db client 6379", "db 8.8.8.8 80"}},
	{"DNS only", []string{allSpec + `, policyTypes: [Egress],
		egress: [{ports: [{port: 53, protocol: UDP}, {port: 53, protocol: TCP}]}]`},
		[]string{"db 10.96.0.10 53", "front far 53/UDP"}, []string{"db far 80", "front 8.8.8.8 443"}},
	{"the internet, but no private addresses", []string{dbSpec + `, policyTypes: [Egress], egress: [{to: [{ipBlock:
		{cidr: 0.0.0.0/0, except: [10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16]}}]}]`},
		[]string{"db 8.8.8.8 443"}, []string{"db 10.0.0.1 443", "db front 80", "db 172.31.0.1 1", "db 192.168.1.1 80"}},
	{"policies add up", []string{dbSpec + `, ingress: [{from: [{podSelector: {matchLabels: {role: frontend}}}]}]`,
		dbSpec + `, ingress: [{ports: [{port: 80}]}]`},
		[]string{"front db 6379", "far db 80"}, []string{"far db 6379", "plain db 81"}},
	{"both ends have to allow", []string{dbSpec + `, ingress: [{from: [{podSelector: {}}]}]`,
		`podSelector: {matchLabels: {role: frontend}}, policyTypes: [Egress], egress: [{to: [{podSelector: {}}], ports: [{port: 80}]}]`},
		[]string{"front db 80", "plain db 81"}, []string{"front db 81", "client db 80"}},
}

// policies parses policies; the default namespace is "default".
func policies(tb testing.TB, documents ...string) (all []*networkingv1.NetworkPolicy) {
	tb.Helper()
	for i, d := range documents {
		p := &networkingv1.NetworkPolicy{}
		require.NoError(tb, yaml.UnmarshalStrict([]byte(d), p))
		if p.Namespace == "" {
			p.Namespace = "default"
		}
		if p.Name == "" {
			p.Name = fmt.Sprint("policy", i)
		}
		all = append(all, p)
	}
	return all
}

func recipeCluster(t *testing.T, policySpecs []string) *Cluster {
	t.Helper()
	c := &Cluster{Nodes: []string{"here"}}
	for name, project := range recipeNamespaces {
		c.Namespaces = append(c.Namespaces, Namespace{name,
			map[string]string{"kubernetes.io/metadata.name": name, "project": project}})
	}
	for name, p := range recipePods {
		pod := Pod{NamespacedName: types.NamespacedName{Namespace: p.namespace, Name: name}, Node: "here",
			Addresses: []netip.Addr{netip.MustParseAddr(p.address)}, Labels: map[string]string{},
			Ports: []NamedPort{{"redis", "TCP", 6379}, {"http", "TCP", 80}}}
		if key, value, ok := strings.Cut(p.labels, "="); ok {
			pod.Labels[key] = value
		}
		c.Pods = append(c.Pods, pod)
	}
	var documents []string
	for _, spec := range policySpecs {
		documents = append(documents, "{spec: {"+spec+"}}")
	}
	c.Policies = policies(t, documents...)
	return c
}

func recipeFlow(t *testing.T, text string) Flow {
	t.Helper()
	address := func(name string) netip.Addr {
		if p, ok := recipePods[name]; ok {
			name = p.address
		}
		return netip.MustParseAddr(name)
	}
	var from, to, port string
	_, err := fmt.Sscan(text, &from, &to, &port)
	require.NoError(t, err, text)
	f := Flow{Source: address(from), Destination: address(to), Protocol: corev1.ProtocolTCP}
	number, protocol, other := strings.Cut(port, "/")
	if other {
		f.Protocol = corev1.Protocol(protocol)
	}
	_, err = fmt.Sscan(number, &f.Port)
	require.NoError(t, err, text)
	return f
}

func TestRecipes(t *testing.T) {
	t.Parallel()
	for _, r := range recipes {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			c := recipeCluster(t, r.policies)
			rules := Compile(c)
			check := func(flows []string, allowed bool) {
				for _, text := range flows {
					f := recipeFlow(t, text)
					require.Equal(t, allowed, rules.allows(f), "%s, by the rules", text)
					require.Equal(t, allowed, Allowed(c, f), "%s, by the documentation's words", text)
				}
			}
			check(r.allowed, true)
			check(r.denied, false)
		})
	}
}
