package resource_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/kindtest"
)

// repeated returns a YAML list of n texts with a number in each.
func repeated(n int, format string) string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf(format, i)
	}
	return "[" + strings.Join(list, ", ") + "]"
}

func TestDeviceClass_ValidateRejects(t *testing.T) {
	t.Parallel()
	const class = `
metadata: {name: c}
spec:
  selectors: [{cel: {expression: device.driver == "a"}}]
  config: [{opaque: {driver: a.b, parameters: {a: b}}}]
  extendedResourceName: example.com/gpu
`
	const expression = `device.driver == "a"`
	kindtest.Create(t, "DeviceClass", class, []kindtest.Case{
		{"no CEL", []string{"{cel: {expression: " + expression + "}}", "{}"},
			[]string{"Required spec.selectors[0].cel"}},
		{"no CEL at all", []string{expression, "'device.driver =='"},
			[]string{"Invalid spec.selectors[0].cel.expression"}},
		{"no such field", []string{expression, "device.name == ''"},
			[]string{"Invalid spec.selectors[0].cel.expression"}},
		{"no bool", []string{expression, "device.driver"}, []string{"Invalid spec.selectors[0].cel.expression"}},
		{"nothing said", []string{expression, "' '"}, []string{"Invalid spec.selectors[0].cel.expression"}},
		{"long", []string{expression, strings.Repeat("a", 10<<10+1)},
			[]string{"TooLong spec.selectors[0].cel.expression"}},
		{"many", []string{"[{cel: {expression: " + expression + "}}]", repeated(33, "{cel: {expression: a%d}}")},
			[]string{"TooMany spec.selectors"}},
		{"no driver", []string{"driver: a.b, ", ""}, []string{"Required spec.config[0].opaque.driver",
			"Invalid spec.config[0].opaque.driver"}},
		{"no parameters", []string{", parameters: {a: b}", ""}, []string{"Required spec.config[0].opaque.parameters"}},
		{"null", []string{"parameters: {a: b}", "parameters: null"},
			[]string{"Required spec.config[0].opaque.parameters"}},
		{"a list", []string{"parameters: {a: b}", "parameters: [a]"},
			[]string{"Invalid spec.config[0].opaque.parameters"}},
		{"long parameters", []string{"{a: b}", "{a: " + strings.Repeat("b", 10<<10) + "}"},
			[]string{"TooLong spec.config[0].opaque.parameters"}},
		{"not opaque", []string{"{opaque: {driver: a.b, parameters: {a: b}}}", "{}"},
			[]string{"Required spec.config[0].opaque"}},
		{"many configurations", []string{"[{opaque: {driver: a.b, parameters: {a: b}}}]",
			repeated(33, "{opaque: {driver: a.b%d, parameters: {}}}")}, []string{"TooMany spec.config"}},
		{"resource of ours", []string{"example.com/gpu", "node.kubernetes.io/gpu"},
			[]string{"Invalid spec.extendedResourceName"}},
		{"resource of nobody", []string{"example.com/gpu", "gpu"}, []string{"Invalid spec.extendedResourceName"}},
	})
}

const soundClaim = `
metadata: {name: c, namespace: n}
spec:
  devices:
    requests:
    - name: one
      exactly: {deviceClassName: gpu, selectors: [{cel: {expression: device.allowMultipleAllocations}}], tolerations: [{key: k, operator: Exists}]}
    - name: either
      firstAvailable: [{name: big, deviceClassName: big}, {name: small, deviceClassName: small, count: 2}]
    constraints: [{requests: [one, either/big], matchAttribute: example.com/numa}]
    config: [{requests: [either], opaque: {driver: a.b, parameters: {a: b}}}]
`

