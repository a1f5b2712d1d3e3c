package controllers_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/controllers"
)

func TestLeaseHousekeeping_DeletesWhatNobodyRenews(t *testing.T) {
	t.Parallel()
	c := newSettled(t, controllers.Settings{}, "lease-housekeeping-controller")
	lease := func(namespace, name string, renewed time.Time, labels map[string]string) {
		at, seconds := metav1.NewMicroTime(renewed), int32(40)
		_, err := c.client.CoordinationV1().Leases(namespace).Create(c.ctx, &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: &name, RenewTime: &at, LeaseDurationSeconds: &seconds},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	gone := func(namespace, name string) bool {
		_, err := c.client.CoordinationV1().Leases(namespace).Get(c.ctx, name, metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			require.NoError(t, err)
		}
		return err != nil
	}
	server := map[string]string{"apiserver.kubernetes.io/identity": "kube-apiserver"}
	start, old := c.Now(), c.Now().Add(-2*time.Hour)
	c.createNodeNamed("silent", nil)
	lease("kube-system", "apiserver-new", start, server)
	lease("kube-system", "leader", old, nil)
	lease("kube-node-lease", "silent", old, nil)
	lease("kube-node-lease", "fresh", start, nil)
	lease("kube-system", "apiserver-old", old, server)
	lease("kube-node-lease", "gone", old, nil)
	c.reaches("the old ones go", func() bool { return gone("kube-system", "apiserver-old") && gone("kube-node-lease", "gone") })
	for _, kept := range [][2]string{{"kube-system", "apiserver-new"}, {"kube-system", "leader"}, {"kube-node-lease", "silent"}, {"kube-node-lease", "fresh"}} {
		require.False(t, gone(kept[0], kept[1]), "%v", kept)
	}
	// Who renews stays, also past the time that was its end once.
	l, err := c.client.CoordinationV1().Leases("kube-system").Get(c.ctx, "apiserver-new", metav1.GetOptions{})
	require.NoError(t, err)
	l.Spec.RenewTime = new(metav1.NewMicroTime(start.Add(50 * time.Minute)))
	_, err = c.client.CoordinationV1().Leases("kube-system").Update(c.ctx, l, metav1.UpdateOptions{})
	require.NoError(t, err)
	c.passing(time.Minute, "an hour later", func() bool { return gone("kube-node-lease", "fresh") })
	c.passing(time.Minute, "and another", func() bool { return gone("kube-system", "apiserver-new") })
	require.Greater(t, c.Since(start), 110*time.Minute)
	require.False(t, gone("kube-node-lease", "silent"))
}

func TestDisruption_TakesBackATargetThatWasNotDeleted(t *testing.T) {
	t.Parallel()
	c := newSettled(t, controllers.Settings{}, "disruption")
	marked := func(name, reason string) {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}}
		pod.Spec.Containers = []corev1.Container{{Name: "c", Image: "i"}}
		pod, err := c.client.CoreV1().Pods("default").Create(c.ctx, pod, metav1.CreateOptions{})
		require.NoError(t, err)
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: reason, LastTransitionTime: metav1.NewTime(c.Now()),
		})
		_, err = c.client.CoreV1().Pods("default").UpdateStatus(c.ctx, pod, metav1.UpdateOptions{})
		require.NoError(t, err)
	}
	status := func(name string) corev1.ConditionStatus {
		pod, err := c.client.CoreV1().Pods("default").Get(c.ctx, name, metav1.GetOptions{})
		require.NoError(t, err)
		for _, condition := range pod.Status.Conditions {
			if condition.Type == corev1.DisruptionTarget {
				return condition.Status
			}
		}
		return ""
	}
	start := c.Now()
	marked("spared", "PreemptionByScheduler")
	marked("ending", "TerminationByKubelet")
	c.passing(time.Second, "taken back", func() bool { return status("spared") == corev1.ConditionFalse })
	require.GreaterOrEqual(t, c.Since(start), 2*time.Minute-time.Second) // the API's times are whole seconds
	require.Equal(t, corev1.ConditionTrue, status("ending"))
}

func TestDebug_TheCollectorShowsItsGraphWhileItRuns(t *testing.T) {
	t.Parallel()
	c := newSettled(t, controllers.Settings{}, "ttl")
	c.stop()
	debug := &controllers.Debug{}
	get := func() *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		debug.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/debug/controllers/garbagecollector/graph?format=json", nil))
		return w
	}
	require.Equal(t, http.StatusNotFound, get().Code)
	stop := c.startControllers(controllers.Options{Controllers: []string{"garbagecollector"}, Debug: debug})
	owner, err := c.client.CoreV1().ConfigMaps("default").Create(c.ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	owned := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owned"}}
	owned.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name, UID: owner.UID}}
	owned, err = c.client.CoreV1().ConfigMaps("default").Create(c.ctx, owned, metav1.CreateOptions{})
	require.NoError(t, err)
	c.eventually("both are shown", func() bool {
		w := get()
		var graph struct {
			Edges []struct{ Dependent, Owner string }
		}
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &graph))
		for _, e := range graph.Edges {
			if e.Dependent == string(owned.UID) && e.Owner == string(owner.UID) {
				return true
			}
		}
		return false
	})
	stop()
	require.Equal(t, http.StatusNotFound, get().Code, "a standby has no graph")
}
