package api_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	certificatesv1 "k8s.io/api/certificates/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

func TestAutoscaler_ValidateRefuses(t *testing.T) {
	t.Parallel()
	const hpa = `
metadata: {name: h, namespace: default}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  minReplicas: 1
  maxReplicas: 3
  metrics:
  - {type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 50}}}
`
	const kind = "autoscaling/v2 HorizontalPodAutoscaler"
	metric := func(text string) []string {
		return []string{"{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 50}}}", text}
	}
	tryCreate(t, kind, hpa, []refused{
		{"bounds", []string{"maxReplicas: 3", "maxReplicas: 0"}, []string{"Invalid spec.maxReplicas", "Invalid spec.maxReplicas"}},
		{"below nothing", []string{"minReplicas: 1", "minReplicas: -1"}, []string{"Invalid spec.minReplicas"}},
		{"to zero by cpu", []string{"minReplicas: 1", "minReplicas: 0"}, []string{"Forbidden spec.metrics"}},
		{"reference", []string{"kind: Deployment, name: web", "kind: a/b"}, []string{"Invalid spec.scaleTargetRef.kind", "Required spec.scaleTargetRef.name"}},
		{"no type", metric("{resource: {name: cpu, target: {type: Utilization, averageUtilization: 50}}}"), []string{"Required spec.metrics[0].type"}},
		{"no target type", metric("{type: Resource, resource: {name: cpu, target: {averageUtilization: 50}}}"),
			[]string{"Required spec.metrics[0].resource.target.type", "Invalid spec.metrics[0].resource.target.type"}},
		{"other source", metric("{type: Resource, pods: {metric: {name: m}, target: {type: AverageValue, averageValue: 1}}}"), []string{"Required spec.metrics[0].resource"}},
		{"two sources", metric("{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 50}}, pods: {metric: {name: m}, target: {type: AverageValue, averageValue: 1}}}"), []string{"Forbidden spec.metrics[0].pods"}},
		{"both values", metric("{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 50, averageValue: 1}}}"), []string{"Forbidden spec.metrics[0].resource.target.averageValue"}},
		{"an object's both values", metric("{type: Object, object: {describedObject: {kind: A, name: b}, metric: {name: m}, target: {type: Value, value: 1, averageValue: 1}}}"), nil},
		{"an external's both values", metric("{type: External, external: {metric: {name: m}, target: {type: Value, value: 1, averageValue: 1}}}"), []string{"Forbidden spec.metrics[0].external.target.value"}},
		{"nothing to reach", metric("{type: Pods, pods: {metric: {}, target: {type: AverageValue, value: -1}}}"),
			[]string{"Required spec.metrics[0].pods.metric.name", "Invalid spec.metrics[0].pods.target.value", "Required spec.metrics[0].pods.target.averageValue"}},
		{"container", metric("{type: ContainerResource, containerResource: {name: mem, container: A_b, target: {type: Utilization, averageUtilization: 0}}}"),
			[]string{"Invalid spec.metrics[0].containerResource.name", "Invalid spec.metrics[0].containerResource.name", "Invalid spec.metrics[0].containerResource.container", "Invalid spec.metrics[0].containerResource.target.averageUtilization"}},
		{"behavior", []string{"  metrics:", "  behavior: {scaleUp: {stabilizationWindowSeconds: 3601, selectPolicy: Best, policies: [{type: Some, value: 0, periodSeconds: 1801}]}}\n  metrics:"}, []string{
			"Invalid spec.behavior.scaleUp.stabilizationWindowSeconds", "NotSupported spec.behavior.scaleUp.selectPolicy",
			"NotSupported spec.behavior.scaleUp.policies[0].type", "Invalid spec.behavior.scaleUp.policies[0].value", "Invalid spec.behavior.scaleUp.policies[0].periodSeconds"}},
	})
}