// claimCases returns changes of soundClaim and of a template's spec. devices is the path of the devices in it.
func claimCases(devices string) []kindtest.Case {
	under := func(paths ...string) []string {
		for i, p := range paths {
			reason, path, _ := strings.Cut(p, " ")
			paths[i] = reason + " " + devices + path
		}
		return paths
	}
	const exactly = "exactly: {deviceClassName: gpu, selectors: [{cel: {expression: " +
		"device.allowMultipleAllocations}}], tolerations: [{key: k, operator: Exists}]}"
	return []kindtest.Case{
		{"nothing", []string{exactly, ""}, under("Required .requests[0]")},
		{"both", []string{exactly, exactly + "\n      firstAvailable: [{name: a, deviceClassName: b}]"},
			under("Invalid .requests[0]")},
		{"names", []string{"name: one", "name: One", "[one, either/big]", "[One]"},
			under("Invalid .requests[0].name", "Invalid .constraints[0].requests[0]")},
		{"twice", []string{"name: either", "name: one", "either/big", "one/big", "[either]", "[one]"},
			under("Duplicate .requests[1]")},
		{"no class", []string{"deviceClassName: gpu, ", "", "deviceClassName: big", "count: 1"},
			under("Required .requests[0].exactly.deviceClassName",
				"Required .requests[1].firstAvailable[0].deviceClassName")},
		{"class", []string{"deviceClassName: gpu", "deviceClassName: g_u"},
			under("Invalid .requests[0].exactly.deviceClassName")},
		{"selector", []string{"expression: device.allowMultipleAllocations", "expression: ''"},
			under("Invalid .requests[0].exactly.selectors[0].cel.expression")},
		{"all and some", []string{"deviceClassName: gpu", "deviceClassName: gpu, allocationMode: All, count: 1"},
			under("Invalid .requests[0].exactly.count")},
		{"all", []string{"deviceClassName: gpu", "deviceClassName: gpu, allocationMode: All"}, nil},
		{"fewer than one", []string{"count: 2", "count: -1"}, under("Invalid .requests[1].firstAvailable[1].count")},
		{"mode", []string{"deviceClassName: gpu", "deviceClassName: gpu, allocationMode: Most"},
			under("NotSupported .requests[0].exactly.allocationMode")},
		{"alternatives twice", []string{"name: small", "name: big"}, under("Duplicate .requests[1].firstAvailable[1]")},
		{"many alternatives", []string{"[{name: big, deviceClassName: big}, {name: small, deviceClassName: small, " +
			"count: 2}]", repeated(9, "{name: a%d, deviceClassName: b}"), "either/big", "either/a0"},
			under("TooMany .requests[1].firstAvailable")},
		{"toleration", []string{"{key: k, operator: Exists}", "{key: k k, operator: Exists, value: v, effect: Fast}"},
			under("Invalid .requests[0].exactly.tolerations[0].key", "Invalid .requests[0].exactly.tolerations[0].value",
				"NotSupported .requests[0].exactly.tolerations[0].effect")},
		{"toleration's operator", []string{"operator: Exists", "operator: Near"},
			under("NotSupported .requests[0].exactly.tolerations[0].operator")},
		{"toleration of a value", []string{"operator: Exists", "value: a b"},
			under("Invalid .requests[0].exactly.tolerations[0].value")},
		{"many tolerations", []string{"[{key: k, operator: Exists}]", repeated(17, "{key: k%d}")},
			under("TooMany .requests[0].exactly.tolerations")},
		{"capacity", []string{"deviceClassName: gpu", "deviceClassName: gpu, capacity: {requests: {memory: 1Gi, " +
			"'a b': 1}}"}, under("Invalid .requests[0].exactly.capacity.requests[a b]")},
		{"no such request", []string{"[one, either/big]", "[two, either/large, one/big, a/b/c]"},
			under("Invalid .constraints[0].requests[0]", "Invalid .constraints[0].requests[1]",
				"Invalid .constraints[0].requests[2]", "Invalid .constraints[0].requests[3]")},
		{"constrained twice", []string{"[one, either/big]", "[one, one]"}, under("Duplicate .constraints[0].requests[1]")},
		{"no constraint", []string{", matchAttribute: example.com/numa", ""}, under("Required .constraints[0]")},
		{"attribute without a domain", []string{"example.com/numa", "numa"},
			under("Invalid .constraints[0].matchAttribute")},
		{"attribute", []string{"matchAttribute: example.com/numa", "distinctAttribute: /a-b"},
			under("Invalid .constraints[0].distinctAttribute", "Invalid .constraints[0].distinctAttribute")},
		{"configuration", []string{"[{requests: [either], opaque: {driver: a.b, parameters: {a: b}}}]",
			"[{requests: [either, x]}]"}, under("Invalid .config[0].requests[1]", "Required .config[0].opaque")},
	}
}

