package apiserver_test

import (
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/portforward"
	spdytransport "k8s.io/client-go/transport/spdy"

	"github.com/coxswain-dev/coxswain/api/builtin"
	"github.com/coxswain-dev/coxswain/apiserver"
)

// about waits for a number of events of requests to a path, and returns them.
func (s *auditedServer) about(path string, want int) (found []auditEvent) {
	s.t.Helper()
	require.Eventually(s.t, func() bool {
		found = nil
		for _, e := range s.all() {
			if strings.HasPrefix(e.RequestURI, path) {
				found = append(found, e)
			}
		}
		return len(found) >= want
	}, patience, tick, "%d events of %s", want, path)
	return found
}

// A connection that is upgraded has an event when it begins, when it is upgraded, and when it ends.
func TestAudit_StagesOfAPortForward(t *testing.T) {
	t.Parallel()
	auditor, log := openAudit(t, "rules: [{level: Metadata}]\n")
	s := &auditedServer{serverWithKubelet(t, apiserver.Options{Audit: auditor}), log}
	target, err := url.Parse(s.config.Host + pods + "/web/portforward")
	require.NoError(t, err)
	transport, upgrader, err := spdytransport.RoundTripperFor(s.config)
	require.NoError(t, err)
	dialer := spdytransport.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, target)
	stop, ready, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	forwarder, err := portforward.NewOnAddresses(dialer, []string{"127.0.0.1"}, []string{"0:80"}, stop, ready, io.Discard,
		io.Discard)
	require.NoError(t, err)
	go func() { ended <- forwarder.ForwardPorts() }()
	select {
	case <-ready:
	case err := <-ended:
		require.NoError(t, err)
	}
	during := s.about(target.Path, 2)
	require.Len(t, during, 2, "while it goes on")
	close(stop)
	require.NoError(t, <-ended)
	for i, e := range s.about(target.Path, 3) {
		require.Equal(t, []string{"RequestReceived", "ResponseStarted", "ResponseComplete"}[i], e.Stage)
		require.Equal(t, "create", e.Verb)
		require.Equal(t, "portforward", e.ObjectRef["subresource"])
		if i > 0 {
			require.EqualValues(t, http.StatusSwitchingProtocols, e.ResponseStatus.Code)
		}
	}

	refused := s.events(s.do(http.MethodPost, pods+"/none/portforward", nil).header.Get("Audit-Id"), 3)
	require.EqualValues(t, http.StatusNotFound, refused[2].ResponseStatus.Code)
}

// A request that times out has a ResponseComplete event, with the answer to the client.
func TestAudit_ARequestThatTimesOut(t *testing.T) {
	t.Parallel()
	auditor, log := openAudit(t, "rules: [{level: Metadata}]\n")
	a := assemble(t, builtin.Kinds(), apiserver.Options{RequestTimeout: 200 * time.Millisecond, Audit: auditor})
	s := &auditedServer{a.server, log}
	body, rest := io.Pipe()
	defer rest.Close()
	res, err := s.http.Post(s.config.Host+configMaps, "application/json", body)
	code := 0
	if err == nil { // the connection may break before the answer arrives
		require.NoError(t, res.Body.Close())
		code = res.StatusCode
	}
	events := s.about(configMaps, 2)
	require.Len(t, events, 2)
	last := events[1]
	require.Equal(t, []string{"RequestReceived", "ResponseComplete"}, []string{events[0].Stage, last.Stage})
	require.GreaterOrEqual(t, last.ResponseStatus.Code, int32(http.StatusBadRequest))
	if code != 0 {
		require.EqualValues(t, code, last.ResponseStatus.Code)
	}
	require.GreaterOrEqual(t, last.StageTimestamp.Sub(last.RequestReceivedTimestamp.Time), 200*time.Millisecond)
}
