package ways_test

import (
	"context"
	"crypto/x509"
	"io"
	"net/http"
	"net/http/httptrace"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/builtin"
	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/storage"
)

// backend is a store's backend.
type backend struct {
	storage.Backend
	*trace
}

func (b backend) Commit(ctx context.Context, writes []storage.Write) (*storage.Outcome, error) {
	b.add("")
	return b.Backend.Commit(ctx, writes)
}

func (b backend) Revision(ctx context.Context) (int64, error) {
	b.add("")
	return b.Backend.Revision(ctx)
}

func (b backend) Watch(ctx context.Context, r storage.FollowRequest) <-chan storage.WatchBatch {
	b.add("")
	return b.Backend.Watch(ctx, r)
}

// authorities are the CAs of clients.
type authorities struct {
	authn.CAs
	*trace
}

func (a authorities) Pool() *x509.CertPool {
	a.add("")
	return a.CAs.Pool()
}

// memory is the clock by which authorizers remember answers of their webhook.
type memory struct {
	clock.PassiveClock
	*trace
}

func (m memory) Now() time.Time {
	m.add("")
	return m.PassiveClock.Now()
}

// kinds returns the built-in kinds with hooks in the functions that decoding, admission and validation call.
func (tr *trace) kinds() []*api.Resource {
	kinds := builtin.KindsBy(clock.RealClock{})
	for _, r := range kinds {
		first := *r
		r.New = func() api.Object { tr.add(""); return first.New() }
		r.Default = func(obj api.Object) {
			tr.add("")
			if first.Default != nil {
				first.Default(obj)
			}
		}
		r.PrepareCreate = func(obj api.Object) {
			tr.add("")
			if first.PrepareCreate != nil {
				first.PrepareCreate(obj)
			}
		}
		r.PrepareUpdate = func(obj, old api.Object) {
			tr.add("")
			if first.PrepareUpdate != nil {
				first.PrepareUpdate(obj, old)
			}
		}
		r.Validate = func(obj api.Object) field.ErrorList {
			tr.add("")
			if first.Validate == nil {
				return nil
			}
			return first.Validate(obj)
		}
	}
	return kinds
}

// around is a server's Middleware: it has hooks in the body, in the context of a request, in the calls of webhooks that
// the request leads to, and in the response.
func (tr *trace) around(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{GetConn: func(string) { tr.add("") }})
		r = r.WithContext(values{ctx, tr})
		r.Body = body{r.Body, tr}
		next.ServeHTTP(response{w, tr}, r)
	})
}

type values struct {
	context.Context
	*trace
}

func (v values) Value(key any) any {
	v.add("")
	return v.Context.Value(key)
}

type body struct {
	io.ReadCloser
	*trace
}

func (b body) Read(p []byte) (int, error) {
	b.add("")
	return b.ReadCloser.Read(p)
}

type response struct {
	http.ResponseWriter
	*trace
}

func (r response) Write(p []byte) (int, error) {
	r.add("")
	return r.ResponseWriter.Write(p)
}

func (r response) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// client returns a configuration whose requests are traced where a component makes them.
func (tr *trace) client(config *rest.Config, agent string) *rest.Config {
	config = rest.CopyConfig(config)
	config.UserAgent = agent
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return requests{next, tr} })
	return config
}

type requests struct {
	next http.RoundTripper
	*trace
}

func (c requests) RoundTrip(r *http.Request) (*http.Response, error) {
	c.add(requestName(r))
	return c.next.RoundTrip(r)
}

// WrappedRoundTripper lets client-go close connections.
func (c requests) WrappedRoundTripper() http.RoundTripper { return c.next }

// requestName returns a request's method, resource and subresource: "POST pods/binding".
func requestName(r *http.Request) string {
	parts := strings.Split(strings.TrimPrefix(r.URL.Path, "/"), "/")
	parts = parts[min(len(parts), map[string]int{"api": 2, "apis": 3}[parts[0]]):]
	if len(parts) > 2 && parts[0] == "namespaces" {
		parts = parts[2:]
	}
	if len(parts) > 1 {
		parts = slices.Delete(parts, 1, 2)
	}
	return r.Method + " " + strings.Join(parts, "/")
}
