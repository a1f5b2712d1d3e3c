package controllers_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"github.com/coxswain-dev/coxswain/controllers"
)

func TestServerCertificate_IsTheOneThatTheAPIServerPresents(t *testing.T) {
	t.Parallel()
	paths := make(chan string, 2)
	answer := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { paths <- r.URL.Path })
	server := httptest.NewTLSServer(answer)
	defer server.Close()
	config := &rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	certificate, err := controllers.ServerCertificate(t.Context(), config)
	require.NoError(t, err)
	require.Equal(t, server.Certificate().Raw, certificate.Raw)
	require.Equal(t, "/version", <-paths, "which every user may read")

	plain := httptest.NewServer(answer)
	defer plain.Close()
	certificate, err = controllers.ServerCertificate(t.Context(), &rest.Config{Host: plain.URL})
	require.NoError(t, err)
	require.Nil(t, certificate)

	plain.Close()
	_, err = controllers.ServerCertificate(t.Context(), &rest.Config{Host: plain.URL})
	require.ErrorContains(t, err, "certificate of the API server")
}
