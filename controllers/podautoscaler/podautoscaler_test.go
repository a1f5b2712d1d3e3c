package podautoscaler_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/coxswain-dev/coxswain/controllers/lib/controllertest"
	"github.com/coxswain-dev/coxswain/internal/series/seriestest"
	"github.com/coxswain-dev/coxswain/testenv"
)

func TestMain(m *testing.M) { controllertest.Main(m) }

// metricsAPI is a proxy in front of an API server. It serves the metrics APIs itself.
type metricsAPI struct {
	mu      sync.Mutex
	lists   map[string]any        // the documents, by path
	queries map[string]url.Values // the last query, by path
}

// startMetrics starts the proxy. The returned configuration connects to it.
func startMetrics(t testing.TB, config *rest.Config) (*metricsAPI, *rest.Config) {
	target, err := url.Parse(config.Host)
	require.NoError(t, err)
	transport, err := rest.TransportFor(config)
	require.NoError(t, err)
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }, Transport: transport, FlushInterval: -1,
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	}
	m := &metricsAPI{lists: map[string]any{}, queries: map[string]url.Values{}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if group, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/apis/"), "/"); strings.HasSuffix(group,
			"metrics.k8s.io") {
			m.answer(w, r)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return m, &rest.Config{Host: server.URL, QPS: -1}
}

func (m *metricsAPI) answer(w http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.queries[r.URL.Path] = r.URL.Query()
	w.Header().Set("Content-Type", "application/json")
	list, ok := m.lists[r.URL.Path]
	if !ok {
		w.WriteHeader(http.StatusNotFound)
		list = metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
			Status:   metav1.StatusFailure, Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound,
			Message: "nothing at " + r.URL.Path,
		}
	}
	_ = json.NewEncoder(w).Encode(list)
}

func (m *metricsAPI) set(path string, items ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lists[path] = map[string]any{"items": items}
}

// serve announces the custom metrics API in these versions; the first is the preferred one.
func (m *metricsAPI) serve(versions ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	group := metav1.APIGroup{Name: "custom.metrics.k8s.io"}
	for _, v := range versions {
		group.Versions = append(group.Versions, metav1.GroupVersionForDiscovery{Version: v})
	}
	group.PreferredVersion = group.Versions[0]
	m.lists["/apis/custom.metrics.k8s.io"] = group
}

func (m *metricsAPI) query(path string) url.Values {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.queries[path]
}

// scaled is a ReplicaSet with an autoscaler and two pods, which are ready and request half a CPU.
type scaled struct {
	*controllertest.Clocked
	metrics *metricsAPI
}

func newScaled(t *testing.T, metrics ...autoscalingv2.MetricSpec) *scaled {
	t.Parallel()
	direct := testenv.Start(t, testenv.OrExternal(), testenv.WithControllers(), testenv.WithNodes(0),
		testenv.WithoutScheduler())
	api, config := startMetrics(t, direct)
	c := controllertest.ClockedAt(t, direct, "replicaset", "horizontal-pod-autoscaler-controller")
	c.Config, c.Impersonate = config, true
	containers := []corev1.Container{
		{Name: "app", Image: "web",
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("400m")}}},
		{Name: "log", Image: "web",
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("100m")}}},
	}
	for i := range 2 {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("web-%d", i),
			Labels: map[string]string{"app": "web"}}}
		p.Spec.Containers = containers
		p, err := c.Client.CoreV1().Pods("default").Create(c.Context(), p, metav1.CreateOptions{})
		require.NoError(t, err)
		start := metav1.NewTime(c.Now().Add(-time.Hour))
		p.Status.Phase, p.Status.StartTime = corev1.PodRunning, &start
		p.Status.Conditions = []corev1.PodCondition{{Type: "Ready", Status: "True", LastTransitionTime: start}}
		_, err = c.Client.CoreV1().Pods("default").UpdateStatus(c.Context(), p, metav1.UpdateOptions{})
		require.NoError(t, err)
	}
	s := &scaled{c, api}
	// The ReplicaSet adopts the pods.
	s.Replicate("web", 2, func(rs *appsv1.ReplicaSet) { rs.Spec.Template.Spec.Containers = containers })
	c.Restart()
	s.Reaches("its scale has a selector", func() bool { return s.ReplicaSetOf("web").Status.Replicas == 2 })
	_, err := c.Client.AutoscalingV2().HorizontalPodAutoscalers("default").Create(c.Context(),
		&autoscalingv2.HorizontalPodAutoscaler{
			ObjectMeta: metav1.ObjectMeta{Name: "web"},
			Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
				ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "ReplicaSet",
					Name: "web"},
				MinReplicas: new(int32(1)), MaxReplicas: 5, Metrics: metrics,
			},
		}, metav1.CreateOptions{})
	require.NoError(t, err)
	return s
}