func TestResourceClaim_ValidateRejects(t *testing.T) {
	t.Parallel()
	kindtest.Create(t, "ResourceClaim", soundClaim, claimCases("spec.devices"))
	kindtest.Update(t, "ResourceClaim", soundClaim,
		[]kindtest.Case{{"class", []string{"deviceClassName: gpu", "deviceClassName: cpu"}, []string{"Invalid spec"}}})
	head, body, _ := strings.Cut(soundClaim, "spec:\n")
	template := head + "spec:\n  spec:\n" + strings.ReplaceAll("\n"+strings.TrimSuffix(body, "\n"), "\n", "\n  ")[1:] +
		"\n"
	// Every line of the body is indented by two more columns.
	var cases []kindtest.Case
	for _, c := range claimCases("spec.spec.devices") {
		if !slices.ContainsFunc(c.Replace, func(s string) bool { return strings.Contains(s, "\n") }) {
			cases = append(cases, c)
		}
	}
	cases = append(cases, kindtest.Case{"a name", []string{"spec:\n", "spec:\n  metadata: {name: a, labels: {b: c}}\n"},
		[]string{"Forbidden spec.metadata.name"}})
	kindtest.Create(t, "ResourceClaimTemplate", template, cases)
	kindtest.Update(t, "ResourceClaimTemplate", template,
		[]kindtest.Case{{"class", []string{"deviceClassName: gpu", "deviceClassName: cpu"}, []string{"Invalid spec"}}})
}