func TestNetworking_ValidateRefuses(t *testing.T) {
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
	tryCreate(t, "Ingress", ingress, []refused{
		{"nothing", []string{ingress[strings.Index(ingress, "  rules"):], ""}, []string{"Invalid spec"}},
		{"a service that begins with a digit", []string{"name: web", "name: 1web"}, nil},
		{"service", []string{"name: web", "name: a.b"}, []string{"Invalid spec.rules[0].http.paths[0].backend.service.name"}},
		{"address", []string{"- host: a.b", "- host: 10.0.0.1"}, []string{"Invalid spec.rules[0].host"}},
		{"address of six", []string{"- host: a.b", "- host: 'fd00::1'"}, []string{"Invalid spec.rules[0].host", "Invalid spec.rules[0].host"}},
		{"wildcard", []string{"- host: a.b", "- host: '*.*.b'"}, []string{"Invalid spec.rules[0].host"}},
		{"port twice", []string{"{number: 80}", "{number: 80, name: http}"}, []string{"Invalid spec.rules[0].http.paths[0].backend"}},
		{"no port", []string{"port: {number: 80}", "port: {}"}, []string{"Required spec.rules[0].http.paths[0].backend"}},
		{"two backends", []string{"backend: {service", "backend: {resource: {kind: A, name: b}, service"}, []string{"Invalid spec.rules[0].http.paths[0].backend"}},
		{"resource", []string{"{service: {name: web, port: {number: 80}}}", "{resource: {apiGroup: A_b, kind: a/b}}"}, []string{
			"Invalid spec.rules[0].http.paths[0].backend.resource.apiGroup", "Invalid spec.rules[0].http.paths[0].backend.resource.kind", "Required spec.rules[0].http.paths[0].backend.resource.name"}},
		{"path", []string{"path: /,", "path: a//b/..,"}, []string{"Invalid spec.rules[0].http.paths[0].path", "Invalid spec.rules[0].http.paths[0].path", "Invalid spec.rules[0].http.paths[0].path"}},
		{"path type", []string{", pathType: Prefix", ""}, []string{"Required spec.rules[0].http.paths[0].pathType"}},
		{"class", []string{"nginx", "A_b"}, []string{"Invalid spec.ingressClassName"}},
		{"secret", []string{"secretName: s", "secretName: A_b"}, []string{"Invalid spec.tls[0].secretName"}},
	})
	const class = "metadata: {name: c}\nspec: {controller: a.b/c, parameters: {kind: K, name: n}}\n"
	tryCreate(t, "IngressClass", class, []refused{
		{"controller", []string{"a.b/c", strings.Repeat("a", 251)}, []string{"TooLong spec.controller", "Invalid spec.controller"}},
		{"scope", []string{"kind: K", "kind: K, scope: Galaxy"}, []string{"NotSupported spec.parameters.scope"}},
		{"no namespace", []string{"kind: K", "kind: K, scope: Namespace"}, []string{"Required spec.parameters.namespace"}},
		{"bad namespace", []string{"kind: K", "kind: K, scope: Namespace, namespace: ''"}, []string{"Invalid spec.parameters.namespace"}},
		{"namespace", []string{"kind: K", "kind: K, scope: Cluster, namespace: a"}, []string{"Forbidden spec.parameters.namespace"}},
	})
	tryUpdate(t, "IngressClass", class, []refused{{"controller", []string{"a.b/c", "a.b/d"}, []string{"Invalid spec.controller"}}})
	const policy = "metadata: {name: p, namespace: default}\nspec:\n  podSelector: {}\n  ingress: [{ports: [{port: 80, endPort: 90}], from: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16]}}]}]\n"
	tryCreate(t, "NetworkPolicy", policy, []refused{
		{"end before port", []string{"endPort: 90", "endPort: 0"}, []string{"Invalid spec.ingress[0].ports[0].endPort", "Invalid spec.ingress[0].ports[0].endPort"}},
		{"end of a name", []string{"port: 80", "port: http"}, []string{"Invalid spec.ingress[0].ports[0].endPort"}},
		{"end of nothing", []string{"port: 80, ", ""}, []string{"Invalid spec.ingress[0].ports[0].endPort"}},
		{"except", []string{"10.1.0.0/16", "10.0.0.0/8"}, []string{"Invalid spec.ingress[0].from[0].ipBlock.except[0]"}},
		{"peers", []string{"{ipBlock:", "{podSelector: {}, ipBlock:"}, []string{"Forbidden spec.ingress[0].from[0]"}},
		{"no peer", []string{"{ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16]}}", "{}"}, []string{"Required spec.ingress[0].from[0]"}},
		{"types", []string{"  podSelector", "  policyTypes: [Ingress, Both]\n  podSelector"}, []string{"NotSupported spec.policyTypes[1]"}},
	})
	r := kindOf(t, "NetworkPolicy")
	require.Len(t, r.Warnings(decode(t, r, strings.Replace(policy, "10.0.0.0/8", "10.9.0.0/8", 1)), nil), 1, "bits after the prefix")
	const cidr = "metadata: {name: c}\nspec: {cidrs: [10.0.0.0/16]}\n"
	tryCreate(t, "ServiceCIDR", cidr, []refused{
		{"none", []string{"[10.0.0.0/16]", "[]"}, []string{"Required spec.cidrs"}},
		{"many", []string{"[10.0.0.0/16]", "[10.0.0.0/16, 'fd00::/64', 10.1.0.0/16]"}, []string{"Invalid spec.cidrs"}},
		{"family", []string{"[10.0.0.0/16]", "[10.0.0.0/16, 10.1.0.0/16]"}, []string{"Invalid spec.cidrs"}},
		{"form", []string{"10.0.0.0/16", "10.0.0.1/16"}, []string{"Invalid spec.cidrs[0]"}},
	})
	tryUpdate(t, "ServiceCIDR", cidr, []refused{
		{"second family", []string{"[10.0.0.0/16]", "[10.0.0.0/16, 'fd00::/64']"}, nil},
		{"other", []string{"10.0.0.0/16", "10.1.0.0/16"}, []string{"Invalid spec.cidrs[0]"}},
		{"fewer", []string{"[10.0.0.0/16]", "[]"}, []string{"Invalid spec.cidrs"}},
	})
	tryCreate(t, "IPAddress", "metadata: {name: 10.0.0.1}\nspec: {parentRef: {resource: services, namespace: a, name: b}}\n", []refused{
		{"no parent", []string{"{parentRef: {resource: services, namespace: a, name: b}}", "{}"}, []string{"Required spec.parentRef"}},
		{"parent", []string{"resource: services, namespace: a, name: b", "group: A_b, resource: a/b"}, []string{"Invalid spec.parentRef.group", "Invalid spec.parentRef.resource", "Required spec.parentRef.name"}},
	})
	require.NotEmpty(t, kindOf(t, "IPAddress").ValidateName("010.0.0.1", false))
	i := &networkingv1.Ingress{}
	i.Annotations = map[string]string{"kubernetes.io/ingress.class": "x"}
	require.Equal(t, []string{`annotation "kubernetes.io/ingress.class" is deprecated, please use 'spec.ingressClassName' instead`}, kindOf(t, "Ingress").Warnings(i, nil))
	i.Spec.Rules = []networkingv1.IngressRule{{Host: "a"}, {Host: "b"}, {Host: "c"}, {}}
	require.Equal(t, "a,b,c + 1 more...", kindOf(t, "Ingress").Cells(i)[2])
}

