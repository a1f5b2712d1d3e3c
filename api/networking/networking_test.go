package networking_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/coxswain-dev/coxswain/api/kindtest"
)

func TestNetworking_ValidateRejects(t *testing.T) {
	t.Parallel()
	const ingress = `
metadata: {name: i, namespace: default}
spec:
  ingressClassName: nginx
  tls: [{hosts: [a.b], secretName: s}]
  rules:
  - host: a.b
    http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}
`
	kindtest.Create(t, "Ingress", ingress, []kindtest.Case{
		{"nothing", []string{ingress[strings.Index(ingress, "  rules"):], ""}, []string{"Invalid spec"}},
		{"a service that begins with a digit", []string{"name: web", "name: 1web"}, nil},
		{"service", []string{"name: web", "name: a.b"},
			[]string{"Invalid spec.rules[0].http.paths[0].backend.service.name"}},
		{"address", []string{"- host: a.b", "- host: 10.0.0.1"}, []string{"Invalid spec.rules[0].host"}},
		{"address of six", []string{"- host: a.b", "- host: 'fd00::1'"},
			[]string{"Invalid spec.rules[0].host", "Invalid spec.rules[0].host"}},
		{"wildcard", []string{"- host: a.b", "- host: '*.*.b'"}, []string{"Invalid spec.rules[0].host"}},
		{"port twice", []string{"{number: 80}", "{number: 80, name: http}"},
			[]string{"Invalid spec.rules[0].http.paths[0].backend"}},
		{"no port", []string{"port: {number: 80}", "port: {}"},
			[]string{"Required spec.rules[0].http.paths[0].backend"}},
		{"two backends", []string{"backend: {service", "backend: {resource: {kind: A, name: b}, service"},
			[]string{"Invalid spec.rules[0].http.paths[0].backend"}},
		{"resource", []string{"{service: {name: web, port: {number: 80}}}", "{resource: {apiGroup: A_b, kind: a/b}}"},
			[]string{
				"Invalid spec.rules[0].http.paths[0].backend.resource.apiGroup",
				"Invalid spec.rules[0].http.paths[0].backend.resource.kind",
				"Required spec.rules[0].http.paths[0].backend.resource.name"}},
		{"path", []string{"path: /,", "path: a//b/..,"}, []string{"Invalid spec.rules[0].http.paths[0].path",
			"Invalid spec.rules[0].http.paths[0].path", "Invalid spec.rules[0].http.paths[0].path"}},
		{"path type", []string{", pathType: Prefix", ""}, []string{"Required spec.rules[0].http.paths[0].pathType"}},
		{"class", []string{"nginx", "A_b"}, []string{"Invalid spec.ingressClassName"}},
		{"secret", []string{"secretName: s", "secretName: A_b"}, []string{"Invalid spec.tls[0].secretName"}},
	})
	const class = "metadata: {name: c}\nspec: {controller: a.b/c, parameters: {kind: K, name: n}}\n"
	kindtest.Create(t, "IngressClass", class, []kindtest.Case{
		{"controller", []string{"a.b/c", strings.Repeat("a", 251)},
			[]string{"TooLong spec.controller", "Invalid spec.controller"}},
		{"scope", []string{"kind: K", "kind: K, scope: Galaxy"}, []string{"NotSupported spec.parameters.scope"}},
		{"no namespace", []string{"kind: K", "kind: K, scope: Namespace"},
			[]string{"Required spec.parameters.namespace"}},
		{"bad namespace", []string{"kind: K", "kind: K, scope: Namespace, namespace: ''"},
			[]string{"Invalid spec.parameters.namespace"}},
		{"namespace", []string{"kind: K", "kind: K, scope: Cluster, namespace: a"},
			[]string{"Forbidden spec.parameters.namespace"}},
	})
	kindtest.Update(t, "IngressClass", class,
		[]kindtest.Case{{"controller", []string{"a.b/c", "a.b/d"}, []string{"Invalid spec.controller"}}})
	const policy = "metadata: {name: p, namespace: default}\nspec:\n  podSelector: {}\n  ingress: [{ports: " +
		"[{port: 80, endPort: 90}], from: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16]}}]}]\n"
	kindtest.Create(t, "NetworkPolicy", policy, []kindtest.Case{
		{"end before port", []string{"endPort: 90", "endPort: 0"}, []string{"Invalid spec.ingress[0].ports[0].endPort",
			"Invalid spec.ingress[0].ports[0].endPort"}},
		{"end of a name", []string{"port: 80", "port: http"}, []string{"Invalid spec.ingress[0].ports[0].endPort"}},
		{"end of nothing", []string{"port: 80, ", ""}, []string{"Invalid spec.ingress[0].ports[0].endPort"}},
		{"except", []string{"10.1.0.0/16", "10.0.0.0/8"},
			[]string{"Invalid spec.ingress[0].from[0].ipBlock.except[0]"}},
		{"peers", []string{"{ipBlock:", "{podSelector: {}, ipBlock:"}, []string{"Forbidden spec.ingress[0].from[0]"}},
		{"no peer", []string{"{ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16]}}", "{}"},
			[]string{"Required spec.ingress[0].from[0]"}},
		{"types", []string{"  podSelector", "  policyTypes: [Ingress, Both]\n  podSelector"},
			[]string{"NotSupported spec.policyTypes[1]"}},
	})
	r := kindtest.Of(t, "NetworkPolicy")
	require.Len(t, r.Warnings(kindtest.Decode(t, r, strings.Replace(policy, "10.0.0.0/8", "10.9.0.0/8", 1)), nil), 1,
		"bits after the prefix")
	const cidr = "metadata: {name: c}\nspec: {cidrs: [10.0.0.0/16]}\n"
	kindtest.Create(t, "ServiceCIDR", cidr, []kindtest.Case{
		{"none", []string{"[10.0.0.0/16]", "[]"}, []string{"Required spec.cidrs"}},
		{"many", []string{"[10.0.0.0/16]", "[10.0.0.0/16, 'fd00::/64', 10.1.0.0/16]"}, []string{"Invalid spec.cidrs"}},
		{"family", []string{"[10.0.0.0/16]", "[10.0.0.0/16, 10.1.0.0/16]"}, []string{"Invalid spec.cidrs"}},
		{"form", []string{"10.0.0.0/16", "10.0.0.1/16"}, []string{"Invalid spec.cidrs[0]"}},
	})
	kindtest.Update(t, "ServiceCIDR", cidr, []kindtest.Case{
		{"second family", []string{"[10.0.0.0/16]", "[10.0.0.0/16, 'fd00::/64']"}, nil},
		{"other", []string{"10.0.0.0/16", "10.1.0.0/16"}, []string{"Invalid spec.cidrs[0]"}},
		{"fewer", []string{"[10.0.0.0/16]", "[]"}, []string{"Invalid spec.cidrs"}},
	})
	kindtest.Create(t, "IPAddress",
		"metadata: {name: 10.0.0.1}\nspec: {parentRef: {resource: services, namespace: a, name: b}}\n", []kindtest.Case{
			{"no parent", []string{"{parentRef: {resource: services, namespace: a, name: b}}", "{}"},
				[]string{"Required spec.parentRef"}},
			{"parent", []string{"resource: services, namespace: a, name: b", "group: A_b, resource: a/b"},
				[]string{"Invalid spec.parentRef.group", "Invalid spec.parentRef.resource",
					"Required spec.parentRef.name"}},
		})
	require.NotEmpty(t, kindtest.Of(t, "IPAddress").ValidateName("010.0.0.1", false))
	i := &networkingv1.Ingress{}
	i.Annotations = map[string]string{"kubernetes.io/ingress.class": "x"}
	require.Equal(t,
		[]string{`annotation "kubernetes.io/ingress.class" is deprecated, please use 'spec.ingressClassName' instead`},
		kindtest.Of(t, "Ingress").Warnings(i, nil))
	i.Spec.Rules = []networkingv1.IngressRule{{Host: "a"}, {Host: "b"}, {Host: "c"}, {}}
	require.Equal(t, "a,b,c + 1 more...", kindtest.Of(t, "Ingress").Cells(i)[2])
}

