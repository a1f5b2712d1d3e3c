package podautoscaler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

// metricsClient reads the three metrics APIs. It needs few fields of their JSON, so it decodes them into the types
// below and uses no further client library.
type metricsClient struct {
	client func() rest.Interface
	clock  clock.PassiveClock
	// recheck is how long the version of the custom metrics API is remembered.
	recheck time.Duration

	mu      sync.Mutex
	version string // of the custom metrics API
	since   time.Time
}

// podMetric is the value of a metric of one pod, measured over a window that ended at timestamp.
type podMetric struct {
	value     int64 // in thousandths
	timestamp time.Time
	window    time.Duration
}

type podMetrics map[string]podMetric // by the pod's name

// podMetricsList has the fields that are read from PodMetricsList of metrics.k8s.io/v1beta1.
type podMetricsList struct {
	Items []struct {
		metav1.ObjectMeta `json:"metadata"`
		Timestamp         metav1.Time     `json:"timestamp"`
		Window            metav1.Duration `json:"window"`
		Containers        []struct {
			Name  string              `json:"name"`
			Usage corev1.ResourceList `json:"usage"`
		} `json:"containers"`
	} `json:"items"`
}

// metricValueList has the common fields of the lists of custom.metrics.k8s.io/v1beta2 and v1beta1 and of
// external.metrics.k8s.io/v1beta1.
type metricValueList struct {
	Items []struct {
		DescribedObject corev1.ObjectReference `json:"describedObject"`
		Timestamp       metav1.Time            `json:"timestamp"`
		WindowSeconds   *int64                 `json:"windowSeconds"` // v1beta2 and external
		Window          *int64                 `json:"window"`
		Value           resource.Quantity      `json:"value"`
	} `json:"items"`
}

// defaultWindow is the assumed window of a metric that names none.
const defaultWindow = time.Minute

var errNoMetrics = errors.New("no metrics returned")

// get reads a document. path[0] is a constant prefix. The other parts come from the autoscaler, so each must be a
// single path segment.
func (m *metricsClient) get(ctx context.Context, into any, path []string, params map[string]string) error {
	for _, part := range path[1:] {
		if !controller.IsSegment(part) {
			return fmt.Errorf("no metric is called %q", part)
		}
	}
	r := m.client().Get().AbsPath(path...).SetHeader("Accept", "application/json")
	for name, value := range params {
		if value != "" {
			r = r.Param(name, value)
		}
	}
	body, err := r.DoRaw(ctx)
	if err != nil {
		return err
	}
	return json.Unmarshal(body, into)
}

// resource returns the pods' usage of a resource: of one container, or of the whole pod if container is empty. It
// leaves out a pod if one of these containers has no value.
func (m *metricsClient) resource(ctx context.Context, namespace string, selector labels.Selector,
	name corev1.ResourceName, container string) (podMetrics, error) {
	var list podMetricsList
	err := m.get(ctx, &list, []string{"/apis/metrics.k8s.io/v1beta1/namespaces", namespace, "pods"},
		map[string]string{"labelSelector": selector.String()})
	if err != nil {
		return nil, fmt.Errorf("unable to fetch metrics from resource metrics API: %w", err)
	}
	if len(list.Items) == 0 {
		return nil, fmt.Errorf("%w from resource metrics API", errNoMetrics)
	}
	found := podMetrics{}
	for i := range list.Items {
		pod := &list.Items[i]
		var sum int64
		complete, seen := true, container == ""
		for _, c := range pod.Containers {
			if container != "" && c.Name != container {
				continue
			}
			usage, ok := c.Usage[name]
			complete, seen = complete && ok, true
			sum = plus(sum, milli(usage))
		}
		if complete && seen && len(pod.Containers) > 0 {
			found[pod.Name] = podMetric{sum, pod.Timestamp.Time, pod.Window.Duration}
		}
	}
	if container != "" && len(found) == 0 {
		return nil, fmt.Errorf("container %s not present in metrics for any pod", container)
	}
	return found, nil
}

const customGroup = "custom.metrics.k8s.io"

// customVersions are the supported versions of the custom metrics API, newest first.
var customVersions = []string{"v1beta2", "v1beta1"}