func (s *scaled) hpa() *autoscalingv2.HorizontalPodAutoscaler {
	h, err := s.Client.AutoscalingV2().HorizontalPodAutoscalers("default").Get(s.Context(), "web", metav1.GetOptions{})
	require.NoError(s, err)
	return h
}

func (s *scaled) condition(
	t autoscalingv2.HorizontalPodAutoscalerConditionType) autoscalingv2.HorizontalPodAutoscalerCondition {
	for _, c := range s.hpa().Status.Conditions {
		if c.Type == t {
			return c
		}
	}
	return autoscalingv2.HorizontalPodAutoscalerCondition{}
}

// awaitScale waits until the target has n replicas, while the autoscaler's periods pass.
func (s *scaled) awaitScale(n int32) {
	s.Helper()
	s.Passing(500*time.Millisecond, fmt.Sprintf("%d replicas", n), func() bool {
		return *s.ReplicaSetOf("web").Spec.Replicas == n
	})
}

// used returns the PodMetrics of a pod whose containers use this much CPU, in thousandths.
func (s *scaled) used(pod string, app, log int) any {
	container := func(name string, cpu int) any {
		return map[string]any{"name": name, "usage": map[string]string{"cpu": fmt.Sprintf("%dm", cpu)}}
	}
	return map[string]any{
		"metadata": map[string]string{"name": pod}, "timestamp": s.Now().UTC().Format(time.RFC3339), "window": "30s",
		"containers": []any{container("app", app), container("log", log)},
	}
}

const resourceMetrics = "/apis/metrics.k8s.io/v1beta1/namespaces/default/pods"

func utilization(percent int32) autoscalingv2.MetricTarget {
	return autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType, AverageUtilization: &percent}
}

