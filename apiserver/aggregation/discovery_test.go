package aggregation_test

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	clientdiscovery "k8s.io/client-go/discovery"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/coxswain-dev/coxswain/apiserver"
)

const aggregatedDiscovery = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

const wardleDiscovery = `{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","items":[
{"metadata":{"name":"wardle.example.com"},"versions":[{"version":"v1","freshness":"Current","resources":[
 {"resource":"flunders","scope":"Namespaced","singularResource":"flunder","verbs":["get","list"],
  "responseKind":{"group":"wardle.example.com","version":"v1","kind":"Flunder"},
  "subresources":[{"subresource":"status","verbs":["get"]}]}]}]},
{"metadata":{"name":"apps"},"versions":[{"version":"v1","resources":[{"resource":"deployments","scope":"Cluster"}]}]}]}`

const wardleLegacy = `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"wardle.example.com/v1","resources":[
{"name":"flunders","singularName":"flunder","namespaced":true,"kind":"Flunder","verbs":["get","list"]},
{"name":"flunders/status","namespaced":true,"kind":"Flunder","verbs":["get"]},
{"name":"nodes/load","namespaced":false,"kind":"Load","verbs":["get"]}]}`

// discovered returns the entry of aggregated discovery for a group's only version.
func (c *cluster) discovered(group string) *apidiscoveryv2.APIVersionDiscovery {
	c.t.Helper()
	var list apidiscoveryv2.APIGroupDiscoveryList
	got := c.get("/apis", "Accept", aggregatedDiscovery)
	require.Equal(c.t, aggregatedDiscovery, got.header.Get("Content-Type"))
	require.NoError(c.t, json.Unmarshal([]byte(got.body), &list))
	for _, g := range list.Items {
		if g.Name == group {
			require.Len(c.t, g.Versions, 1)
			return &g.Versions[0]
		}
	}
	return nil
}

// describes returns a handler that serves the given documents by path.
func describes(documents map[string]string, headers http.Header) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		text, found := documents[r.URL.Path]
		if !found {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path == "/apis" {
			w.Header().Set("Content-Type", aggregatedDiscovery)
		}
		for name, values := range headers {
			w.Header()[name] = values
			if tag := values[0]; name == "Etag" && r.Header.Get("If-None-Match") == tag {
				w.WriteHeader(http.StatusNotModified)
				return
			}
		}
		_, _ = io.WriteString(w, text)
	}
}

// extendedBy does the same as extended, with an extension that uses the handler from the start.
func extendedBy(t testing.TB, o apiserver.Options, answer http.HandlerFunc) (*cluster, *extension) {
	t.Helper()
	c, e := start(t, o), newExtension(t, true, "wardle.default.svc")
	e.answers(answer)
	c.service("wardle", "10.1.0.5", e)
	c.register("v1", "wardle.example.com", "wardle", e.ca)
	c.becomes("v1.wardle.example.com", passed)
	c.routed("/apis/wardle.example.com/v1")
	return c, e
}

func TestDiscovery_IncludesOtherServers(t *testing.T) {
	t.Parallel()
	for name, documents := range map[string]map[string]string{
		"aggregated": {"/apis": wardleDiscovery, "/apis/wardle.example.com/v1": wardleLegacy},
		"legacy":     {"/apis/wardle.example.com/v1": wardleLegacy},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, _ := extendedBy(t, apiserver.Options{}, describes(documents, nil))
			v := c.discovered("wardle.example.com")
			require.Equal(t, apidiscoveryv2.DiscoveryFreshnessCurrent, v.Freshness)
			require.Equal(t, "flunders", v.Resources[0].Resource)
			require.Equal(t, apidiscoveryv2.ScopeNamespace, v.Resources[0].Scope)
			require.Equal(t, "wardle.example.com", v.Resources[0].ResponseKind.Group)
			require.Equal(t, "status", v.Resources[0].Subresources[0].Subresource)
			require.NotNil(t, v.Resources[0].Subresources[0].ResponseKind)
			if name == "legacy" {
				require.Equal(t, "nodes", v.Resources[1].Resource)
				require.Equal(t, "Load", v.Resources[1].Subresources[0].ResponseKind.Kind)
			}
			require.Equal(t, apidiscoveryv2.ScopeNamespace, c.discovered("apps").Resources[0].Scope, "is not the other's to say")
			client := clientdiscovery.NewDiscoveryClientForConfigOrDie(c.Config)
			_, lists, err := client.ServerGroupsAndResources()
			require.NoError(t, err)
			var found bool
			for _, list := range lists {
				found = found || list.GroupVersion == "wardle.example.com/v1" && list.APIResources[0].Kind == "Flunder"
			}
			require.True(t, found)
			require.Equal(t, wardleLegacy, c.get("/apis/wardle.example.com/v1").body)
		})
	}
}

