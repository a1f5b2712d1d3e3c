package apiserver_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/apiserver/componentstatus"
	"github.com/coxswain-dev/coxswain/testenv"
)

// An older scheduler posts Bindings to the resource bindings.
func TestBindings_PutPodsOnNodes(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.create(pods, pod("a"))
	const bindings = "/api/v1/namespaces/default/bindings"
	bind := func(pod, node string) *answer {
		return s.do(http.MethodPost, bindings, m{"apiVersion": "v1", "kind": "Binding", "metadata": m{"name": pod},
			"target": m{"kind": "Node", "name": node}})
	}
	bind("none", "n").refused(http.StatusNotFound, metav1.StatusReasonNotFound, `pods "none" not found`)
	bind("", "n").refused(http.StatusBadRequest, metav1.StatusReasonBadRequest, "name")
	bind("a", "").refused(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "target.name")
	s.do(http.MethodGet, bindings, nil).refused(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed, "")
	require.Equal(t, "Success", bind("a", "n").ok(http.StatusCreated).at("status"))
	require.Equal(t, "n", s.get(pods+"/a").at("spec", "nodeName"))
	bind("a", "m").refused(http.StatusConflict, metav1.StatusReasonConflict, `pod a is already assigned to node "n"`)
	require.Equal(t, http.StatusForbidden,
		s.as("jane").do(http.MethodPost, bindings, m{"metadata": m{"name": "a"}, "target": m{"name": "m"}}).code)
}

func TestComponentStatus_AsksTheComponents(t *testing.T) {
	t.Parallel()
	healthz := func(code int) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/healthz" {
				code = http.StatusNotFound
			}
			w.WriteHeader(code)
			_, _ = fmt.Fprint(w, map[int]string{http.StatusOK: "ok"}[code])
		})
	}
	address := func(s *httptest.Server) string {
		t.Cleanup(s.Close)
		return s.Listener.Addr().String()
	}
	serve := func(manager, scheduler string) *server {
		return connect(t,
			testenv.Start(t, testenv.APIServerOnly(),
				testenv.WithComponents(map[string]string{"controller-manager": manager, "scheduler": scheduler})))
	}
	const path = "/api/v1/componentstatuses"
	table := func(s *server, path string) (rows []string) {
		a := s.get(path, "Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").ok(http.StatusOK)
		for _, row := range a.at("rows").([]any) {
			rows = append(rows, fmt.Sprint(row.(m)["cells"]))
		}
		return rows
	}
	well := serve(address(httptest.NewTLSServer(healthz(http.StatusOK))),
		address(httptest.NewServer(healthz(http.StatusOK))))
	require.Equal(t, []string{"[controller-manager Healthy ok ]", "[etcd-0 Healthy ok ]", "[scheduler Healthy ok ]"},
		table(well, path))
	require.Equal(t, []string{"[scheduler Healthy ok ]"}, table(well, path+"?fieldSelector=metadata.name%3Dscheduler"))
	require.Empty(t, table(well, path+"?labelSelector=a"))
	res := well.send(http.MethodGet, path+"/etcd-0", nil)
	require.NoError(t, res.Body.Close())
	require.Contains(t, res.Header.Get("Warning"), "v1 ComponentStatus is deprecated in v1.19+")
	well.get(path+"/other").refused(http.StatusNotFound, metav1.StatusReasonNotFound,
		`componentstatuses "other" not found`)
	well.do(http.MethodPost, path, m{"metadata": m{"name": "a"}}).refused(http.StatusMethodNotAllowed,
		metav1.StatusReasonMethodNotAllowed, "")

	ill := serve("127.0.0.1:1", address(httptest.NewServer(healthz(http.StatusInternalServerError))))
	rows := table(ill, path)
	require.Len(t, rows, 3)
	require.True(t, strings.HasPrefix(rows[0], "[controller-manager Unhealthy") &&
		strings.Contains(rows[0], "connection refused"), rows[0])
	require.Equal(t, "[scheduler Unhealthy  HTTP probe failed with statuscode: 500]", rows[2])

	within := serve(componentstatus.InProcess, componentstatus.InProcess)
	require.Equal(t, []string{"[controller-manager Healthy ok ]", "[etcd-0 Healthy ok ]", "[scheduler Healthy ok ]"},
		table(within, path))
}
