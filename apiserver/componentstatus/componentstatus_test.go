package componentstatus_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/coxswain-dev/coxswain/apiserver/componentstatus"
	"github.com/coxswain-dev/coxswain/storage"
)

func TestComponents_AreAskedOverTLSOrWithout(t *testing.T) {
	t.Parallel()
	healthz := func(code int, body string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/healthz" {
				code = http.StatusNotFound
			}
			w.WriteHeader(code)
			_, _ = w.Write([]byte(body))
		})
	}
	serve := func(start func(http.Handler) *httptest.Server, h http.Handler) string {
		s := start(h)
		t.Cleanup(s.Close)
		return s.Listener.Addr().String()
	}
	for name, c := range map[string]struct {
		address, message, failure string
	}{
		"TLS":        {serve(httptest.NewTLSServer, healthz(http.StatusOK, "ok")), "ok", ""},
		"plain":      {serve(httptest.NewServer, healthz(http.StatusOK, "ok")), "ok", ""},
		"in process": {componentstatus.InProcess, "ok", ""},
		"ill": {serve(httptest.NewServer, healthz(http.StatusInternalServerError, "no leader")), "no leader",
			"HTTP probe failed with statuscode: 500"},
		"talkative": {serve(httptest.NewTLSServer, healthz(http.StatusOK, strings.Repeat("x", 4096))),
			strings.Repeat("x", 1024), ""},
		"moved":  {serve(httptest.NewServer, http.RedirectHandler("/other", http.StatusFound)), "", "statuscode: 302"},
		"absent": {"127.0.0.1:1", "", "connection refused"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			components := componentstatus.New(componentstatus.Options{
				Addresses: map[string]string{"scheduler": c.address},
				Etcd:      func(context.Context) error { return errors.New("etcd is down") },
			})
			obj, err := components.Get(t.Context(), "", "scheduler")
			require.NoError(t, err)
			condition := obj.(*corev1.ComponentStatus).Conditions[0]
			require.Contains(t, condition.Error, c.failure)
			require.Equal(t, c.failure == "", condition.Status == corev1.ConditionTrue)
			if name != "moved" {
				require.Equal(t, c.message, condition.Message)
			}
		})
	}
}

func TestComponents_AreFixed(t *testing.T) {
	t.Parallel()
	asked := 0
	components := componentstatus.New(componentstatus.Options{
		Addresses: map[string]string{"controller-manager": componentstatus.InProcess,
			"scheduler": componentstatus.InProcess},
		Etcd: func(context.Context) error { asked++; return nil },
	})
	names := func(scope storage.Scope) (names []string) {
		found, revision, err := components.List(t.Context(), scope)
		require.NoError(t, err)
		require.Zero(t, revision)
		for _, obj := range found {
			names = append(names, obj.GetName())
		}
		return names
	}
	require.Equal(t, []string{"controller-manager", "etcd-0", "scheduler"}, names(storage.Scope{}))
	require.Equal(t, 1, asked)
	require.Equal(t, []string{"scheduler"}, names(storage.Scope{Name: "scheduler"}))
	require.Empty(t, names(storage.Scope{Match: func(*storage.Object) bool { return false }}))
	require.Equal(t, 1, asked, "only the chosen ones are asked")
	_, err := components.Get(t.Context(), "", "other")
	require.ErrorIs(t, err, storage.ErrNotFound)
}
