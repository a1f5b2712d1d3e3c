package zpages

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/version"
)

var info = version.Info{Major: "1", Minor: "9", EmulationMajor: "1", EmulationMinor: "9", GitVersion: "v1.9.2",
	GoVersion: "go1.26"}

func get(t *testing.T, handle http.HandlerFunc, accept string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	if accept != "" {
		r.Header.Set("Accept", accept)
	}
	w := httptest.NewRecorder()
	handle(w, r)
	return w
}

func TestStatusz(t *testing.T) {
	t.Parallel()
	c := &Component{Name: "kube-scheduler", Version: info, Start: time.Now().Add(-3723 * time.Second),
		Paths: []string{"/healthz", "/metrics"}}
	for _, accept := range []string{"", "*/*", "text/plain", "application/json;q=0.9,text/*"} {
		w := get(t, c.Statusz, accept)
		require.Equal(t, http.StatusOK, w.Code, accept)
		require.Contains(t, w.Body.String(), "\nkube-scheduler statusz\nWarning: This endpoint is not meant to be")
		require.Contains(t, w.Body.String(), "Up: 1 hr 02 min 0")
		require.Contains(t, w.Body.String(), "Emulation version: 1.9\nPaths: /healthz /metrics\n")
	}
	w := get(t, c.Statusz, "application/json;g=config.k8s.io;v=v1beta1;as=Statusz")
	var object map[string]any
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &object))
	require.Equal(t, "Statusz", object["kind"])
	require.Equal(t, "config.k8s.io/v1beta1", object["apiVersion"])
	require.InDelta(t, 3723, object["uptimeSeconds"], 600)
	require.Equal(t, []any{"/healthz", "/metrics"}, object["paths"])
}

func TestFlagz(t *testing.T) {
	t.Parallel()
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	fs.Int("nodes", 3, "")
	fs.String("data-dir", "d", "")
	require.NoError(t, fs.Parse([]string{"--nodes=5"}))
	c := &Component{Name: "kubelet", Version: info, Flags: Flags(fs)}
	require.Contains(t, get(t, c.Flagz, "").Body.String(), "only.\n\ndata-dir=d\nnodes=5\n")
	w := get(t, c.Flagz, "application/yaml;g=config.k8s.io;v=v1alpha1;as=Flagz")
	require.Contains(t, w.Body.String(), "flags:\n  data-dir: d\n  nodes: \"5\"\n")
	require.Contains(t, w.Header().Get("Warning"), "deprecated")
}

func TestPages_RefuseOtherFormats(t *testing.T) {
	t.Parallel()
	c := &Component{Name: "kubelet", Version: info}
	for _, accept := range []string{"application/json", "application/json;g=config.k8s.io;v=v1;as=Flagz",
		"application/json;g=config.k8s.io;v=v1beta1;as=Statusz", "application/json;g=other;v=v1beta1;as=Flagz", "image/png"} {
		require.Equal(t, http.StatusNotAcceptable, get(t, c.Flagz, accept).Code, accept)
	}
}

func TestBuildInfo(t *testing.T) {
	t.Parallel()
	require.InDelta(t, 1, testutil.ToFloat64(BuildInfo(info)), 0)
}
