package apiserver_test

import (
	"bytes"
	"encoding/json"
	"maps"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"

	"github.com/coxswain-dev/coxswain/api/builtin"
	"github.com/coxswain-dev/coxswain/apiserver"
)

func TestMetrics_NamesAndLabelsThatDashboardsQuery(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.create(configMaps, configMap("a"))
	s.do(http.MethodPost, configMaps+"?dryRun=All", configMap("b")).ok(http.StatusCreated)
	s.get("/api/v1/configmaps").ok(http.StatusOK)
	w := s.watch(configMaps + "?watch=1")
	w.expect("ADDED", "a")
	const of = `group="",resource="configmaps",scope=`
	text := string(s.get("/metrics").ok(http.StatusOK).body)
	for _, line := range []string{
		`apiserver_request_total{code="201",component="apiserver",dry_run="",` + of +
			`"resource",subresource="",verb="POST",version="v1"} 1`,
		`apiserver_request_total{code="201",component="apiserver",dry_run="All",` + of +
			`"resource",subresource="",verb="POST",version="v1"} 1`,
		`apiserver_request_duration_seconds_bucket{component="apiserver",dry_run="",` + of +
			`"cluster",subresource="",verb="LIST",version="v1",le="1"} 1`,
		`apiserver_request_sli_duration_seconds_bucket{component="apiserver",` + of +
			`"cluster",subresource="",verb="LIST",version="v1",le="30"} 1`,
		`apiserver_request_sli_duration_seconds_count{component="apiserver",` + of +
			`"resource",subresource="",verb="POST",version="v1"} 1`,
		`apiserver_response_sizes_count{component="apiserver",` + of +
			`"cluster",subresource="",verb="LIST",version="v1"} 1`,
		`apiserver_longrunning_requests{component="apiserver",` + of +
			`"namespace",subresource="",verb="WATCH",version="v1"} 1`,
		`apiserver_current_inflight_requests{request_kind="readOnly"} `,
		`apiserver_watch_events_total{group="",resource="configmaps",version="v1"} 1`,
		`apiserver_storage_objects{resource="configmaps"} `,
		`apiserver_storage_objects{resource="namespaces"} 4`,
		`apiserver_admission_controller_admission_duration_seconds_count{name="NamespaceLifecycle",operation="CREATE",rejected="false",type=`,
		`etcd_request_duration_seconds_count{group="",operation="create",resource="configmaps"} `,
		`apiserver_flowcontrol_request_execution_seconds_bucket{flow_schema="exempt",priority_level="exempt",type="regular",`,
		"process_resident_memory_bytes ", "go_goroutines ",
	} {
		require.Contains(t, text, line)
	}
	require.NotContains(t, text, `rejected="true"`, "series without requests are not exported")
	require.NoError(t, w.res.Body.Close())
	require.Eventually(t, func() bool {
		return !contains(s.get("/metrics"), "apiserver_longrunning_requests{component=\"apiserver\","+of)
	}, patience, tick)
}

func TestMetrics_IncludeComponentsOfTheProcess(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	counter := prometheus.NewCounter(prometheus.CounterOpts{Name: "scheduler_something_total"})
	registry.MustRegister(counter)
	counter.Inc()
	a := assemble(t, builtin.Kinds(), apiserver.Options{Metrics: []prometheus.Gatherer{registry}})
	require.Contains(t, string(a.get("/metrics").ok(http.StatusOK).body), "\nscheduler_something_total 1\n")
}

func contains(a *answer, text string) bool {
	return bytes.Contains(a.ok(http.StatusOK).body, []byte(text))
}

