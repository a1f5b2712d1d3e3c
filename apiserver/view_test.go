package apiserver_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// Tests of a kind that is served in two versions.

const (
	autoscalers   = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers"
	autoscalersV1 = "/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers"
	coreEvents    = "/api/v1/namespaces/default/events"
	newEvents     = "/apis/events.k8s.io/v1/namespaces/default/events"

	metricsAnnotation = "autoscaling.alpha.kubernetes.io/metrics"
)

func autoscaler(name string) m {
	return m{
		"kind": "HorizontalPodAutoscaler", "apiVersion": "autoscaling/v2", "metadata": m{"name": name},
		"spec": m{
			"maxReplicas": 5, "scaleTargetRef": m{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
			"metrics": []m{
				{"type": "Resource",
					"resource": m{"name": "cpu", "target": m{"type": "Utilization", "averageUtilization": 60}}},
				{"type": "Resource",
					"resource": m{"name": "memory", "target": m{"type": "Utilization", "averageUtilization": 70}}},
			},
		},
	}
}

func TestView_EveryVerbThroughTheOtherVersion(t *testing.T) {
	t.Parallel()
	s := start(t)
	created := s.create(autoscalers, autoscaler("web")).object()
	got := s.get(autoscalersV1 + "/web").ok(http.StatusOK)
	require.Equal(t, "autoscaling/v1", got.at("apiVersion"))
	require.Equal(t, created.GetUID(), got.object().GetUID())
	require.Equal(t, created.GetResourceVersion(), got.object().GetResourceVersion())
	require.EqualValues(t, 60, got.at("spec", "targetCPUUtilizationPercentage"))
	require.Contains(t, got.at("metadata", "annotations", metricsAnnotation), `"memory"`)
	list := s.get(autoscalersV1).ok(http.StatusOK)
	require.Equal(t, "HorizontalPodAutoscalerList", list.at("kind"))
	require.Equal(t, "autoscaling/v1", list.at("items").([]any)[0].(m)["apiVersion"])

	// A write through v1 keeps the fields that v1 does not have.
	for i, kind := range []string{mergePatch, strategicPatch} {
		s.patch(autoscalersV1+"/web", kind, m{"spec": m{"targetCPUUtilizationPercentage": 40 + i}}).ok(http.StatusOK)
	}
	s.patch(autoscalersV1+"/web", jsonPatch, `[{"op":"replace","path":"/spec/maxReplicas","value":7}]`).ok(
		http.StatusOK)
	stored := s.get(autoscalers + "/web")
	require.EqualValues(t, 7, stored.at("spec", "maxReplicas"))
	require.Nil(t, stored.at("metadata", "annotations"))
	targets := map[any]any{}
	for _, metric := range stored.at("spec", "metrics").([]any) {
		r := metric.(m)["resource"].(m)
		targets[r["name"]] = r["target"].(m)["averageUtilization"]
	}
	require.EqualValues(t, map[any]any{"cpu": int64(41), "memory": int64(70)}, targets)

	put := s.get(autoscalersV1 + "/web").object()
	put.Object["spec"].(m)["minReplicas"] = 2
	s.put(autoscalersV1+"/web", put.Object).ok(http.StatusOK)
	s.put(autoscalersV1+"/web", put.Object).refused(http.StatusConflict, metav1.StatusReasonConflict,
		"the object has been modified")
	status := s.get(autoscalersV1 + "/web/status").ok(http.StatusOK).object()
	status.Object["status"] = m{"currentReplicas": 2, "desiredReplicas": 3, "currentCPUUtilizationPercentage": 55}
	s.put(autoscalersV1+"/web/status", status.Object).ok(http.StatusOK)
	current := s.get(autoscalers+"/web").at("status", "currentMetrics").([]any)
	require.EqualValues(t, 55, current[0].(m)["resource"].(m)["current"].(m)["averageUtilization"])

	s.create(autoscalersV1, m{
		"kind": "HorizontalPodAutoscaler", "apiVersion": "autoscaling/v1", "metadata": m{"name": "old"},
		"spec": m{"maxReplicas": 3, "scaleTargetRef": m{"kind": "Deployment", "name": "web"}},
	})
	old := s.get(autoscalers + "/old")
	require.EqualValues(t, 1, old.at("spec", "minReplicas"))
	require.Len(t, old.at("spec", "metrics"), 1, "without a metric, the target is 80 % of CPU")
	s.do(http.MethodPost, autoscalersV1, m{"metadata": m{"name": "bad"}}).refused(http.StatusUnprocessableEntity,
		metav1.StatusReasonInvalid, "spec.maxReplicas")
}

func TestView_ApplyKeepsOwnersOfBothVersions(t *testing.T) {
	t.Parallel()
	s := start(t)
	apply := func(path, manager string, config m) *answer {
		return s.do(http.MethodPatch, path+"?fieldManager="+manager, config, "Content-Type",
			"application/apply-patch+yaml")
	}
	apply(autoscalers+"/web", "new", autoscaler("web")).ok(http.StatusCreated)
	config := m{"kind": "HorizontalPodAutoscaler", "apiVersion": "autoscaling/v1", "metadata": m{"name": "web"},
		"spec": m{"maxReplicas": 8}}
	apply(autoscalersV1+"/web", "old", config).refused(http.StatusConflict, metav1.StatusReasonConflict,
		".spec.maxReplicas")
	config["spec"] = m{"maxReplicas": 5}
	config["metadata"].(m)["labels"] = m{"a": "b"}
	applied := apply(autoscalersV1+"/web", "old", config).ok(http.StatusOK)
	versions := map[string]string{}
	for _, e := range applied.object().GetManagedFields() {
		versions[e.Manager] = e.APIVersion
	}
	require.Equal(t, map[string]string{"new": "autoscaling/v2", "old": "autoscaling/v1"}, versions)
	// Another manager changes through v1 a field that the applier of v2 owns, which then loses it.
	s.patch(autoscalersV1+"/web?fieldManager=third", mergePatch,
		m{"spec": m{"minReplicas": 2, "targetCPUUtilizationPercentage": 10}}).ok(http.StatusOK)
	for _, e := range s.get(autoscalers + "/web").object().GetManagedFields() {
		if e.Manager == "new" {
			require.NotContains(t, string(e.FieldsV1.Raw), "f:metrics")
			require.Contains(t, string(e.FieldsV1.Raw), "f:maxReplicas")
		}
	}
}

func TestView_WatchTableAndPartialOfBothEventVersions(t *testing.T) {
	t.Parallel()
	s := start(t)
	watcher, err := s.typed().EventsV1().Events("default").Watch(t.Context(),
		metav1.ListOptions{FieldSelector: "regarding.name=p,reportingController=test"})
	require.NoError(t, err)
	defer watcher.Stop()
	s.create(coreEvents, m{
		"kind": "Event", "apiVersion": "v1", "metadata": m{"name": "e"}, "reason": "Started", "type": "Normal",
		"message":        "hello",
		"involvedObject": m{"kind": "Pod", "name": "p", "namespace": "default"}, "count": 3,
		"reportingComponent": "test",
	})
	first := <-watcher.ResultChan()
	require.Equal(t, watch.Added, first.Type)
	event := first.Object.(*eventsv1.Event)
	require.Equal(t, "hello", event.Note)
	require.Equal(t, "p", event.Regarding.Name)
	require.EqualValues(t, 3, event.DeprecatedCount)

	for _, path := range []string{coreEvents, newEvents} {
		table := s.get(path, "Accept", asTable).ok(http.StatusOK)
		cells := table.at("rows").([]any)[0].(m)["cells"].([]any)
		require.Equal(t, []any{"Normal", "Started", "pod/p"}, cells[1:4])
		require.Equal(t, "PartialObjectMetadata", s.get(path+"/e", "Accept", asPartial).ok(http.StatusOK).at("kind"))
		require.Contains(t, string(s.get(path+"/e", "Accept", asYAML).ok(http.StatusOK).body), "hello")
	}
	full := s.get(newEvents+"?includeObject=Object", "Accept", asTable).ok(http.StatusOK)
	require.Equal(t, "events.k8s.io/v1", full.at("rows").([]any)[0].(m)["object"].(m)["apiVersion"])
	require.Len(t, s.get(newEvents+"?fieldSelector=regarding.kind%3DPod").at("items"), 1)
	require.Empty(t, s.get(newEvents+"?fieldSelector=regarding.kind%3DNode").at("items"))
	s.get(newEvents+"?fieldSelector=involvedObject.kind%3DPod").refused(http.StatusBadRequest,
		metav1.StatusReasonBadRequest, "field label not supported")

	event.Series = &eventsv1.EventSeries{Count: 2, LastObservedTime: metav1.NowMicro()}
	event.Note = "changed"
	_, err = s.typed().EventsV1().Events("default").Update(t.Context(), event, metav1.UpdateOptions{})
	require.True(t, apierrors.IsInvalid(err), "the new API allows only changes of the series: %v", err)
	event.Note = "hello"
	_, err = s.typed().EventsV1().Events("default").Update(t.Context(), event, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.EqualValues(t, 2, s.get(coreEvents+"/e").at("series", "count"))
	require.Equal(t, watch.Modified, (<-watcher.ResultChan()).Type)
	s.delete(newEvents+"/e", nil).ok(http.StatusOK)
	require.Equal(t, watch.Deleted, (<-watcher.ResultChan()).Type)
	s.gone(coreEvents + "/e")
}

// The hashes and preferred versions were read from a kube-apiserver.
func TestView_DiscoveryNamesTheStoredVersion(t *testing.T) {
	t.Parallel()
	s := start(t)
	hash := func(path, plural string) any {
		for _, r := range s.get(path).ok(http.StatusOK).at("resources").([]any) {
			if r.(m)["name"] == plural {
				return r.(m)["storageVersionHash"]
			}
		}
		return nil
	}
	require.Equal(t, "qwQve8ut294=", hash("/apis/autoscaling/v1", "horizontalpodautoscalers"))
	require.Equal(t, "qwQve8ut294=", hash("/apis/autoscaling/v2", "horizontalpodautoscalers"))
	require.Equal(t, "r2yiGXH7wu8=", hash("/api/v1", "events"))
	require.Equal(t, "r2yiGXH7wu8=", hash("/apis/events.k8s.io/v1", "events"))
	require.Equal(t, "autoscaling/v2", s.get("/apis/autoscaling").at("preferredVersion", "groupVersion"))
}
