package controllers_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/controllers"
	"github.com/coxswain-dev/coxswain/controllers/lib/controllertest"
)

func TestDebug_ServesTheCollectorsGraphWhileItRuns(t *testing.T) {
	t.Parallel()
	c := controllertest.NewClockedWith(t, controllers.Settings{}, "ttl")
	c.StopControllers()
	debug := &controllers.Debug{}
	get := func() *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		debug.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/debug/controllers/garbagecollector/graph?format=json",
			nil))
		return w
	}
	require.Equal(t, http.StatusNotFound, get().Code)
	stop := c.StartControllers(controllers.Options{Controllers: []string{"garbagecollector"}, Debug: debug})
	owner, err := c.Client.CoreV1().ConfigMaps("default").Create(c.Context(),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	owned := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owned"}}
	owned.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name,
		UID: owner.UID}}
	owned, err = c.Client.CoreV1().ConfigMaps("default").Create(c.Context(), owned, metav1.CreateOptions{})
	require.NoError(t, err)
	c.Eventually("both are shown", func() bool {
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
