package controllertest

import (
	"net/http"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// newClient returns the test's own client. On a busy machine an API server may see etcd's state late, and
// answers a read with 503 after some seconds: the client repeats it.
func newClient(config *rest.Config) kubernetes.Interface {
	config = rest.CopyConfig(config)
	config.WarningHandler = rest.NoWarnings{}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return patientTransport{next} })
	return kubernetes.NewForConfigOrDie(config)
}

type patientTransport struct{ next http.RoundTripper }

// WrappedRoundTripper lets client-go find the transport below, to close its idle connections.
func (p patientTransport) WrappedRoundTripper() http.RoundTripper { return p.next }

// RoundTrip implements http.RoundTripper.
func (p patientTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	for end := time.Now().Add(patience); ; {
		response, err := p.next.RoundTrip(r)
		unavailable := err == nil && response.StatusCode == http.StatusServiceUnavailable
		if !unavailable || r.Method != http.MethodGet || time.Now().After(end) {
			return response, err
		}
		_ = response.Body.Close()
		select {
		case <-r.Context().Done():
			return nil, r.Context().Err()
		case <-time.After(interval):
		}
	}
}