func TestPodAutoscaler_ScalesByTheCPUUtilizationOfItsPods(t *testing.T) {
	s := newScaled(t, autoscalingv2.MetricSpec{
		Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{Name: "cpu",
			Target: utilization(50)},
	})
	// Without metrics it reports the failure and does not scale.
	s.Reaches("it reports the failure", func() bool {
		return s.condition(autoscalingv2.ScalingActive).Reason == "FailedGetResourceMetric"
	})
	s.AwaitEvent("FailedGetResourceMetric", "failed to get cpu utilization: unable to get metrics for resource "+
		"cpu: unable to fetch metrics from resource metrics API")
	require.EqualValues(t, 2, *s.ReplicaSetOf("web").Spec.Replicas)

	s.metrics.set(resourceMetrics, s.used("web-0", 300, 75), s.used("web-1", 300, 75)) // 75 % of 500m
	s.awaitScale(3)
	s.AwaitEvent("SuccessfulRescale",
		"New size: 3; reason: cpu resource utilization (percentage of request) above target")
	require.Equal(t, "app=web", s.metrics.query(resourceMetrics).Get("labelSelector"))
	var h *autoscalingv2.HorizontalPodAutoscaler
	s.Reaches("the status is written, after the scale", func() bool {
		h = s.hpa()
		return h.Status.LastScaleTime != nil
	})
	require.EqualValues(t, 75, *h.Status.CurrentMetrics[0].Resource.Current.AverageUtilization)
	require.Equal(t, "375m", h.Status.CurrentMetrics[0].Resource.Current.AverageValue.String())
	require.Equal(t, corev1.ConditionTrue, s.condition(autoscalingv2.ScalingActive).Status)
	require.Equal(t, "ValidMetricFound", s.condition(autoscalingv2.ScalingActive).Reason)

	// The metrics ask for more than the maximum.
	s.metrics.set(resourceMetrics, s.used("web-0", 3000, 0), s.used("web-1", 3000, 0))
	s.awaitScale(5)
	s.Reaches("it is limited", func() bool {
		c := s.condition(autoscalingv2.ScalingLimited)
		return c.Status == corev1.ConditionTrue && c.Reason == "TooManyReplicas"
	})
	// Without load it scales down after the stabilization window.
	s.metrics.set(resourceMetrics, s.used("web-0", 0, 0), s.used("web-1", 0, 0))
	s.Passing(500*time.Millisecond, "the scale is stabilized", func() bool {
		return s.condition(autoscalingv2.AbleToScale).Reason == "ScaleDownStabilized"
	})
	require.EqualValues(t, 5, *s.ReplicaSetOf("web").Spec.Replicas)
	s.Passing(15*time.Second, "it scales down", func() bool { return *s.ReplicaSetOf("web").Spec.Replicas < 5 })
	s.AwaitEvent("SuccessfulRescale", "reason: All metrics below target")
	const prefix = "horizontal_pod_autoscaler_controller_"
	for _, action := range []string{"scale_up", "scale_down"} {
		labels := []string{"action", action, "error", "none", "metric_type", "Resource"}
		require.NotZero(t, seriestest.Value(t, s.Metrics, prefix+"reconciliations_total", labels[:4]...), action)
		computations := seriestest.Value(t, s.Metrics, prefix+"metric_computation_total", labels...)
		require.NotZero(t, computations, action)
		require.Equal(t, computations,
			seriestest.Value(t, s.Metrics, prefix+"metric_computation_duration_seconds", labels...), action)
	}
	require.NotZero(t, seriestest.Value(t, s.Metrics, prefix+"reconciliations_total", "error", "internal"))
	require.NotZero(t, seriestest.Value(t, s.Metrics, prefix+"reconciliation_duration_seconds"))
	require.EqualValues(t, 1, seriestest.Value(t, s.Metrics, prefix+"num_horizontal_pod_autoscalers"))
	s.Reaches("the desired replicas are exported", func() bool {
		return int32(seriestest.Value(t, s.Metrics, prefix+"desired_replicas", "namespace", "default",
			"hpa_name", "web")) == s.hpa().Status.DesiredReplicas
	})
}

