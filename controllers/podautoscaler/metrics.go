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

// metricsClient asks the three metrics APIs. They are plain JSON, of which little is needed: the documents are read
// into the types below, and no other client library is.
type metricsClient struct {
	client func() rest.Interface
	clock  clock.PassiveClock
	// recheck is how long the version of the custom metrics API is remembered.
	recheck time.Duration

	mu      sync.Mutex
	version string // of the custom metrics API
	since   time.Time
}

// podMetric is one number of one pod, in thousandths, as it was at a time over a window.
type podMetric struct {
	value  int64
	at     time.Time
	window time.Duration
}

type podMetrics map[string]podMetric // by the pod's name

// podMetricsList is metrics.k8s.io/v1beta1's.
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

// metricValueList is that of custom.metrics.k8s.io/v1beta2, of its v1beta1 and of external.metrics.k8s.io/v1beta1, as
// far as they are alike.
type metricValueList struct {
	Items []struct {
		DescribedObject corev1.ObjectReference `json:"describedObject"`
		Timestamp       metav1.Time            `json:"timestamp"`
		WindowSeconds   *int64                 `json:"windowSeconds"` // v1beta2 and external
		Window          *int64                 `json:"window"`
		Value           resource.Quantity      `json:"value"`
	} `json:"items"`
}

// defaultWindow is what a metric without a window is taken to be over.
const defaultWindow = time.Minute

var errNoMetrics = errors.New("no metrics returned")

// get reads a document. Those parts of the path that an autoscaler names must be one segment each; the first is ours.
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

// resource is what the pods use of a resource, of one container or of all. A pod of which one container has no number
// is left out.
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

// customVersions are the versions of the custom metrics API that can be read, the newest first.
var customVersions = []string{"v1beta2", "v1beta1"}

// customVersion is the version of the custom metrics API that the API server prefers, or else the newest that it
// serves, of those that can be read.
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
		at := slices.IndexFunc(customVersions, served)
		if at < 0 {
			return "", errors.New("no known available metric versions found")
		}
		version = customVersions[at]
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.version, m.since = version, now
	return version, nil
}

// custom reads from the custom metrics API.
func (m *metricsClient) custom(ctx context.Context, path []string, selector labels.Selector,
	metric *metav1.LabelSelector) (*metricValueList, error) {
	of, err := metav1.LabelSelectorAsSelector(metric)
	if err != nil {
		return nil, err
	}
	params := map[string]string{}
	if metric != nil {
		params["metricLabelSelector"] = of.String()
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

// pods is a metric of each pod.
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

// object is a metric of one object of the namespace, or of the namespace itself; resource is its plural with
// its group. In thousandths.
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

// external are the values of a metric that belongs to no object, in thousandths.
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