func TestResourceClaim_StatusRejects(t *testing.T) {
	t.Parallel()
	r := kindtest.Of(t, "ResourceClaim")
	old := kindtest.Decode(t, r, soundClaim)
	const share = "00000000-0000-4000-8000-000000000001"
	sound := soundClaim + `
status:
  reservedFor: [{resource: pods, name: p, uid: u}]
  allocation:
    devices:
      results: [{request: one, driver: a.b, pool: node/p, device: d, shareID: ` + share + `}, {request: either/big, driver: a.b, pool: p, device: e, bindingConditions: [Ready], bindingFailureConditions: [Failed]}]
      config: [{source: FromClass, requests: [one], opaque: {driver: a.b, parameters: {a: b}}}]
    nodeSelector: {nodeSelectorTerms: [{matchFields: [{key: metadata.name, operator: In, values: [node-a]}]}]}
  devices: [{driver: a.b, pool: node/p, device: d, shareID: ` + share + `, data: {a: b}, networkData: {interfaceName: eth0, ips: [192.0.2.1/24], hardwareAddress: aa}}]
`
	require.Empty(t, r.Status.Validate(kindtest.Decode(t, r, sound), old))
	const results = "status.allocation.devices.results[0]"
	for _, c := range []kindtest.Case{
		{"nobody", []string{"{resource: pods, name: p, uid: u}", "{}"},
			[]string{"Required status.reservedFor[0].resource", "Required status.reservedFor[0].name",
				"Required status.reservedFor[0].uid"}},
		{"twice", []string{"uid: u}", "uid: u}, {resource: pods, name: q, uid: u}"},
			[]string{"Duplicate status.reservedFor[1]"}},
		{"many", []string{"[{resource: pods, name: p, uid: u}]", repeated(257, "{resource: pods, name: p, uid: u%d}")},
			[]string{"TooMany status.reservedFor"}},
		{"nothing allocated",
			[]string{sound[strings.Index(sound, "  allocation:"):strings.Index(sound, "  devices: [{driver")], ""},
			[]string{"Forbidden status.reservedFor", "Invalid status.devices[0]"}},
		{"names", []string{"{request: one, driver: a.b, pool: node/p, device: d, shareID: " + share,
			"{request: two, driver: a_b, pool: '', device: D, shareID: x"},
			[]string{"Invalid " + results + ".request", "Invalid " + results + ".driver", "Required " + results +
				".pool", "Invalid " + results + ".device", "Invalid " + results + ".shareID",
				"Invalid status.devices[0]"}},
		{"conditions", []string{"[Failed]", "[Ready, Ready, a b]"}, []string{
			"Duplicate status.allocation.devices.results[1].bindingFailureConditions[1]",
			"Invalid status.allocation.devices.results[1].bindingFailureConditions[0]",
			"Invalid status.allocation.devices.results[1].bindingFailureConditions[1]",
			"Invalid status.allocation.devices.results[1].bindingFailureConditions[2]"}},
		{"no failure", []string{", bindingFailureConditions: [Failed]", ""},
			[]string{"Invalid status.allocation.devices.results[1].bindingFailureConditions"}},
		{"only failure", []string{"bindingConditions: [Ready], ", ""},
			[]string{"Invalid status.allocation.devices.results[1].bindingConditions"}},
		{"source", []string{"source: FromClass", "source: FromAir"},
			[]string{"NotSupported status.allocation.devices.config[0].source"}},
		{"no source", []string{"source: FromClass, ", ""},
			[]string{"Required status.allocation.devices.config[0].source"}},
		{"nodes", []string{"[{matchFields: [{key: metadata.name, operator: In, values: [node-a]}]}]", "[]"},
			[]string{"Required status.allocation.nodeSelector.nodeSelectorTerms"}},
		{"a device of others", []string{"  devices: [{driver: a.b, pool: node/p, device: d, ",
			"  devices: [{driver: a.b, pool: node/p, device: f, "}, []string{"Invalid status.devices[0]"}},
		{"data", []string{"data: {a: b}", "data: [a]"}, []string{"Invalid status.devices[0].data"}},
		{"addresses", []string{"[192.0.2.1/24]", "[192.0.2.1]", "hardwareAddress: aa", "hardwareAddress: " +
			strings.Repeat("a", 129), "eth0", strings.Repeat("e", 257)},
			[]string{"Invalid status.devices[0].networkData.ips[0]",
				"TooLong status.devices[0].networkData.hardwareAddress",
				"TooLong status.devices[0].networkData.interfaceName"}},
		{"many conditions", []string{"data: {a: b}", "conditions: " + repeated(9, "{type: T%d, status: 'True', "+
			"reason: R, lastTransitionTime: '2026-01-01T00:00:00Z'}")},
			[]string{"TooMany status.devices[0].conditions"}},
	} {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			require.ElementsMatch(t, c.Want,
				kindtest.Refusals(r.Status.Validate(kindtest.Decode(t, r, kindtest.Changed(t, sound, c.Replace)), old)))
		})
	}

	allocated := kindtest.Decode(t, r, sound).(*resourcev1.ResourceClaim)
	other := allocated.DeepCopy()
	other.Status.Allocation.Devices.Results[1].Device = "x"
	require.Equal(t, []string{"Invalid status.allocation"}, kindtest.Refusals(r.Status.Validate(other, allocated)))
	going := allocated.DeepCopy()
	going.DeletionTimestamp = &metav1.Time{}
	going.Status.ReservedFor[0].UID = "v"
	require.Equal(t, []string{"Forbidden status.reservedFor"}, kindtest.Refusals(r.Status.Validate(going, allocated)))
	require.Equal(t, "deleted,allocated,reserved", r.Cells(going)[1])
	require.Equal(t, "pending", r.Cells(old)[1])

	// The status of devices is dropped together with their allocation.
	dst, src := allocated.DeepCopy(), allocated.DeepCopy()
	src.Status.Allocation, src.Status.ReservedFor = nil, nil
	r.Status.Write(dst, src)
	require.Empty(t, dst.Status.Devices)
	require.Empty(t, r.Status.Validate(dst, allocated))
}

// caller is an api.Caller with the permissions "verb/subresource/name".
type caller struct {
	user   authenticationv1.UserInfo
	verb   string
	rights []string
	labels map[string]string
}

