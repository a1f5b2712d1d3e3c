package apiserver_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/apiserver"
	"github.com/coxswain-dev/coxswain/internal/clock/virtualtime"
	"github.com/coxswain-dev/coxswain/testenv/servertest"
)

func TestClock_IsMovedByARequest(t *testing.T) {
	t.Parallel()
	clock := virtualtime.New(time.Date(2031, 5, 1, 8, 0, 0, 0, time.UTC))
	server := servertest.Start(t, apiserver.Options{Clock: clock})
	defer clock.AddRest(func(ctx context.Context) error { return server.Settle(ctx, nil) })()
	s := connect(t, server.Config)
	const path = "/debug/clock"
	require.Equal(t, "2031-05-01T08:00:00Z", s.get(path).ok(http.StatusOK).at("now"))
	fired := make(chan time.Time, 1)
	clock.AfterFunc(time.Hour, func() { fired <- clock.Now() })
	moved := s.do(http.MethodPost, path, m{"advance": "90m"}).ok(http.StatusOK)
	require.Equal(t, "2031-05-01T09:30:00Z", moved.at("now"))
	require.Equal(t, time.Date(2031, 5, 1, 9, 0, 0, 0, time.UTC), <-fired)
	moved = s.do(http.MethodPost, path, m{"to": "2031-05-02T00:00:00Z"}).ok(http.StatusOK)
	require.Equal(t, "2031-05-02T00:00:00Z", moved.at("now"))

	for name, body := range map[string]any{
		"nothing": m{}, "both": m{"advance": "1h", "to": "2032-05-02T00:00:00Z"}, "not a duration": m{"advance": "soon"},
		"back": m{"advance": "-1h"}, "back to": m{"to": "2030-05-02T00:00:00Z"}, "not JSON": "advance",
	} {
		t.Run(name, func(t *testing.T) {
			s.subtest(t)
			s.do(http.MethodPost, path, body).refused(http.StatusBadRequest, metav1.StatusReasonBadRequest, "")
		})
	}
	require.Equal(t, "2031-05-02T00:00:00Z", s.get(path).at("now"))
}

func TestClock_RealClockIsNotServed(t *testing.T) {
	t.Parallel()
	s := connect(t, servertest.Start(t, apiserver.Options{}).Config)
	require.Equal(t, http.StatusNotFound, s.get("/debug/clock").code)
	require.Equal(t, http.StatusNotFound, s.do(http.MethodPost, "/debug/clock", m{"advance": "1h"}).code)
}