func TestPages_AboutTheServerItself(t *testing.T) {
	t.Parallel()
	s := assemble(t, builtin.Kinds(), apiserver.Options{Flags: map[string]string{"secure-port": "6443"}})
	require.Contains(t, string(s.get("/statusz").ok(http.StatusOK).body), "\nkube-apiserver statusz\nWarning: ")
	require.Contains(t, string(s.get("/flagz").ok(http.StatusOK).body), "\nsecure-port=6443\n")
	s.get("/readyz/etcd").ok(http.StatusOK)
	require.Contains(t, string(s.get("/metrics/slis").ok(http.StatusOK).body),
		"\nkubernetes_healthcheck{name=\"etcd\",type=\"readyz\"} 1\n")
	require.Contains(t, string(s.get("/metrics").ok(http.StatusOK).body), "\nkubernetes_build_info{")
	var v version.Info
	require.NoError(t, json.Unmarshal(s.get("/version").ok(http.StatusOK).body, &v))
	require.Equal(t, [2]string{v.Major, v.Minor}, [2]string{v.EmulationMajor, v.EmulationMinor})
	require.NotEmpty(t, v.MinCompatibilityMinor)
}

func TestMetrics_EndWithTheirResource(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.defineGadgets()
	s.create("/apis/example.org/v1/namespaces/default/gadgets",
		m{"apiVersion": "example.org/v1", "kind": "Gadget", "metadata": m{"name": "one"}})
	counted := func() bool {
		return regexp.MustCompile(`(?m)^apiserver_(request|response|watch|storage_events).*group="example.org"`).
			Match(s.get("/metrics").ok(http.StatusOK).body)
	}
	require.Eventually(t, func() bool {
		return contains(s.get("/metrics"), `apiserver_storage_events_received_total{group="example.org"`)
	}, patience, tick)
	require.True(t, counted())
	s.delete(definitionsPath+"/gadgets.example.org", nil).ok(http.StatusOK)
	require.Eventually(t, func() bool { return !counted() }, patience, tick)
	require.True(t, contains(s.get("/metrics"), `resource="customresourcedefinitions"`))
}

// maxMetrics limits the size of /metrics after an administrator has sent every request that exists: about 30 lines for
// each resource, verb and scope. Clients cannot make it larger.
const maxMetrics = 5 << 20

// hasBoundedMetrics checks the size of /metrics. It is called after all requests, so that every possible series exists.
func (s *server) hasBoundedMetrics() {
	s.t.Helper()
	body := s.get("/metrics").ok(http.StatusOK).body
	bySize := map[string]int{}
	for line := range bytes.Lines(body) {
		name, _, _ := bytes.Cut(line, []byte("{"))
		bySize[string(name)] += len(line)
	}
	maps.DeleteFunc(bySize, func(_ string, size int) bool { return size < maxMetrics/100 })
	require.Less(s.t, len(body), maxMetrics, "%v", bySize)
}

// The servers keep records of their own in etcd, such as the ports of Services and times to live. They are not
// resources, so neither metrics nor discovery have them.
func TestMetrics_HaveNoResourcesOutsideTheAPI(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.create("/api/v1/namespaces/default/services", m{"metadata": m{"name": "web",
		"annotations": m{"coxswain.dev/ttl": "1h"}}, "spec": m{"type": "NodePort", "ports": []any{m{"port": 80}}}})
	served := map[string]map[string]bool{}
	add := func(group, path string) {
		var list metav1.APIResourceList
		require.NoError(t, json.Unmarshal(s.get(path).ok(http.StatusOK).body, &list))
		if served[group] == nil {
			served[group] = map[string]bool{"": true}
		}
		for _, res := range list.APIResources {
			resource, _, _ := strings.Cut(res.Name, "/")
			served[group][resource] = true
		}
	}
	add("", "/api/v1")
	var groups metav1.APIGroupList
	require.NoError(t, json.Unmarshal(s.get("/apis").ok(http.StatusOK).body, &groups))
	for _, group := range groups.Groups {
		for _, version := range group.Versions {
			add(group.Name, "/apis/"+version.GroupVersion)
		}
	}
	require.NotContains(t, served, "claims")
	label := regexp.MustCompile(`(?m)^(\w+)\{.*?\bgroup="([^"]*)",(?:.*?\b)?resource="([^"]*)"`)
	series := label.FindAllStringSubmatch(string(s.get("/metrics").ok(http.StatusOK).body), -1)
	require.NotEmpty(t, series)
	for _, match := range series {
		require.Contains(t, served, match[2], match[0])
		require.Contains(t, served[match[2]], match[3], match[0])
	}
}