func (a caller) User() authenticationv1.UserInfo { return a.user }
func (a caller) Verb() string                    { return a.verb }
func (a caller) May(verb, _, _, subresource, _, name string) bool {
	return slices.Contains(a.rights, verb+"/"+subresource+"/"+name)
}
func (a caller) NamespaceLabels(string) (map[string]string, error) {
	if a.labels == nil {
		return nil, errors.New("not found")
	}
	return a.labels, nil
}

var _ api.Caller = caller{}

func TestResourceClaim_StatusPermissionsAreSplit(t *testing.T) {
	t.Parallel()
	r := kindtest.Of(t, "ResourceClaim")
	decoded := func(text string) *resourcev1.ResourceClaim {
		return kindtest.Decode(t, r, soundClaim+text).(*resourcev1.ResourceClaim)
	}
	const onNode = "    nodeSelector: {nodeSelectorTerms: [{matchFields: [{key: metadata.name, operator: In, " +
		"values: [node-a]}]}]}\n"
	const allocation = "status:\n  allocation:\n    devices: {results: [{request: one, driver: a.b, pool: p, device: d}]}\n"
	const status = "  devices: [{driver: a.b, pool: p, device: d, networkData: {interfaceName: eth0}}]\n"
	driver := authenticationv1.UserInfo{Username: "system:serviceaccount:kube-system:driver",
		Extra: map[string]authenticationv1.ExtraValue{"authentication.kubernetes.io/node-name": {"node-a"}}}
	for _, c := range []struct {
		name    string
		is, was string
		writer  caller
		want    []string
	}{
		{"nothing changes", allocation + status, allocation + status, caller{}, nil},
		{"allocated", allocation, "", caller{verb: "update", rights: []string{"update/binding/"}}, nil},
		{"allocated without permission", allocation, "", caller{verb: "patch", rights: []string{"update/binding/"}},
			[]string{"Forbidden status"}},
		{"status set", allocation + status, allocation,
			caller{verb: "patch", rights: []string{"arbitrary-node:patch/driver/a.b"}}, nil},
		{"status set by another driver", allocation + status, allocation,
			caller{verb: "patch", rights: []string{"arbitrary-node:patch/driver/c.d"}},
			[]string{"Forbidden status.devices"}},
		{"status removed", allocation, allocation + status, caller{verb: "patch"}, []string{"Forbidden status.devices"}},
		{"status set on the node", allocation + onNode + status, allocation + onNode,
			caller{user: driver, verb: "update", rights: []string{"associated-node:update/driver/a.b"}}, nil},
		{"status set for many nodes", allocation + status, allocation,
			caller{user: driver, verb: "update", rights: []string{"associated-node:update/driver/a.b"}},
			[]string{"Forbidden status.devices"}},
		{"status set by a user", allocation + onNode + status, allocation + onNode,
			caller{user: authenticationv1.UserInfo{Username: "jane", Extra: driver.Extra}, verb: "update",
				rights: []string{"associated-node:update/driver/a.b"}}, []string{"Forbidden status.devices"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			errs := r.Status.Permit(c.writer, decoded(c.is), decoded(c.was))
			require.ElementsMatch(t, c.want, kindtest.Refusals(errs))
		})
	}

	admin := kindtest.Decode(t, r,
		kindtest.Changed(t, soundClaim, []string{"deviceClassName: gpu", "deviceClassName: gpu, adminAccess: true"}))
	require.Empty(t, r.Permit(caller{labels: map[string]string{"resource.kubernetes.io/admin-access": "true"}}, admin,
		nil))
	require.Equal(t, []string{"Forbidden spec.devices.requests[0].adminAccess"},
		kindtest.Refusals(r.Permit(caller{labels: map[string]string{}}, admin, nil)))
	require.Equal(t, []string{"InternalError spec.devices.requests[0].adminAccess"},
		kindtest.Refusals(r.Permit(caller{}, admin, nil)))
	require.Empty(t, r.Permit(caller{}, admin, admin), "the spec of a stored claim is immutable")
	granted := decoded(strings.Replace(allocation, "device: d", "device: d, adminAccess: true", 1))
	require.Equal(t, []string{"Forbidden status.allocation.devices.results[0].adminAccess"},
		kindtest.Refusals(r.Status.Permit(caller{verb: "update", rights: []string{"update/binding/"},
			labels: map[string]string{}}, granted, decoded(""))))
}

