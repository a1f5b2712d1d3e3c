package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

func TestConfigz_ShowsTheConfigurationOfTheComponent(t *testing.T) {
	t.Parallel()
	c := &controllersFlags{}
	for _, component := range []struct {
		handler   http.Handler
		name      string
		kind, api string
	}{
		{c.configz(), "kubecontrollermanager.config.k8s.io", "KubeControllerManagerConfiguration",
			"kubecontrollermanager.config.k8s.io/v1alpha1"},
		{(&schedulerFlags{}).configz(), "componentconfig", "KubeSchedulerConfiguration",
			"kubescheduler.config.k8s.io/v1"},
	} {
		routes := (&endpointFlags{}).routes(prometheus.NewRegistry(),
			map[string]http.Handler{configzPath: component.handler})
		w := httptest.NewRecorder()
		routes.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/configz", nil))
		require.Equal(t, http.StatusOK, w.Code)
		require.Equal(t, "application/json", w.Header().Get("Content-Type"))
		var configs map[string]map[string]any
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &configs))
		require.Equal(t, component.kind, configs[component.name]["kind"])
		require.Equal(t, component.api, configs[component.name]["apiVersion"])
	}
}
