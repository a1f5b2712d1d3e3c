package controllertest

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

// Extensions is a proxy before an API server that makes groups unavailable, as if aggregated servers that are
// down served them: discovery reports a group's version as stale, and its paths return 503.
type Extensions struct {
	mu    sync.Mutex
	away  map[schema.GroupVersion]bool
	stale int
}

// StartExtensions starts the proxy and returns its configuration. All groups are available at first.
func StartExtensions(t testing.TB, config *rest.Config) (*Extensions, *rest.Config) {
	t.Helper()
	target, err := url.Parse(config.Host)
	require.NoError(t, err)
	transport, err := rest.TransportFor(config)
	require.NoError(t, err)
	e := &Extensions{away: map[schema.GroupVersion]bool{}}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Header.Del("Accept-Encoding")
		},
		Transport: transport, FlushInterval: -1, ModifyResponse: e.discovery,
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if e.isAway(r.URL.Path) {
			http.Error(w, "service unavailable", http.StatusServiceUnavailable)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return e, &rest.Config{Host: server.URL, QPS: -1}
}

// Take makes a group's version unavailable. It need not exist. Give makes it available again.
func (e *Extensions) Take(gv schema.GroupVersion) { e.set(gv, true) }

// Give undoes Take.
func (e *Extensions) Give(gv schema.GroupVersion) { e.set(gv, false) }

// Stale returns how often discovery was served while a group was unavailable.
func (e *Extensions) Stale() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.stale
}

func (e *Extensions) set(gv schema.GroupVersion, away bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if away {
		e.away[gv] = true
	} else {
		delete(e.away, gv)
	}
}

func (e *Extensions) isAway(path string) bool {
	parts := strings.Split(path, "/") // "", apis, group, version
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(parts) > 3 && parts[1] == "apis" && e.away[schema.GroupVersion{Group: parts[2], Version: parts[3]}]
}

// discovery marks the unavailable versions as stale in a response.
func (e *Extensions) discovery(res *http.Response) error {
	if res.Request.URL.Path != "/apis" || !strings.Contains(res.Header.Get("Content-Type"), "APIGroupDiscoveryList") {
		return nil
	}
	var list apidiscoveryv2.APIGroupDiscoveryList
	err := json.NewDecoder(res.Body).Decode(&list)
	_ = res.Body.Close()
	if err != nil {
		return err
	}
	e.mu.Lock()
	if len(e.away) > 0 {
		e.stale++
	}
	for gv := range e.away {
		makeStale(&list, gv)
	}
	e.mu.Unlock()
	body, err := json.Marshal(list)
	if err != nil {
		return err
	}
	res.Body, res.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	res.Header.Set("Content-Length", strconv.Itoa(len(body)))
	res.Header.Del("ETag")
	return nil
}

func makeStale(list *apidiscoveryv2.APIGroupDiscoveryList, gv schema.GroupVersion) {
	stale := apidiscoveryv2.APIVersionDiscovery{Version: gv.Version, Freshness: apidiscoveryv2.DiscoveryFreshnessStale}
	index := slices.IndexFunc(list.Items, func(g apidiscoveryv2.APIGroupDiscovery) bool { return g.Name == gv.Group })
	if index < 0 {
		list.Items = append(list.Items, apidiscoveryv2.APIGroupDiscovery{})
		index = len(list.Items) - 1
		list.Items[index].Name = gv.Group
	}
	versions := &list.Items[index].Versions
	*versions = append(slices.DeleteFunc(*versions, func(v apidiscoveryv2.APIVersionDiscovery) bool {
		return v.Version == gv.Version
	}), stale)
}
