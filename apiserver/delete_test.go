package apiserver_test

import (
	"math"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestDelete_AnswersWithAStatusThatNamesTheObject(t *testing.T) {
	t.Parallel()
	s := start(t)
	created := s.create(deployments, deployment("web", 1)).object()
	deleted := s.delete(deployments+"/web", nil).ok(http.StatusOK)
	require.Equal(t, "Success", deleted.at("status"))
	require.Equal(t, m{"name": "web", "group": "apps", "kind": "deployments", "uid": string(created.GetUID())},
		deleted.at("details"))
	s.gone(deployments + "/web")
}

// scheduled creates a pod that is assigned to a node.
func scheduled(s *server, name string) {
	s.t.Helper()
	s.create(pods, pod(name))
	s.do(http.MethodPost, pods+"/"+name+"/binding",
		m{"metadata": m{"name": name}, "target": m{"kind": "Node", "name": "n1"}}).ok(http.StatusCreated)
}

func TestDelete_ScheduledPodIsGivenItsGracePeriod(t *testing.T) {
	t.Parallel()
	s := start(t)
	scheduled(s, "a")
	marked := s.delete(pods+"/a", nil).ok(http.StatusOK).object()
	require.Equal(t, "Pod", marked.GetKind())
	require.NotNil(t, marked.GetDeletionTimestamp())
	require.EqualValues(t, 30, *marked.GetDeletionGracePeriodSeconds())

	again := s.delete(pods+"/a", nil).ok(http.StatusOK).object()
	require.Equal(t, marked, again, "a second delete has no effect")
	longer := s.delete(pods+"/a?gracePeriodSeconds=60", nil).ok(http.StatusOK).object()
	require.Equal(t, marked, longer, "a grace period is never made longer")
	shorter := s.delete(pods+"/a", m{"gracePeriodSeconds": 10}).ok(http.StatusOK).object()
	require.EqualValues(t, 10, *shorter.GetDeletionGracePeriodSeconds())
	require.True(t, shorter.GetDeletionTimestamp().Time.Before(marked.GetDeletionTimestamp().Time))

	s.delete(pods+"/a", m{"gracePeriodSeconds": 0}).ok(http.StatusOK)
	s.gone(pods + "/a")
}

func TestDelete_LongGracePeriodIsKeptByASecondDelete(t *testing.T) {
	t.Parallel()
	s := start(t)
	scheduled(s, "a")
	marked := s.delete(pods+"/a?gracePeriodSeconds=600", nil).ok(http.StatusOK).object()
	require.EqualValues(t, 600, *marked.GetDeletionGracePeriodSeconds())
	require.Equal(t, marked, s.delete(pods+"/a", nil).ok(http.StatusOK).object())
}

func TestDelete_GracePeriodThatNeverEndsEndsLate(t *testing.T) {
	t.Parallel()
	s := start(t)
	scheduled(s, "a")
	marked := s.delete(pods+"/a?gracePeriodSeconds=9223372036854775807", nil).ok(http.StatusOK).object()
	require.EqualValues(t, math.MaxInt64, *marked.GetDeletionGracePeriodSeconds())
	require.Greater(t, time.Until(marked.GetDeletionTimestamp().Time), 290*365*24*time.Hour)
	shorter := s.delete(pods+"/a?gracePeriodSeconds=600", nil).ok(http.StatusOK).object()
	require.InDelta(t, 600, time.Until(shorter.GetDeletionTimestamp().Time).Seconds(), 300)
}

func TestDelete_PodThatNoNodeRunsIsGoneAtOnce(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.create(pods, pod("unscheduled"))
	s.delete(pods+"/unscheduled", nil).ok(http.StatusOK)
	s.gone(pods + "/unscheduled")
	scheduled(s, "ended")
	s.patch(pods+"/ended/status", mergePatch, `{"status":{"phase":"Succeeded"}}`).ok(http.StatusOK)
	s.delete(pods+"/ended", nil).ok(http.StatusOK)
	s.gone(pods + "/ended")
	scheduled(s, "forced")
	s.delete(pods+"/forced?gracePeriodSeconds=0", nil).ok(http.StatusOK)
	s.gone(pods + "/forced")
}

func TestDelete_WaitsForFinalizers(t *testing.T) {
	t.Parallel()
	s := start(t)
	for name, release := range map[string]func(path string) *answer{
		"patch":  func(p string) *answer { return s.patch(p, mergePatch, `{"metadata":{"finalizers":null}}`) },
		"update": func(p string) *answer { return s.put(p, configMap("update")) },
	} {
		path := configMaps + "/" + name
		s.create(configMaps, with(configMap(name), "finalizers", []string{"example.com/hold"}))
		w := s.watch(configMaps + "?watch=1&fieldSelector=metadata.name=" + name)
		w.expect("ADDED", name)
		marked := s.delete(path, nil).ok(http.StatusOK).object()
		require.NotNil(t, marked.GetDeletionTimestamp())
		require.EqualValues(t, 0, *marked.GetDeletionGracePeriodSeconds())
		w.expect("MODIFIED", name)
		require.Equal(t, marked, s.delete(path, nil).ok(http.StatusOK).object(), "still there")
		released := release(path).ok(http.StatusOK).object()
		require.Empty(t, released.GetFinalizers(), "the answer is the last object")
		w.expect("DELETED", name)
		s.gone(path)
	}
}

func TestDelete_PropagationPolicySetsFinalizer(t *testing.T) {
	t.Parallel()
	s := start(t)
	for name, c := range map[string]struct {
		options m
		want    []string
	}{
		"foreground": {m{"propagationPolicy": "Foreground"},
			[]string{"example.com/hold", metav1.FinalizerDeleteDependents}},
		"orphan": {m{"propagationPolicy": "Orphan"},
			[]string{"example.com/hold", metav1.FinalizerOrphanDependents}},
		"orphan-dependents": {m{"orphanDependents": true},
			[]string{"example.com/hold", metav1.FinalizerOrphanDependents}},
		"background": {m{"propagationPolicy": "Background"}, []string{"example.com/hold"}},
		"nothing":    {m{}, []string{"example.com/hold"}},
	} {
		s.create(deployments, with(deployment(name, 1), "finalizers", []string{"example.com/hold"}))
		marked := s.delete(deployments+"/"+name, c.options).ok(http.StatusOK).object()
		require.ElementsMatch(t, c.want, marked.GetFinalizers(), name)
	}
	s.create(deployments, deployment("alone", 1))
	marked := s.delete(deployments+"/alone?propagationPolicy=Foreground", nil).ok(http.StatusOK).object()
	require.Equal(t, []string{metav1.FinalizerDeleteDependents}, marked.GetFinalizers())
	s.delete(deployments+"/alone", m{"propagationPolicy": "Background"}).ok(http.StatusOK)
	s.gone(deployments + "/alone")
}

func TestDelete_Preconditions(t *testing.T) {
	t.Parallel()
	s := start(t)
	created := s.create(configMaps, configMap("a")).object()
	s.delete(configMaps+"/a", m{"preconditions": m{"uid": "other"}}).
		refused(http.StatusConflict, metav1.StatusReasonConflict,
			"the UID in the precondition (other) does not match the UID in record ("+string(created.GetUID())+")")
	s.delete(configMaps+"/a", m{"preconditions": m{"resourceVersion": "1"}}).
		refused(http.StatusConflict, metav1.StatusReasonConflict, "the ResourceVersion in the precondition (1) "+
			"does not match the ResourceVersion in record ("+created.GetResourceVersion()+")")
	s.delete(configMaps+"/a",
		m{"preconditions": m{"uid": created.GetUID(), "resourceVersion": created.GetResourceVersion()}}).ok(
		http.StatusOK)
	s.gone(configMaps + "/a")
}

func TestDelete_RefusesBadOptions(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.create(configMaps, configMap("a"))
	for name, c := range map[string]struct {
		query string
		body  any
		code  int
	}{
		"unknown policy":         {"?propagationPolicy=Explode", nil, 422},
		"policy and orphan":      {"", m{"propagationPolicy": "Orphan", "orphanDependents": true}, 422},
		"grace that is a word":   {"?gracePeriodSeconds=soon", nil, 400},
		"dry run that is a word": {"", m{"dryRun": []string{"Some"}}, 422},
		"another kind":           {"", m{"kind": "Pod", "apiVersion": "v1"}, 400},
		"malformed":              {"", `{"preconditions":`, 400},
		"a list":                 {"", `[]`, 400},
	} {
		answered := s.do(http.MethodDelete, configMaps+"/a"+c.query, c.body)
		require.Equal(t, c.code, answered.code, "%s: %s", name, answered.body)
		s.get(configMaps + "/a").ok(http.StatusOK)
	}
}

func TestDeleteCollection_FollowsSelectors(t *testing.T) {
	t.Parallel()
	s := start(t)
	for name, app := range map[string]string{"a": "x", "b": "x", "c": "y", "d": "y"} {
		s.create(configMaps, with(configMap(name), "labels", m{"app": app}))
	}
	s.create("/api/v1/namespaces/kube-system/configmaps", with(configMap("e"), "labels", m{"app": "x"}))
	deleted := s.delete(configMaps+"?labelSelector=app%3Dx", nil).ok(http.StatusOK)
	require.Equal(t, "ConfigMapList", deleted.at("kind"))
	require.Equal(t, []string{"a", "b"}, deleted.names())
	require.Equal(t, []string{"c", "d"}, s.get(configMaps).names())
	s.delete(configMaps+"?fieldSelector=metadata.name!%3Dd", nil).ok(http.StatusOK)
	require.Equal(t, []string{"d"}, s.get(configMaps).names())
	s.delete(configMaps, nil).ok(http.StatusOK)
	require.Empty(t, s.get(configMaps).names())
	s.get("/api/v1/namespaces/kube-system/configmaps/e").ok(http.StatusOK)
	s.delete("/api/v1/configmaps", nil).refused(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed, "")
	s.delete(namespaces, nil).refused(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed, "")
}

func TestDeleteCollection_MarksObjectsWithFinalizers(t *testing.T) {
	t.Parallel()
	s := start(t)
	scheduled(s, "running")
	s.create(pods, pod("pending"))
	s.delete(pods, nil).ok(http.StatusOK)
	left := s.get(pods)
	require.Equal(t, []string{"running"}, left.names())
	require.NotNil(t, s.get(pods+"/running").object().GetDeletionTimestamp())
}