func TestResourceSlice_ValidateRejects(t *testing.T) {
	t.Parallel()
	const slice = `
metadata: {name: s}
spec:
  driver: a.b
  nodeName: n
  pool: {name: n, generation: 1, resourceSliceCount: 1}
  devices:
  - name: d
    attributes: {numa: {int: 1}, example.com/model: {string: a}, v: {version: 1.2.3-a.1+b}, l: {strings: [a, b]}}
    allowMultipleAllocations: true
    capacity: {memory: {value: 10, requestPolicy: {default: 2, validRange: {min: 2, max: 8, step: 2}}}, cores: {value: 4, requestPolicy: {default: 1, validValues: [1, 2]}}}
    taints: [{key: k, effect: NoSchedule}]
    consumesCounters: [{counterSet: c, counters: {m: {value: 1}}}]
    bindingConditions: [Ready]
    bindingFailureConditions: [Failed]
`
	devices := slice[strings.Index(slice, "  devices:"):]
	const capacity = "spec.devices[0].capacity[memory].requestPolicy"
	kindtest.Create(t, "ResourceSlice", slice, []kindtest.Case{
		{"driver", []string{"driver: a.b", "driver: a_b"}, []string{"Invalid spec.driver"}},
		{"pool", []string{"{name: n, generation: 1, resourceSliceCount: 1}", "{name: N/n, generation: -1}"},
			[]string{"Invalid spec.pool.name", "Invalid spec.pool.resourceSliceCount", "Invalid spec.pool.generation"}},
		{"no nodes", []string{"  nodeName: n\n", ""}, []string{"Required spec"}},
		{"an empty name", []string{"nodeName: n", "nodeName: ''"}, []string{"Invalid spec.nodeName", "Required spec"}},
		{"two ways", []string{"nodeName: n", "nodeName: n\n  allNodes: true"}, []string{"Invalid spec"}},
		{"not all", []string{"nodeName: n", "nodeName: n\n  allNodes: false"}, []string{"Invalid spec.allNodes"}},
		{"two terms", []string{"nodeName: n", "nodeSelector: {nodeSelectorTerms: [{}, {}]}"},
			[]string{"Invalid spec.nodeSelector.nodeSelectorTerms"}},
		{"counters beside devices", []string{"  devices:", "  sharedCounters: [{name: c, counters: {m: {value: " +
			"1}}}]\n  devices:"}, []string{"Invalid spec"}},
		{"counters", []string{devices, "  sharedCounters: [{}, {name: c, counters: {M: {value: 1}}}, {name: c, " +
			"counters: " + strings.NewReplacer("[", "{", "]", "}").Replace(repeated(33, "c%d: {value: 1}")) +
			"}]\n"}, []string{
			"Required spec.sharedCounters[0].name", "Required spec.sharedCounters[0].counters",
			"Invalid spec.sharedCounters[1].counters[M]", "Duplicate spec.sharedCounters[2]",
			"TooMany spec.sharedCounters[2].counters"}},
		{"many counters",
			[]string{devices, "  sharedCounters: " + repeated(9, "{name: c%d, counters: {m: {value: 1}}}") + "\n"},
			[]string{"TooMany spec.sharedCounters"}},
		{"128 devices", []string{devices, "  devices: " + repeated(128, "{name: d%d}") + "\n"}, nil},
		{"129 devices", []string{devices, "  devices: " + repeated(129, "{name: d%d}") + "\n"},
			[]string{"TooMany spec.devices"}},
		{"65 tainted devices", []string{devices, "  devices: " + repeated(65, "{name: d%d, taints: [{key: k, "+
			"effect: None}]}") + "\n"}, []string{"TooMany spec.devices"}},
		{"65 devices with lists", []string{devices, "  devices: " + repeated(65, "{name: d%d, attributes: {a: "+
			"{ints: [1]}}}") + "\n"}, []string{"TooMany spec.devices"}},
		{"twice", []string{devices, "  devices: [{name: d}, {name: d}]\n"}, []string{"Duplicate spec.devices[1]"}},
		{"device", []string{"name: d\n", "name: D\n"}, []string{"Invalid spec.devices[0].name"}},
		{"attribute of nothing", []string{"{int: 1}", "{}"}, []string{"Invalid spec.devices[0].attributes[numa]"}},
		{"attribute of two", []string{"{int: 1}", "{int: 1, bool: true}"},
			[]string{"Invalid spec.devices[0].attributes[numa]"}},
		{"long text", []string{"{string: a}", "{string: " + strings.Repeat("a", 65) + "}"},
			[]string{"TooLong spec.devices[0].attributes[example.com/model].string"}},
		{"version", []string{"1.2.3-a.1+b", "v1"}, []string{"Invalid spec.devices[0].attributes[v].version"}},
		{"names", []string{"{int: 1}", "{int: 1}, a-b: {int: 1}, /c: {int: 1}"},
			[]string{"Invalid spec.devices[0].attributes[a-b]", "Invalid spec.devices[0].attributes[/c]"}},
		{"a long list", []string{"[a, b]", repeated(49, "a%d")}, []string{"Invalid spec.devices[0].attributes"}},
		{"many attributes", []string{"{int: 1}", "{int: 1}, " + strings.Trim(repeated(30, "a%d: {int: 1}"), "[]")},
			[]string{"Invalid spec.devices[0]"}},
		{"not shared", []string{"    allowMultipleAllocations: true\n", ""},
			[]string{"Forbidden " + capacity, "Forbidden spec.devices[0].capacity[cores].requestPolicy"}},
		{"both policies", []string{"default: 2, ", "default: 2, validValues: [2], "},
			[]string{"Forbidden " + capacity}},
		{"no default", []string{"default: 2, ", ""}, []string{"Required " + capacity + ".default"}},
		{"no least", []string{"{min: 2, ", "{"}, []string{"Required " + capacity + ".validRange.min"}},
		{"range", []string{"{min: 2, max: 8, step: 2}", "{min: 11, max: 9}"},
			[]string{"Invalid " + capacity + ".validRange.min", "Invalid " + capacity + ".validRange.min", "Invalid " +
				capacity + ".validRange.max"}},
		{"much", []string{"{min: 2, max: 8, step: 2}", "{min: 1, max: 11}"},
			[]string{"Invalid " + capacity + ".validRange.max"}},
		{"steps", []string{"step: 2", "step: 4", "default: 2", "default: 3"},
			[]string{"Invalid " + capacity + ".validRange.step", "Invalid " + capacity + ".validRange.step"}},
		{"no step", []string{"step: 2", "step: 0"}, []string{"Invalid " + capacity + ".validRange.step", "Invalid " +
			capacity + ".validRange.step"}},
		{"values", []string{"[1, 2]", "[3, 2, 2, 5]"}, []string{
			"Invalid spec.devices[0].capacity[cores].requestPolicy.validValues[1]",
			"Duplicate spec.devices[0].capacity[cores].requestPolicy.validValues[2]",
			"Invalid spec.devices[0].capacity[cores].requestPolicy.validValues[3]",
			"Invalid spec.devices[0].capacity[cores].requestPolicy.validValues"}},
		{"taint", []string{"{key: k, effect: NoSchedule}", "{key: '', value: a b}, {key: k, effect: Fast}"}, []string{
			"Invalid spec.devices[0].taints[0].key", "Invalid spec.devices[0].taints[0].key",
			"Invalid spec.devices[0].taints[0].value", "Required spec.devices[0].taints[0].effect",
			"NotSupported spec.devices[0].taints[1].effect"}},
		{"many taints", []string{"[{key: k, effect: NoSchedule}]", repeated(17, "{key: k%d, effect: None}")},
			[]string{"TooMany spec.devices[0].taints"}},
		{"consumption", []string{"{counterSet: c, counters: {m: {value: 1}}}", "{}, {}, {}"},
			[]string{"TooMany spec.devices[0].consumesCounters"}},
		{"no consumption", []string{"{counterSet: c, counters: {m: {value: 1}}}", "{}"},
			[]string{"Required spec.devices[0].consumesCounters[0].counterSet",
				"Required spec.devices[0].consumesCounters[0].counters"}},
		{"a node of its own", []string{"name: d\n", "name: d\n    allNodes: true\n"},
			[]string{"Invalid spec.devices[0]"}},
		{"each its nodes", []string{"nodeName: n", "perDeviceNodeSelection: true"},
			[]string{"Required spec.devices[0]"}},
		{"each in two ways", []string{"nodeName: n", "perDeviceNodeSelection: true", "name: d\n",
			"name: d\n    allNodes: true\n    nodeName: n\n"}, []string{"Invalid spec.devices[0]"}},
		{"each, but not", []string{"nodeName: n", "perDeviceNodeSelection: true", "name: d\n",
			"name: d\n    allNodes: false\n    nodeName: ''\n"}, []string{"Invalid spec.devices[0].allNodes",
			"Invalid spec.devices[0].nodeName", "Required spec.devices[0]"}},
		{"many conditions", []string{"[Ready]", "[a, b, c, d, e]"},
			[]string{"TooMany spec.devices[0].bindingConditions"}},
	})
	kindtest.Update(t, "ResourceSlice", slice, []kindtest.Case{
		{"identity", []string{"driver: a.b", "driver: a.c", "nodeName: n", "nodeName: m", "{name: n", "{name: m"},
			[]string{"Invalid spec.driver", "Invalid spec.nodeName", "Invalid spec.pool.name"}},
		{"generation", []string{"generation: 1", "generation: 2"}, nil},
	})
}