func TestPodAutoscaler_UsesTheLargestProposalOfItsMetrics(t *testing.T) {
	average := func(v string) autoscalingv2.MetricTarget {
		return autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType,
			AverageValue: new(resource.MustParse(v))}
	}
	whole := func(v string) autoscalingv2.MetricTarget {
		return autoscalingv2.MetricTarget{Type: autoscalingv2.ValueMetricType, Value: new(resource.MustParse(v))}
	}
	service := autoscalingv2.CrossVersionObjectReference{APIVersion: "v1", Kind: "Service", Name: "front"}
	queue := &metav1.LabelSelector{MatchLabels: map[string]string{"queue": "jobs"}}
	s := newScaled(t,
		autoscalingv2.MetricSpec{Type: autoscalingv2.ContainerResourceMetricSourceType,
			ContainerResource: &autoscalingv2.ContainerResourceMetricSource{
				Name: "cpu", Container: "app", Target: utilization(50)}},
		autoscalingv2.MetricSpec{Type: autoscalingv2.PodsMetricSourceType, Pods: &autoscalingv2.PodsMetricSource{
			Metric: autoscalingv2.MetricIdentifier{Name: "requests"}, Target: average("100")}},
		autoscalingv2.MetricSpec{Type: autoscalingv2.ObjectMetricSourceType, Object: &autoscalingv2.ObjectMetricSource{
			DescribedObject: service, Metric: autoscalingv2.MetricIdentifier{Name: "latency"}, Target: whole("2")}},
		autoscalingv2.MetricSpec{Type: autoscalingv2.ExternalMetricSourceType,
			External: &autoscalingv2.ExternalMetricSource{
				Metric: autoscalingv2.MetricIdentifier{Name: "waiting", Selector: queue}, Target: average("30")}},
	)
	value := func(object, v string) any {
		return map[string]any{"describedObject": map[string]string{"name": object},
			"timestamp": s.Now().UTC().Format(time.RFC3339), "value": v}
	}
	const custom, external = "/apis/custom.metrics.k8s.io/v1beta2/namespaces/default/",
		"/apis/external.metrics.k8s.io/v1beta1/namespaces/default/waiting"
	const perPod = custom + "pods/*/requests"
	s.metrics.serve("v1alpha1", "v1beta1", "v1beta2") // v1beta2 is the newest supported version
	// 50 % of the request of one container: on target
	s.metrics.set(resourceMetrics, s.used("web-0", 200, 900), s.used("web-1", 200, 900))
	s.metrics.set(perPod, value("web-0", "100"), value("web-1", "100"))
	s.metrics.set(custom+"services/front/latency", value("front", "2"))
	s.metrics.set(external, value("", "40"), value("", "50")) // 90 in total: three pods at 30
	s.awaitScale(3)
	s.AwaitEvent("SuccessfulRescale", "New size: 3; reason: external metric waiting(&LabelSelector{MatchLabels:"+
		"map[string]string{queue: jobs,},MatchExpressions:[]LabelSelectorRequirement{},}) above target")
	require.Equal(t, "queue=jobs", s.metrics.query(external).Get("labelSelector"))
	require.Equal(t, "app=web", s.metrics.query(perPod).Get("labelSelector"))
	s.Reaches("the status is written, after the scale", func() bool { return s.hpa().Status.LastScaleTime != nil })
	require.Len(t, s.hpa().Status.CurrentMetrics, 4)

	s.metrics.set(custom+"services/front/latency", value("front", "4")) // twice the target, with two ready pods
	s.awaitScale(4)
	s.AwaitEvent("SuccessfulRescale", "New size: 4; reason: Service metric latency above target")
}

