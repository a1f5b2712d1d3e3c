package apiserver_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/builtin"
	"github.com/coxswain-dev/coxswain/apiserver"
	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/storage"
	"github.com/coxswain-dev/coxswain/storage/etcd"
)

// A server is assembled from a store and a registry of kinds. Its Handler also works without a listener; Serve adds TLS
// and the background work of a server.
func Example() {
	ctx := context.Background()
	check := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	dir, err := os.MkdirTemp("", "etcd")
	check(err)
	defer os.RemoveAll(dir)
	backend, err := etcd.StartEmbedded(ctx, etcd.EmbeddedOptions{Dir: dir, Unsafe: true})
	check(err)
	defer backend.Close()
	store, err := storage.Open(ctx, backend, storage.Options{})
	check(err)
	defer store.Close()

	tokens := dir + "/tokens.csv"
	check(os.WriteFile(tokens, []byte(`secret,admin,1,"system:masters"`), 0o600))
	server, err := apiserver.New(ctx, apiserver.Options{
		Store: store, Registry: api.NewRegistry(builtin.Kinds()...), Log: slog.New(slog.DiscardHandler),
		Authentication: authn.Options{TokenFile: tokens},
	})
	check(err)

	r := httptest.NewRequest(http.MethodPost, "/api/v1/namespaces/default/configmaps?fieldManager=example",
		strings.NewReader(`{"metadata": {"name": "colors"}, "data": {"sky": "blue"}}`))
	r.Header.Set("Authorization", "Bearer secret")
	w := httptest.NewRecorder()
	server.Handler().ServeHTTP(w, r)
	fmt.Println(w.Code)

	r = httptest.NewRequest(http.MethodGet, "/api/v1/namespaces/default/configmaps/colors", nil)
	r.Header.Set("Authorization", "Bearer secret")
	r.Header.Set("Accept", "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io")
	w = httptest.NewRecorder()
	server.Handler().ServeHTTP(w, r)
	fmt.Println(w.Code, strings.Contains(w.Body.String(), `"name":"colors"`))
	// Output:
	// 201
	// 200 true
}