// A document is cached by its ETag, and the last known one stays when the server becomes unavailable.
func TestDiscovery_KeepsTheLastDocument(t *testing.T) {
	t.Parallel()
	clock := testingclock.NewFakeClock(time.Now())
	var asked, unchanged atomic.Int32
	answer := describes(map[string]string{"/apis": wardleDiscovery, "/apis/wardle.example.com/v1": wardleLegacy},
		http.Header{"Etag": {`"1"`}})
	c, e := extendedBy(t, apiserver.Options{Clock: clock}, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/apis" {
			asked.Add(1)
			if r.Header.Get("If-None-Match") == `"1"` {
				unchanged.Add(1)
			}
		}
		answer(w, r)
	})
	require.Len(t, c.discovered("wardle.example.com").Resources, 1)
	require.Len(t, c.discovered("wardle.example.com").Resources, 1)
	require.EqualValues(t, 1, asked.Load(), "it is good for a minute")
	clock.SetTime(clock.Now().Add(2 * time.Minute))
	require.Len(t, c.discovered("wardle.example.com").Resources, 1)
	require.Eventually(t, func() bool { return unchanged.Load() == 1 }, patience, tick)
	require.Eventually(t, func() bool {
		return c.discovered("wardle.example.com").Freshness == apidiscoveryv2.DiscoveryFreshnessCurrent
	}, patience, tick)

	e.answers(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusServiceUnavailable) })
	require.Eventually(t, func() bool {
		clock.SetTime(clock.Now().Add(2 * time.Minute))
		v := c.discovered("wardle.example.com")
		require.Len(t, v.Resources, 1)
		return v.Freshness == apidiscoveryv2.DiscoveryFreshnessStale
	}, patience, tick)
}

// An invalid response of a server affects only its own group.
func TestDiscovery_SurvivesBrokenServers(t *testing.T) {
	t.Parallel()
	for name, document := range map[string]string{
		"garbage": "{", "another type": `{"items":7}`, "too large": `"` + strings.Repeat("x", 5<<20) + `"`,
		"deep": strings.Repeat("[", 1<<20),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, _ := extendedBy(t, apiserver.Options{}, describes(map[string]string{"/apis": document,
				"/apis/wardle.example.com/v1": wardleLegacy}, nil))
			v := c.discovered("wardle.example.com")
			require.Equal(t, apidiscoveryv2.DiscoveryFreshnessStale, v.Freshness)
			require.Empty(t, v.Resources)
			require.Equal(t, apidiscoveryv2.DiscoveryFreshnessCurrent, c.discovered("apps").Freshness)
		})
	}
}

// A request waits once for a server that does not answer, for a limited time.
func TestDiscovery_WaitsOnceForASlowServer(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	var held atomic.Int32
	answer := describes(map[string]string{"/apis": wardleDiscovery, "/apis/wardle.example.com/v1": wardleLegacy}, nil)
	clock := testingclock.NewFakeClock(time.Now())
	c, _ := extendedBy(t, apiserver.Options{Clock: clock}, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/apis" && held.Add(1) > 1 {
			select {
			case <-release:
			case <-r.Context().Done():
			}
		}
		answer(w, r)
	})
	require.Len(t, c.discovered("wardle.example.com").Resources, 1)
	clock.SetTime(clock.Now().Add(2 * time.Minute))
	for range 3 { // while the server is being asked
		require.Len(t, c.discovered("wardle.example.com").Resources, 1)
	}
	require.Eventually(t, func() bool { return held.Load() == 2 }, patience, tick)
	close(release)
}

// A discovery request that returns to this server causes no fetch. Otherwise the servers in a loop would wait for
// each other.
func TestDiscovery_OfALoopFetchesNoDocuments(t *testing.T) {
	t.Parallel()
	var c *cluster
	var forwarded atomic.Int32
	ready := make(chan struct{})
	c, _ = extendedBy(t, apiserver.Options{}, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/apis" {
			_, _ = io.WriteString(w, wardleLegacy)
			return
		}
		<-ready
		forwarded.Add(1)
		back := c.get("/apis", "Accept", aggregatedDiscovery, "Via", r.Header.Get("Via"))
		w.Header().Set("Content-Type", aggregatedDiscovery)
		_, _ = io.WriteString(w, back.body)
	})
	close(ready)
	require.Empty(t, c.discovered("wardle.example.com").Resources)
	require.EqualValues(t, 1, forwarded.Load())
}