// The servers of the metrics APIs may be unavailable. Each failure has its own reason and kube-controller-manager's
// message, and disappears when the metric is back.
func TestPodAutoscaler_ReportsTheMetricThatFails(t *testing.T) {
	labelled := &metav1.LabelSelector{MatchLabels: map[string]string{"verb": "GET"}}
	metric := autoscalingv2.MetricIdentifier{Name: "hits", Selector: labelled}
	each := autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType,
		AverageValue: new(resource.MustParse("10"))}
	front := autoscalingv2.CrossVersionObjectReference{APIVersion: "v1", Kind: "Service", Name: "front"}
	s := newScaled(t, autoscalingv2.MetricSpec{Type: autoscalingv2.PodsMetricSourceType,
		Pods: &autoscalingv2.PodsMetricSource{Metric: metric, Target: each}})
	use := func(spec autoscalingv2.MetricSpec) {
		h := s.hpa()
		h.Spec.Metrics = []autoscalingv2.MetricSpec{spec}
		_, err := s.Client.AutoscalingV2().HorizontalPodAutoscalers("default").Update(s.Context(), h,
			metav1.UpdateOptions{})
		require.NoError(t, err)
	}
	fails := func(reason, inner, outer string) {
		t.Helper()
		var c autoscalingv2.HorizontalPodAutoscalerCondition
		s.Passing(500*time.Millisecond, reason+": "+inner, func() bool {
			c = s.condition(autoscalingv2.ScalingActive)
			return c.Reason == reason && c.Message == "the HPA was unable to compute the replica count: "+inner
		})
		require.Equal(t, corev1.ConditionFalse, c.Status)
		s.AwaitEvent(reason, inner)
		s.AwaitEvent("FailedComputeMetricsReplicas",
			"invalid metrics (1 invalid out of 1), first error is: "+outer+inner)
	}
	works := func() {
		t.Helper()
		s.Passing(500*time.Millisecond, "the metric is back", func() bool {
			return s.condition(autoscalingv2.ScalingActive).Reason == "ValidMetricFound"
		})
	}
	value := func(object string) any {
		return map[string]any{"describedObject": map[string]string{"name": object},
			"timestamp": s.Now().UTC().Format(time.RFC3339), "value": "10"}
	}
	const custom = "/apis/custom.metrics.k8s.io/v1beta1/namespaces/default/"
	const fetching = "unable to fetch metrics from custom metrics API: "
	fails("FailedGetPodsMetric", "unable to get metric hits: "+fetching+
		"no custom metrics API (custom.metrics.k8s.io) registered", "failed to get pods metric value: ")
	s.metrics.serve("v1beta1")
	s.metrics.set(custom + "pods/*/hits")
	fails("FailedGetPodsMetric", "unable to get metric hits: no metrics returned from custom metrics API",
		"failed to get pods metric value: ")
	s.metrics.set(custom+"pods/*/hits", value("web-0"), value("web-1"))
	works()
	require.Equal(t, "verb=GET", s.metrics.query(custom+"pods/*/hits").Get("metricLabelSelector"))
	require.Equal(t, "10", s.hpa().Status.CurrentMetrics[0].Pods.Current.AverageValue.String())

	use(autoscalingv2.MetricSpec{Type: autoscalingv2.ObjectMetricSourceType,
		Object: &autoscalingv2.ObjectMetricSource{DescribedObject: front, Metric: metric, Target: each}})
	s.metrics.set(custom+"services/front/hits", value("front"), value("front"))
	fails("FailedGetObjectMetric", "unable to get metric hits: Service on default front/"+fetching+
		"the custom metrics API server returned 2 results when we asked for exactly one",
		"failed to get object metric value: failed to get hits object metric: ")
	s.metrics.set(custom+"services/front/hits", value("front"))
	works()
	require.Equal(t, "verb=GET", s.metrics.query(custom+"services/front/hits").Get("metricLabelSelector"))

	const external = "/apis/external.metrics.k8s.io/v1beta1/namespaces/default/hits"
	use(autoscalingv2.MetricSpec{Type: autoscalingv2.ExternalMetricSourceType,
		External: &autoscalingv2.ExternalMetricSource{Metric: metric, Target: autoscalingv2.MetricTarget{
			Type: autoscalingv2.ValueMetricType, Value: new(resource.MustParse("10"))}}})
	s.metrics.set(external)
	fails("FailedGetExternalMetric", "unable to get external metric default/hits/&LabelSelector{MatchLabels:"+
		"map[string]string{verb: GET,},MatchExpressions:[]LabelSelectorRequirement{},}: no metrics returned from "+
		"external metrics API", "failed to get hits external metric value: failed to get external metric hits: ")
	s.metrics.set(external, value(""))
	works()
	require.Equal(t, "10", s.hpa().Status.CurrentMetrics[0].External.Current.Value.String())
}

