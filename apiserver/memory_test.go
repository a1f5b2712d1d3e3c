package apiserver_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/api/builtin"
	"github.com/coxswain-dev/coxswain/apiserver"
)

func TestMemory_WhatWouldNeverFitIsRefusedAndTheRestServed(t *testing.T) {
	t.Parallel()
	a := assemble(t, builtin.Kinds(), apiserver.Options{Limits: apiserver.Limits{RequestMemory: 4 << 20}})
	a.mayAll("jane")
	jane := a.as("jane")
	many := `{"metadata":{"name":"many"},"spec":{"containers":[{}` + strings.Repeat(",{}", 20_000) + `]}}`
	jane.do(http.MethodPost, pods, many).refused(http.StatusRequestEntityTooLarge,
		metav1.StatusReasonRequestEntityTooLarge, "decoding the body would take about")
	for i := range 30 {
		jane.do(http.MethodPost, configMaps, fmt.Sprintf(`{"metadata":{"name":"c%d"},"data":{"a":"%s"}}`, i,
			strings.Repeat("x", 200_000))).ok(http.StatusCreated)
	}
	for _, accept := range []string{"application/json", "application/vnd.kubernetes.protobuf",
		"application/json;as=Table;v=v1;g=meta.k8s.io"} {
		jane.do(http.MethodGet, configMaps, "", "Accept", accept).ok(http.StatusOK)
	}
	metrics := string(a.get("/metrics").ok(http.StatusOK).body)
	require.Contains(t, metrics, "\ncoxswain_request_memory_limit_bytes 4.194304e+06\n")
	require.Contains(t, metrics, "\ncoxswain_request_memory_used_bytes 0\n")
	require.Contains(t, metrics, "\ncoxswain_request_memory_refused_total 0\n")
}