func TestEndpointSlice_ForgetsOldTopology(t *testing.T) {
	t.Parallel()
	r := kindOf(t, "EndpointSlice")
	old := decode(t, r, "addressType: IPv4\nendpoints: [{addresses: [10.0.0.1], deprecatedTopology: {kubernetes.io/hostname: node-1}}]").(*discoveryv1.EndpointSlice)
	same, other := old.DeepCopy(), old.DeepCopy()
	r.PrepareUpdate(same, old)
	require.Equal(t, old.Endpoints, same.Endpoints)
	other.Endpoints[0].Addresses = []string{"10.0.0.2"}
	r.PrepareUpdate(other, old)
	require.Nil(t, other.Endpoints[0].DeprecatedTopology)
	require.Equal(t, "node-1", *other.Endpoints[0].NodeName)
	r.PrepareCreate(old)
	require.Nil(t, old.Endpoints[0].DeprecatedTopology)

	tryCreate(t, "EndpointSlice", "metadata: {name: s}\naddressType: IPv4\nendpoints: [{addresses: [10.0.0.1]}]\nports: [{name: http, port: 80}]\n", []refused{
		{"hints", []string{"[10.0.0.1]}", "[10.0.0.1], hints: {forZones: [{name: a}, {name: a}, {name: a b}]}}"}, []string{"Duplicate endpoints[0].hints.forZones[1].name", "Invalid endpoints[0].hints.forZones[2].name"}},
		{"type", []string{"IPv4", "IP"}, []string{"NotSupported addressType"}},
		{"no address", []string{"[10.0.0.1]}", "[]}"}, []string{"Required endpoints[0].addresses"}},
		{"loopback", []string{"10.0.0.1", "127.0.0.1"}, []string{"Invalid endpoints[0].addresses[0]"}},
		{"port twice", []string{"{name: http, port: 80}", "{name: http, port: 80}, {name: http, port: 81}"}, []string{"Duplicate ports[1].name"}},
	})
	s := decode(t, r, "metadata: {name: s}\naddressType: FQDN\nports: [{name: http}]").(*discoveryv1.EndpointSlice)
	require.Equal(t, []string{"addressType: FQDN endpoints are deprecated"}, r.Warnings(s, nil))
	require.Equal(t, "http", r.Cells(s)[2])
}