func TestPodAutoscaler_ReportsAMissingOrDisabledTarget(t *testing.T) {
	s := newScaled(t)
	// 80 % of the requests, which is the default target
	s.metrics.set(resourceMetrics, s.used("web-0", 400, 0), s.used("web-1", 400, 0))
	other := &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Name: "lost"}}
	other.Spec.ScaleTargetRef = autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1",
		Kind: "Deployment", Name: "none"}
	other.Spec.MaxReplicas = 3
	_, err := s.Client.AutoscalingV2().HorizontalPodAutoscalers("default").Create(s.Context(), other, metav1.CreateOptions{})
	require.NoError(t, err)
	s.AwaitEvent("FailedGetScale", `deployments.apps "none" not found`)
	s.Reaches("the metric of web is valid", func() bool {
		return s.condition(autoscalingv2.ScalingActive).Reason == "ValidMetricFound"
	})
	require.EqualValues(t, 2, s.hpa().Status.DesiredReplicas)

	// Setting the scale to zero disables the autoscaler.
	_, err = s.Client.AppsV1().ReplicaSets("default").Patch(s.Context(), "web", types.MergePatchType, sized(0),
		metav1.PatchOptions{})
	require.NoError(t, err)
	s.Passing(500*time.Millisecond, "scaling is disabled", func() bool {
		return s.condition(autoscalingv2.ScalingActive).Reason == "ScalingDisabled"
	})
	require.Zero(t, *s.ReplicaSetOf("web").Spec.Replicas)
}

func TestPodAutoscaler_ScalesUpFromZeroOnlyIfItScaledToZero(t *testing.T) {
	s := newScaled(t, autoscalingv2.MetricSpec{Type: autoscalingv2.ExternalMetricSourceType,
		External: &autoscalingv2.ExternalMetricSource{
			Metric: autoscalingv2.MetricIdentifier{Name: "waiting"},
			Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType,
				AverageValue: resource.NewQuantity(10, resource.DecimalSI)}}})
	edit := func(patch string) {
		_, err := s.Client.AutoscalingV2().HorizontalPodAutoscalers("default").Patch(s.Context(), "web", types.MergePatchType,
			[]byte(patch), metav1.PatchOptions{})
		require.NoError(t, err)
	}
	waiting := func(n string) {
		s.metrics.set("/apis/external.metrics.k8s.io/v1beta1/namespaces/default/waiting",
			map[string]any{"timestamp": s.Now().UTC().Format(time.RFC3339), "value": n})
	}
	waiting("0")
	edit(`{"spec":{"minReplicas":0,"behavior":{"scaleDown":{"stabilizationWindowSeconds":0}}}}`)
	s.awaitScale(0)
	s.Reaches("ScaledToZero is set", func() bool {
		return s.condition(autoscalingv2.ScaledToZero).Status == corev1.ConditionTrue
	})
	require.Equal(t, "the HPA controller scaled the workload to zero", s.condition(autoscalingv2.ScaledToZero).Message)

	waiting("25")
	s.awaitScale(3)
	s.Reaches("ScaledToZero is reset", func() bool {
		return s.condition(autoscalingv2.ScaledToZero).Reason == "NotScaledToZero"
	})

	// At zero again, a minimum in the spec scales the target up too.
	waiting("0")
	s.awaitScale(0)
	s.Reaches("ScaledToZero is set", func() bool { // the status is written after the scale
		return s.condition(autoscalingv2.ScaledToZero).Status == corev1.ConditionTrue
	})
	edit(`{"spec":{"minReplicas":2}}`)
	s.awaitScale(2)
	s.AwaitEvent("SuccessfulRescale", "New size: 2; reason: Current number of replicas below Spec.MinReplicas")

	// A scale of zero that another client wrote stays.
	edit(`{"spec":{"minReplicas":0}}`)
	waiting("25")
	s.awaitScale(3)
	s.Reaches("ScaledToZero is reset", func() bool {
		return s.condition(autoscalingv2.ScaledToZero).Reason == "NotScaledToZero"
	})
	_, err := s.Client.AppsV1().ReplicaSets("default").Patch(s.Context(), "web", types.MergePatchType, sized(0),
		metav1.PatchOptions{})
	require.NoError(t, err)
	s.Passing(500*time.Millisecond, "scaling is disabled", func() bool {
		return s.condition(autoscalingv2.ScalingActive).Reason == "ScalingDisabled"
	})
	require.Zero(t, *s.ReplicaSetOf("web").Spec.Replicas)
}

// sized returns the patch that sets a scale.
func sized(replicas int32) []byte { return fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas) }