func TestDeviceTaintRule_ValidateRejects(t *testing.T) {
	t.Parallel()
	const rule = "metadata: {name: r}\nspec: {deviceSelector: {driver: a.b, pool: p, device: d}, taint: {key: k, " +
		"effect: NoExecute, timeAdded: '2026-01-01T00:00:00Z'}}\n"
	kindtest.Create(t, "DeviceTaintRule", rule, []kindtest.Case{
		{"selector", []string{"{driver: a.b, pool: p, device: d}", "{driver: '', pool: '', device: D}"}, []string{
			"Required spec.deviceSelector.driver", "Invalid spec.deviceSelector.driver",
			"Required spec.deviceSelector.pool", "Invalid spec.deviceSelector.device"}},
		{"everything", []string{"deviceSelector: {driver: a.b, pool: p, device: d}, ", ""}, nil},
		{"taint", []string{"key: k, effect: NoExecute", "value: a b"},
			[]string{"Invalid spec.taint.key", "Invalid spec.taint.key", "Invalid spec.taint.value",
				"Required spec.taint.effect"}},
	})
	r := kindtest.Of(t, "DeviceTaintRule")
	old := kindtest.Decode(t, r, rule).(*resourcev1.DeviceTaintRule)
	same, softer := old.DeepCopy(), old.DeepCopy()
	softer.Spec.Taint.Effect = "None"
	same.Spec.Taint.Value = "v"
	r.PrepareUpdate(same, old)
	r.PrepareUpdate(softer, old)
	require.Equal(t, old.Spec.Taint.TimeAdded, same.Spec.Taint.TimeAdded)
	require.True(t, softer.Spec.Taint.TimeAdded.After(old.Spec.Taint.TimeAdded.Time), "another effect begins now")
	for range 9 {
		old.Status.Conditions = append(old.Status.Conditions,
			metav1.Condition{Type: fmt.Sprint("T", len(old.Status.Conditions)), Status: "True", Reason: "R",
				LastTransitionTime: metav1.Now()})
	}
	require.Equal(t, []string{"TooMany status.conditions"}, kindtest.Refusals(r.Status.Validate(old, old)))
}