func TestStorage_ValidateRefuses(t *testing.T) {
	t.Parallel()
	const class = "metadata: {name: c}\nprovisioner: a.b/C\nallowedTopologies: [{matchLabelExpressions: [{key: zone, values: [a]}]}]\n"
	tryCreate(t, "StorageClass", class, []refused{
		{"provisioner", []string{"a.b/C", "a b"}, []string{"Invalid provisioner"}},
		{"no provisioner", []string{"a.b/C", "''"}, []string{"Required provisioner"}},
		{"policy", []string{"provisioner", "reclaimPolicy: Recycle\nvolumeBindingMode: Later\nprovisioner"}, []string{"NotSupported reclaimPolicy", "NotSupported volumeBindingMode"}},
		{"topology", []string{"{key: zone, values: [a]}", "{key: zone, values: [a, a]}, {key: zone}"},
			[]string{"Duplicate allowedTopologies[0].matchLabelExpressions[0].values[1]", "Required allowedTopologies[0].matchLabelExpressions[1].values", "Duplicate allowedTopologies[0].matchLabelExpressions[1].key"}},
		{"topology twice", []string{"[a]}]}]", "[a]}]}, {matchLabelExpressions: [{key: zone, values: [a]}]}]"}, []string{"Duplicate allowedTopologies[1].matchLabelExpressions"}},
	})
	tryUpdate(t, "StorageClass", class, []refused{{"all", []string{"a.b/C", "a.b/d\nparameters: {a: b}\nvolumeBindingMode: WaitForFirstConsumer"}, []string{"Forbidden parameters", "Forbidden provisioner", "Invalid volumeBindingMode"}}})
	tryCreate(t, "CSIDriver", "metadata: {name: d}\nspec: {tokenRequests: [{audience: a}]}\n", []refused{
		{"tokens", []string{"{audience: a}", "{audience: a, expirationSeconds: 1}, {audience: a}"}, []string{"Invalid spec.tokenRequests[0].expirationSeconds", "Duplicate spec.tokenRequests[1].audience"}},
		{"period", []string{"{token", "{nodeAllocatableUpdatePeriodSeconds: 9, token"}, []string{"Invalid spec.nodeAllocatableUpdatePeriodSeconds"}},
		{"modes", []string{"{token", "{volumeLifecycleModes: [Forever], fsGroupPolicy: Some, token"}, []string{"NotSupported spec.volumeLifecycleModes", "NotSupported spec.fsGroupPolicy"}},
	})
	const node = "metadata: {name: n}\nspec: {drivers: [{name: a.b, nodeID: n, topologyKeys: [zone]}]}\n"
	tryCreate(t, "CSINode", node, []refused{
		{"driver", []string{"name: a.b, nodeID: n", "name: A_b, allocatable: {count: -1}"}, []string{"Invalid spec.drivers[0].name", "Required spec.drivers[0].nodeID", "Invalid spec.drivers[0].allocatable.count"}},
		{"keys", []string{"[zone]", "[zone, zone]"}, []string{"Duplicate spec.drivers[0]"}},
	})
	tryUpdate(t, "CSINode", node, []refused{
		{"id", []string{"nodeID: n", "nodeID: m"}, []string{"Invalid spec.drivers"}},
		{"count", []string{"nodeID: n", "nodeID: n, allocatable: {count: 3}"}, nil},
	})
	const attachment = "metadata: {name: a}\nspec: {attacher: a.b, nodeName: n, source: {persistentVolumeName: pv}}\n"
	tryCreate(t, "VolumeAttachment", attachment, []refused{
		{"no source", []string{"{persistentVolumeName: pv}", "{}"}, []string{"Required spec.source"}},
		{"no name", []string{"persistentVolumeName: pv", "persistentVolumeName: ''"}, []string{"Required spec.source.persistentVolumeName"}},
		{"node", []string{"nodeName: n", "nodeName: A_b"}, []string{"Invalid spec.nodeName"}},
	})
	tryUpdate(t, "VolumeAttachment", attachment, []refused{{"node", []string{"nodeName: n", "nodeName: m"}, []string{"Invalid spec"}}})
	const attributes = "metadata: {name: v}\ndriverName: a.b\nparameters: {a: b}\n"
	tryCreate(t, "VolumeAttributesClass", attributes, []refused{{"no parameters", []string{"{a: b}", "{}"}, []string{"Required parameters"}}})
	tryUpdate(t, "VolumeAttributesClass", attributes, []refused{{"both", []string{"a.b", "a.c", "{a: b}", "{a: c}"}, []string{"Forbidden driverName", "Forbidden parameters"}}})
}