// customVersion returns the version of the custom metrics API to use: the preferred version of the API server, if it is
// supported, else the newest supported version that it serves. The result is cached for m.recheck.
func (m *metricsClient) customVersion(ctx context.Context) (string, error) {
	now := m.clock.Now()
	m.mu.Lock()
	version, fresh := m.version, now.Sub(m.since) < m.recheck
	m.mu.Unlock()
	if version != "" && fresh {
		return version, nil
	}
	var group metav1.APIGroup
	err := m.get(ctx, &group, []string{"/apis/" + customGroup}, nil)
	if apierrors.IsNotFound(err) {
		return "", fmt.Errorf("no custom metrics API (%s) registered", customGroup)
	}
	if err != nil {
		return "", err
	}
	served := func(version string) bool {
		return slices.ContainsFunc(group.Versions, func(v metav1.GroupVersionForDiscovery) bool {
			return v.Version == version
		})
	}
	version = group.PreferredVersion.Version
	if !slices.Contains(customVersions, version) {
		i := slices.IndexFunc(customVersions, served)
		if i < 0 {
			return "", errors.New("no known available metric versions found")
		}
		version = customVersions[i]
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.version, m.since = version, now
	return version, nil
}

// custom reads a metric from the custom metrics API. selector selects objects, metric selects series of the metric;
// each may be nil.
func (m *metricsClient) custom(ctx context.Context, path []string, selector labels.Selector,
	metric *metav1.LabelSelector) (*metricValueList, error) {
	metricSelector, err := metav1.LabelSelectorAsSelector(metric)
	if err != nil {
		return nil, err
	}
	params := map[string]string{}
	if metric != nil {
		params["metricLabelSelector"] = metricSelector.String()
	}
	if selector != nil {
		params["labelSelector"] = selector.String()
	}
	version, err := m.customVersion(ctx)
	var list metricValueList
	if err == nil {
		err = m.get(ctx, &list, append([]string{"/apis/" + customGroup, version, "namespaces"}, path...), params)
	}
	if err != nil {
		return nil, fmt.Errorf("unable to fetch metrics from custom metrics API: %w", err)
	}
	return &list, nil
}

// pods returns the values of a metric for each selected pod.
func (m *metricsClient) pods(ctx context.Context, namespace string, selector labels.Selector,
	metric autoscalingv2.MetricIdentifier) (podMetrics, error) {
	list, err := m.custom(ctx, []string{namespace, "pods", "*", metric.Name}, selector, metric.Selector)
	if err != nil {
		return nil, err
	}
	if len(list.Items) == 0 {
		return nil, fmt.Errorf("%w from custom metrics API", errNoMetrics)
	}
	found := podMetrics{}
	for i := range list.Items {
		item := &list.Items[i]
		window := defaultWindow
		for _, seconds := range []*int64{item.WindowSeconds, item.Window} {
			if seconds != nil {
				window = time.Duration(*seconds) * time.Second
			}
		}
		found[item.DescribedObject.Name] = podMetric{milli(item.Value), item.Timestamp.Time, window}
	}
	return found, nil
}

// object returns a metric of one object of the namespace, or of the namespace itself, in thousandths. resource is the
// plural name with the group.
func (m *metricsClient) object(ctx context.Context, namespace, resource, name string,
	metric autoscalingv2.MetricIdentifier) (int64, error) {
	path := []string{namespace, resource, name, metric.Name}
	if resource == "namespaces" {
		path = []string{namespace, "metrics", metric.Name}
	}
	list, err := m.custom(ctx, path, nil, metric.Selector)
	if err != nil {
		return 0, err
	}
	if n := len(list.Items); n != 1 {
		return 0, fmt.Errorf("unable to fetch metrics from custom metrics API: the custom metrics API server returned "+
			"%d results when we asked for exactly one", n)
	}
	return milli(list.Items[0].Value), nil
}

// external returns the sum of the values of an external metric, in thousandths.
func (m *metricsClient) external(ctx context.Context, namespace string, metric autoscalingv2.MetricIdentifier) (
	sum int64, err error) {
	params := map[string]string{}
	if metric.Selector != nil {
		selector, err := metav1.LabelSelectorAsSelector(metric.Selector)
		if err != nil {
			return 0, err
		}
		params["labelSelector"] = selector.String()
	}
	var list metricValueList
	if err := m.get(ctx, &list, []string{"/apis/external.metrics.k8s.io/v1beta1/namespaces", namespace, metric.Name},
		params); err != nil {
		return 0, fmt.Errorf("unable to fetch metrics from external metrics API: %w", err)
	}
	if len(list.Items) == 0 {
		return 0, fmt.Errorf("%w from external metrics API", errNoMetrics)
	}
	for i := range list.Items {
		sum = plus(sum, milli(list.Items[i].Value))
	}
	return sum, nil
}
