package testenv

import (
	"io"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// BenchmarkGet measures a GET by one of the control plane's own parts, from the client's request to the last byte.
// An eighth of the time is spent on recording the call.
func BenchmarkGet(b *testing.B) {
	e, err := NewEnvironment(APIServerOnly())
	require.NoError(b, err)
	defer e.Stop()
	config, connections, err := e.ownConfig()
	require.NoError(b, err)
	b.ReportAllocs()
	for b.Loop() {
		r, err := http.NewRequestWithContext(b.Context(), http.MethodGet, config.Host+"/api/v1/namespaces/default", nil)
		require.NoError(b, err)
		answer, err := connections.Do(r)
		require.NoError(b, err)
		_, err = io.Copy(io.Discard, answer.Body)
		require.NoError(b, err)
		require.NoError(b, answer.Body.Close())
	}
}
