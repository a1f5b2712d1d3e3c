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

// Extensions stands before an API server and takes groups away, as if servers of others that are down served them:
// discovery calls a group's version stale, and its paths are answered 503.
type Extensions struct {
	mu    sync.Mutex
	away  map[schema.GroupVersion]bool
	stale int
}

// StartExtensions returns a configuration by which the API server is seen so. Nothing is away at first.
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

// Take takes a group's version away, which need not exist; Give brings it back.
func (e *Extensions) Take(gv schema.GroupVersion) { e.set(gv, true) }

// Give undoes Take.
func (e *Extensions) Give(gv schema.GroupVersion) { e.set(gv, false) }

// Stale is how often discovery was answered while something was away.
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

// discovery makes the versions that are away stale.
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
	at := slices.IndexFunc(list.Items, func(g apidiscoveryv2.APIGroupDiscovery) bool { return g.Name == gv.Group })
	if at < 0 {
		list.Items = append(list.Items, apidiscoveryv2.APIGroupDiscovery{})
		at = len(list.Items) - 1
		list.Items[at].Name = gv.Group
	}
	versions := &list.Items[at].Versions
	*versions = append(slices.DeleteFunc(*versions, func(v apidiscoveryv2.APIVersionDiscovery) bool {
		return v.Version == gv.Version
	}), stale)
}