func TestIngress_ValidateRejects(t *testing.T) {
	t.Parallel()
	kindtest.Create(t, "Ingress", "spec: {rules: [{host: a.b, http: {paths: [{path: /x, pathType: Prefix, backend: "+
		"{service: {name: s, port: {number: 80}}}}]}}]}", []kindtest.Case{
		{"host", []string{"host: a.b", "host: 1.2.3.4"}, []string{"Invalid spec.rules[0].host"}},
		{"path", []string{"path: /x", "path: x"}, []string{"Invalid spec.rules[0].http.paths[0].path"}},
		{"no path type", []string{"pathType: Prefix, ", ""}, []string{"Required spec.rules[0].http.paths[0].pathType"}},
		{"no port", []string{"number: 80", "number: 0"}, []string{"Required spec.rules[0].http.paths[0].backend"}},
	})
}

func TestNetworkPolicy_ValidateRejects(t *testing.T) {
	t.Parallel()
	kindtest.Create(t, "NetworkPolicy",
		"spec: {podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8, except: "+
			"[10.1.0.0/16]}}], ports: [{port: 80}]}]}", []kindtest.Case{
			{"except", []string{"10.1.0.0/16", "11.0.0.0/16"},
				[]string{"Invalid spec.ingress[0].from[0].ipBlock.except[0]"}},
			{"empty peer", []string{"{ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16]}}", "{}"},
				[]string{"Required spec.ingress[0].from[0]"}},
			{"end port", []string{"port: 80", "port: 80, endPort: 79"},
				[]string{"Invalid spec.ingress[0].ports[0].endPort"}},
		})
}
