package main

import (
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// targetLabels are the labels of the queries that Prometheus' scrape configuration adds.
var targetLabels = []string{"cluster", "instance", "job", "metrics_path", "service"}

// TestUp_HasTheMetricsOfDashboards scrapes a running control plane. Each metric that kube-prometheus' rules and
// dashboards query is there with the labels that they select by, or testdata/dashboards-elsewhere.txt has the reason.
// It is not parallel, since a command sets the process's logger.
func TestUp_HasTheMetricsOfDashboards(t *testing.T) {
	u := startUp(t)
	_, err := u.client.CoreV1().Pods("default").Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Annotations: map[string]string{"sim.coxswain.dev/cpu": "100m",
			"sim.coxswain.dev/memory": "64Mi"}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "web"}}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	service := `{"apiVersion":"apiregistration.k8s.io/v1","kind":"APIService","metadata":{"name":"v1.example.com"},` +
		`"spec":{"group":"example.com","version":"v1","groupPriorityMinimum":100,"versionPriority":100,` +
		`"service":{"namespace":"default","name":"none"}}}`
	_, err = u.client.Discovery().RESTClient().Post().AbsPath("/apis/apiregistration.k8s.io/v1/apiservices").
		SetHeader("Content-Type", "application/json").Body([]byte(service)).DoRaw(t.Context())
	require.NoError(t, err)

	elsewhere := table(t, "testdata/dashboards-elsewhere.txt")
	var missing []string
	require.Eventually(t, func() bool {
		missing = u.missing(t, elsewhere)
		return len(missing) == 0
	}, time.Minute, 200*time.Millisecond, "metrics: %v", &missing)
	found := u.scrape(t)
	queried := table(t, "testdata/dashboards.txt")
	for _, row := range elsewhere {
		require.True(t, slices.ContainsFunc(queried, func(q []string) bool { return matches(row[0], q[0]) }),
			"%s: no dashboard queries it", row[0])
		for name := range found {
			isQueried := slices.ContainsFunc(queried, func(q []string) bool { return q[0] == name })
			require.False(t, isQueried && matches(row[0], name), "%s is there: remove it from the list", name)
		}
	}
}

// missing returns the metrics that dashboards query and that are neither there nor in the list.
func (u *up) missing(t *testing.T, elsewhere [][]string) (missing []string) {
	found := u.scrape(t)
	for _, row := range table(t, "testdata/dashboards.txt") {
		name := row[0]
		if slices.ContainsFunc(elsewhere, func(e []string) bool { return matches(e[0], name) }) {
			continue
		}
		labels, ok := found[name]
		if !ok {
			missing = append(missing, name)
			continue
		}
		for _, label := range strings.Split(row[1], ",") {
			isTarget := slices.Contains(targetLabels, label) ||
				!strings.HasPrefix(name, "container_") && (label == "namespace" || label == "container")
			if label != "" && !isTarget && !labels[label] {
				missing = append(missing, name+"{"+label+"}")
			}
		}
	}
	return missing
}

// scrape returns the labels of all metrics of the control plane, by the metrics' names.
func (u *up) scrape(t *testing.T) map[string]map[string]bool {
	found := map[string]map[string]bool{}
	series := regexp.MustCompile(`(?m)^(\w+)(?:\{(.*)\})? [^ ]+$`)
	label := regexp.MustCompile(`(\w+)="(?:[^"\\]|\\.)*"`)
	for _, endpoint := range []string{"/metrics", "/metrics/slis", "/metrics/resources",
		"/api/v1/nodes/node-0/proxy/metrics", "/api/v1/nodes/node-0/proxy/metrics/cadvisor",
		"/api/v1/nodes/node-1/proxy/metrics/cadvisor", "/api/v1/nodes/node-0/proxy/metrics/resource"} {
		for _, s := range series.FindAllStringSubmatch(u.get(endpoint), -1) {
			if found[s[1]] == nil {
				found[s[1]] = map[string]bool{}
			}
			for _, l := range label.FindAllStringSubmatch(s[2], -1) {
				found[s[1]][l[1]] = true
			}
		}
	}
	require.NotEmpty(t, slices.Collect(maps.Keys(found)))
	return found
}

func matches(pattern, name string) bool {
	ok, err := path.Match(pattern, name)
	return err == nil && ok
}

// table returns the columns of the lines of a file, without comments.
func table(t *testing.T, file string) (rows [][]string) {
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSuffix(line, "\n"); line != "" && !strings.HasPrefix(line, "#") {
			rows = append(rows, strings.Split(line, "\t"))
		}
	}
	return rows
}