func TestSigningRequest_ValidateRefuses(t *testing.T) {
	t.Parallel()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "a"}}, key)
	require.NoError(t, err)
	request := base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
	csr := "metadata: {name: c}\nspec: {signerName: example.com/signer, usages: [client auth], request: " + request + "}\n"
	tryCreate(t, "CertificateSigningRequest", csr, []refused{
		{"request", []string{request, "AAAA"}, []string{"Invalid spec.request"}},
		{"usages", []string{"[client auth]", "[client auth, client auth, flying]"}, []string{"Duplicate spec.usages[1]", "NotSupported spec.usages[2]"}},
		{"no usages", []string{"[client auth]", "[]"}, []string{"Required spec.usages"}},
		{"short", []string{"{signerName", "{expirationSeconds: 599, signerName"}, []string{"Invalid spec.expirationSeconds"}},
		{"no signer", []string{"signerName: example.com/signer, ", ""}, []string{"Required spec.signerName"}},
		{"signer without a path", []string{"example.com/signer", "example.com"}, []string{"Invalid spec.signerName"}},
		{"signer of one label", []string{"example.com/signer", "example/signer"}, []string{"Invalid spec.signerName"}},
		{"signer's labels", []string{"example.com/signer", "Example.com/A_b"}, []string{"Invalid spec.signerName", "Invalid spec.signerName"}},
		{"legacy", []string{"example.com/signer", "kubernetes.io/legacy-unknown"}, []string{"Invalid spec.signerName"}},
	})
	tryUpdate(t, "CertificateSigningRequest", csr, []refused{{"signer", []string{"example.com/signer", "example.com/other"}, []string{"Invalid spec"}}})

	r := kindOf(t, "CertificateSigningRequest")
	issued := decode(t, r, csr+"status: {certificate: AAAA, conditions: [{type: Approved, status: 'True'}, {type: Failed, status: 'True'}]}").(*certificatesv1.CertificateSigningRequest)
	require.Equal(t, "Approved,Failed,Issued", r.Cells(issued)[5])
	changed := issued.DeepCopy()
	changed.Status.Certificate = []byte("other")
	changed.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: "Approved", Status: "False"}, {Type: "Approved", Status: "True"}, {}}
	require.ElementsMatch(t, []string{"NotSupported status.conditions[0].status", "Duplicate status.conditions[1].type", "Required status.conditions[2].type", "Required status.conditions[2].status",
		"Forbidden status.certificate", "Forbidden status.conditions", "Forbidden status.conditions"}, refusals(r.Status.Validate(changed, issued)))
}
