package apiserver_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/rest"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/builtin"
	"github.com/coxswain-dev/coxswain/apiserver"
	"github.com/coxswain-dev/coxswain/apiserver/pki"
	"github.com/coxswain-dev/coxswain/storage"
	"github.com/coxswain-dev/coxswain/testenv/servertest"
)

// assembly is an API server with access to its parts.
type assembly struct {
	*server
	ca      *pki.CA
	backend *faulty
	store   *storage.Store
	log     *syncBuffer
	routes  chi.Routes
}

// logEvents is the length of the event log of each kind in an assembly.
const logEvents = 16

// assemble starts an API server of the given kinds on a backend that can be made to fail.
func assemble(t *testing.T, kinds []*api.Resource, o apiserver.Options) *assembly {
	t.Helper()
	a := &assembly{backend: &faulty{Backend: servertest.Backend(t)}, log: &syncBuffer{}}
	a.store = servertest.Store(t, a.backend, storage.Options{LogEvents: logEvents})
	o.Registry, o.Log = api.NewRegistry(kinds...), slog.New(slog.NewTextHandler(a.log, nil))
	a.server = a.another(t, o)
	return a
}

// another starts a further API server, on the same store if o has none, with all built-in kinds if o has no registry.
func (a *assembly) another(t *testing.T, o apiserver.Options) *server {
	t.Helper()
	if o.Store == nil {
		o.Store = a.store
	}
	running := servertest.Start(t, o)
	a.ca, a.routes = running.CA, running.Handler().(chi.Routes)
	return connect(t, running.Config)
}

// as returns the same server for another user.
func (a *assembly) as(user string, groups ...string) *server {
	a.t.Helper()
	config := rest.CopyConfig(a.config)
	var err error
	config.CertData, config.KeyData, err = a.ca.Client(user, groups...)
	require.NoError(a.t, err)
	return connect(a.t, config)
}

// faulty is a backend whose commits and reads can be made to fail.
type faulty struct {
	storage.Backend
	mu sync.Mutex
	// commit replaces Commit when set.
	commit func(ctx context.Context, writes []storage.Write) (*storage.Outcome, error)
	// reads is the error of reads of the revision and of ranges.
	reads error
	// asked, if set, is called before every read of the revision.
	asked func()
}

// onQuestion sets the function that is called before every read of the revision.
func (f *faulty) onQuestion(asked func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = asked
}

func (f *faulty) set(commit func(context.Context, []storage.Write) (*storage.Outcome, error), reads error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.commit, f.reads = commit, reads
}

func (f *faulty) Commit(ctx context.Context, writes []storage.Write) (*storage.Outcome, error) {
	f.mu.Lock()
	commit := f.commit
	f.mu.Unlock()
	if commit != nil {
		return commit(ctx, writes)
	}
	return f.Backend.Commit(ctx, writes)
}

func (f *faulty) readError() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.reads
}

func (f *faulty) Revision(ctx context.Context) (int64, error) {
	if err := f.readError(); err != nil {
		return 0, err
	}
	f.mu.Lock()
	hook := f.asked
	f.mu.Unlock()
	if hook != nil {
		hook()
	}
	return f.Backend.Revision(ctx)
}

func (f *faulty) Range(ctx context.Context, r storage.RangeRequest) (*storage.RangeResult, error) {
	if err := f.readError(); err != nil {
		return nil, err
	}
	return f.Backend.Range(ctx, r)
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// writes returns a write of each sort, by name. Each would change an object.
func (a *assembly) writes() map[string]func() *answer {
	changed := configMap("a")
	changed["data"] = m{"k": "w"}
	return map[string]func() *answer{
		"create": func() *answer { return a.do(http.MethodPost, configMaps, configMap("new")) },
		"generateName": func() *answer {
			return a.do(http.MethodPost, configMaps, m{"metadata": m{"generateName": "g-"}})
		},
		"update":           func() *answer { return a.put(configMaps+"/a", changed) },
		"patch":            func() *answer { return a.patch(configMaps+"/a", mergePatch, `{"data":{"k":"x"}}`) },
		"delete":           func() *answer { return a.delete(configMaps+"/a", nil) },
		"deletecollection": func() *answer { return a.delete(configMaps, nil) },
		"scale": func() *answer {
			return a.patch(deployments+"/d/scale", mergePatch, `{"spec":{"replicas":9}}`)
		},
	}
}

func failing(err error) func(context.Context, []storage.Write) (*storage.Outcome, error) {
	return func(context.Context, []storage.Write) (*storage.Outcome, error) { return nil, err }
}

func TestFault_WritesThatEtcdRefusesAreNotAcknowledged(t *testing.T) {
	t.Parallel()
	a := assemble(t, builtin.Kinds(), apiserver.Options{RequestTimeout: 5 * time.Second})
	stored := a.create(configMaps, configMap("a")).object()
	a.create(deployments, deployment("d", 1))
	for name, c := range map[string]struct {
		err    error
		code   int
		reason metav1.StatusReason
	}{
		"gone":            {storage.ErrUnavailable, 503, metav1.StatusReasonServiceUnavailable},
		"unknown outcome": {storage.ErrUnknownOutcome, 504, metav1.StatusReasonTimeout},
		"full":            {storage.ErrNoSpace, 507, metav1.StatusReasonInternalError},
		"too large":       {storage.ErrTooLarge, 413, metav1.StatusReasonRequestEntityTooLarge},
	} {
		for verb, write := range a.writes() {
			t.Run(name+" "+verb, func(t *testing.T) {
				a.subtest(t)
				a.backend.set(failing(fmt.Errorf("injected: %w", c.err)), nil)
				write().refused(c.code, c.reason, "")
				a.backend.set(nil, nil)
				require.Equal(t, stored, a.get(configMaps+"/a").ok(http.StatusOK).object())
				require.Equal(t, []string{"a"}, a.get(configMaps).names())
			})
		}
	}
	a.patch(configMaps+"/a", mergePatch, `{"data":{"k":"x"}}`).ok(http.StatusOK)
}

// A write whose outcome is unknown may have happened. A second attempt could write twice, or conflict with the first.
func TestFault_UnknownOutcomeIsNotTriedAgain(t *testing.T) {
	t.Parallel()
	a := assemble(t, builtin.Kinds(), apiserver.Options{})
	current := a.create(configMaps, configMap("a")).object()
	lost := func(ctx context.Context, writes []storage.Write) (*storage.Outcome, error) {
		if _, err := a.backend.Backend.Commit(ctx, writes); err != nil {
			return nil, err
		}
		return nil, storage.ErrUnknownOutcome
	}
	a.backend.set(lost, nil)
	// A consistent read brings the write into memory. An attempt from the state before would be rejected by etcd,
	// and that answer is lost, too.
	seen := func() *unstructured.Unstructured { return a.get(configMaps + "/a").ok(http.StatusOK).object() }
	a.patch(configMaps+"/a", jsonPatch, `[{"op":"add","path":"/data/x","value":"1"}]`).refused(
		http.StatusGatewayTimeout, metav1.StatusReasonTimeout, "may or may not have happened")
	next := seen()
	a.put(configMaps+"/a", current.Object).refused(http.StatusConflict, metav1.StatusReasonConflict,
		"the object has been modified")
	current = next
	current.SetLabels(map[string]string{"a": "b"})
	a.put(configMaps+"/a", current.Object).refused(http.StatusGatewayTimeout, metav1.StatusReasonTimeout,
		"may or may not have happened")
	seen()
	a.delete(configMaps+"/a", nil).refused(http.StatusGatewayTimeout, metav1.StatusReasonTimeout,
		"may or may not have happened")
	a.backend.set(nil, nil)
	a.gone(configMaps + "/a")
}

func TestFault_EtcdThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	a := assemble(t, builtin.Kinds(), apiserver.Options{RequestTimeout: 5 * time.Second})
	a.create(configMaps, configMap("a"))
	a.create(deployments, deployment("d", 1))
	a.backend.set(failing(storage.ErrUnavailable), storage.ErrUnavailable)
	for _, path := range []string{configMaps, configMaps + "/a", configMaps + "/none", "/api/v1/pods",
		configMaps + "?limit=1"} {
		a.get(path).refused(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "")
	}
	for verb, write := range a.writes() {
		answered := write()
		require.Equal(t, 503, answered.code, "%s: %s", verb, answered.body)
	}
	// Reads that need not be consistent are still served.
	a.get(configMaps + "/a?resourceVersion=0").ok(http.StatusOK)
	require.Equal(t, []string{"a"}, a.get(configMaps+"?resourceVersion=0").ok(http.StatusOK).names())
	a.get("/livez").ok(http.StatusOK)
	ready := a.get("/readyz").ok(http.StatusInternalServerError)
	require.Contains(t, string(ready.body), "[-]etcd failed: reason withheld")
	require.Contains(t, string(ready.body), "readyz check failed")
	a.get("/readyz/etcd").ok(http.StatusInternalServerError)
	a.get("/readyz/ping").ok(http.StatusOK)
	a.get("/readyz?exclude=etcd").ok(http.StatusOK)
	a.backend.set(nil, nil)
	a.get("/readyz").ok(http.StatusOK)
	require.Equal(t, []string{"a"}, a.get(configMaps).names())
}

// An etcd at its quota accepts only deletions. A graceful deletion begins with a write.
func TestFault_AFullEtcdDeletesWithoutAGracePeriod(t *testing.T) {
	t.Parallel()
	a := assemble(t, builtin.Kinds(), apiserver.Options{})
	a.create(accounts, m{"metadata": m{"name": "default"}})
	for _, name := range []string{"a", "b", "c", "dry", "held", "ended"} {
		p := pod(name)
		p["spec"].(m)["nodeName"] = "n"
		if name == "held" {
			p["metadata"].(m)["finalizers"] = []string{"example.com/hold"}
		}
		a.create(pods, p)
	}
	a.delete(pods+"/ended", nil).ok(http.StatusOK)
	a.backend.set(func(ctx context.Context, writes []storage.Write) (*storage.Outcome, error) {
		for _, w := range writes {
			if w.Op == storage.Create || w.Op == storage.Update {
				return nil, storage.ErrNoSpace
			}
		}
		return a.backend.Backend.Commit(ctx, writes)
	}, nil)
	deleted := a.delete(pods+"/a", nil).ok(http.StatusOK)
	require.Contains(t, deleted.header.Get("Warning"), "deleted at once, without a grace period")
	a.gone(pods + "/a")
	a.delete(pods+"/b?gracePeriodSeconds=60", nil).ok(http.StatusOK)
	a.gone(pods + "/b")
	a.delete(pods+"/c", m{"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": m{"uid": "another"}}).refused(
		http.StatusConflict, metav1.StatusReasonConflict, "UID")
	a.delete(pods+"/dry?dryRun=All", nil).ok(http.StatusOK)
	a.delete(pods+"/held", nil).refused(http.StatusInsufficientStorage, metav1.StatusReasonInternalError,
		"etcd is out of space")
	require.Empty(t, a.get(pods+"/held").ok(http.StatusOK).object().GetDeletionTimestamp())
	a.delete(pods+"/ended?gracePeriodSeconds=0", nil).ok(http.StatusOK)
	require.Equal(t, []string{"c", "dry", "held"}, a.get(pods).names())
	a.delete(pods+"?fieldSelector=metadata.name!%3Dheld", nil).ok(http.StatusOK)
	require.Equal(t, []string{"held"}, a.get(pods).names())
}

func TestFault_EtcdThatHangsIsATimeout(t *testing.T) {
	t.Parallel()
	a := assemble(t, builtin.Kinds(), apiserver.Options{})
	a.create(configMaps, configMap("a"))
	a.backend.set(func(ctx context.Context, _ []storage.Write) (*storage.Outcome, error) {
		<-ctx.Done()
		return nil, fmt.Errorf("%w: %w", storage.ErrUnknownOutcome, ctx.Err())
	}, nil)
	a.patch(configMaps+"/a?timeout=100ms", mergePatch, `{"data":{"k":"x"}}`).refused(http.StatusGatewayTimeout,
		metav1.StatusReasonTimeout, "")
	a.backend.set(nil, nil)
}

func TestFault_ClosedBackend(t *testing.T) {
	t.Parallel()
	a := assemble(t, builtin.Kinds(), apiserver.Options{RequestTimeout: 5 * time.Second})
	a.create(configMaps, configMap("a"))
	require.NoError(t, a.backend.Close())
	for verb, write := range a.writes() {
		answered := write()
		require.Contains(t, []int{http.StatusServiceUnavailable, http.StatusGatewayTimeout}, answered.code, "%s: %s",
			verb, answered.body)
	}
	require.Contains(t, []int{http.StatusServiceUnavailable, http.StatusGatewayTimeout}, a.get(configMaps).code)
	a.get("/livez").ok(http.StatusOK)
	a.get("/readyz").ok(http.StatusInternalServerError)
}

// panicking returns the kind ConfigMap with a validation that panics for one name.
func panicking() []*api.Resource {
	kinds := builtin.Kinds()
	for _, res := range kinds {
		if res.Kind == "ConfigMap" {
			res.Validate = func(obj api.Object) field.ErrorList {
				if obj.GetName() == "boom" {
					panic("boom")
				}
				return nil
			}
			res.Terminate = func(obj api.Object) {
				if obj.GetName() == "fuse" {
					panic("fuse")
				}
			}
		}
	}
	return kinds
}

func TestPanic_IsA500AndALogLine(t *testing.T) {
	t.Parallel()
	a := assemble(t, panicking(), apiserver.Options{})
	a.do(http.MethodPost, configMaps, configMap("boom")).refused(http.StatusInternalServerError,
		metav1.StatusReasonInternalError, "panic while serving")
	require.Contains(t, a.log.String(), `msg="panic while serving"`)
	require.Contains(t, a.log.String(), "panic=boom")
	a.gone(configMaps + "/boom")
	metrics := string(a.get("/metrics").ok(http.StatusOK).body)
	require.Contains(t, metrics,
		`apiserver_request_total{code="500",component="apiserver",dry_run="",group="",resource="configmaps"`)
	require.NotContains(t, metrics, `code="0"`)
}

func TestPanic_InADeleteCollectionDoesNotEndTheServer(t *testing.T) {
	t.Parallel()
	a := assemble(t, panicking(), apiserver.Options{})
	a.create(configMaps, configMap("a"))
	a.create(configMaps, configMap("fuse"))
	a.delete(configMaps, nil).refused(http.StatusInternalServerError, metav1.StatusReasonInternalError,
		"panic while deleting")
	require.Equal(t, []string{"fuse"}, a.get(configMaps).names())
}

// A watch does not end because it is idle for longer than the request timeout.
func TestWatch_OutlivesTheRequestTimeout(t *testing.T) {
	t.Parallel()
	// The other requests must be answered in this time.
	a := assemble(t, builtin.Kinds(), apiserver.Options{RequestTimeout: 5 * time.Second})
	for name, http2 := range protocols {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &server{t: t, config: a.config, http: httpClient(t, a.config, http2)}
			own := map[bool]string{false: "one", true: "two"}[http2]
			w := s.watch(configMaps + "?watch&fieldSelector=metadata.name%3D" + own)
			s.create(configMaps, configMap(own))
			w.expect("ADDED", own)
			clock := s.watch(pods + "?watch=1&timeoutSeconds=6")
			_, more := clock.next()
			require.False(t, more)
			s.delete(configMaps+"/"+own, nil).ok(http.StatusOK)
			w.expect("DELETED", own)
		})
	}
}

func TestWatch_TooOldARevisionIsGone(t *testing.T) {
	t.Parallel()
	a := assemble(t, builtin.Kinds(), apiserver.Options{})
	first := a.create(configMaps, configMap("a")).object().GetResourceVersion()
	var last *unstructured.Unstructured
	for i := range 2 * logEvents {
		last = a.patch(configMaps+"/a", mergePatch, fmt.Sprintf(`{"data":{"k":"%d"}}`, i)).ok(http.StatusOK).object()
	}
	revision, err := a.backend.Revision(t.Context())
	require.NoError(t, err)
	require.NoError(t, a.backend.Compact(t.Context(), revision))
	a.get(configMaps + "/a").ok(http.StatusOK) // a consistent read: the log has all events
	for _, query := range []string{"", "&sendInitialEvents=false&resourceVersionMatch=NotOlderThan"} {
		e := a.watch(configMaps+"?watch=1&resourceVersion="+first+query).expect("ERROR", "")
		require.Equal(t, "Status", e.Object.GetKind())
		require.EqualValues(t, http.StatusGone, e.Object.Object["code"])
		require.Equal(t, string(metav1.StatusReasonExpired), e.Object.Object["reason"])
	}
	a.get(configMaps+"?resourceVersionMatch=Exact&resourceVersion="+first).refused(http.StatusGone,
		metav1.StatusReasonExpired, "too old")
	w := a.watch(configMaps + "?watch=1&resourceVersion=" + last.GetResourceVersion())
	a.create(configMaps, configMap("b"))
	w.expect("ADDED", "b")
}

func TestWatch_EndsWithAnErrorEventIfItCannotContinue(t *testing.T) {
	t.Parallel()
	a := assemble(t, builtin.Kinds(), apiserver.Options{})
	w := a.watch(configMaps + "?watch=1")
	a.create(configMaps, configMap("a"))
	w.expect("ADDED", "a")
	require.NoError(t, a.store.Close())
	e, ok := w.next()
	require.True(t, ok)
	require.Equal(t, "ERROR", e.Type)
	require.Equal(t, "Status", e.Object.GetKind())
	require.Equal(t, string(metav1.StatusReasonServiceUnavailable), e.Object.Object["reason"])
	_, ok = w.next()
	require.False(t, ok)
}

func TestServe_DrainEndsWatchesAtOnce(t *testing.T) {
	t.Parallel()
	s := start(t)
	var ended []*watchStream
	for range 5 {
		ended = append(ended, s.watch(pods+"?watch=1"))
	}
	require.NotEmpty(t, ended)
	// The watches stay open: the shutdown must not wait for them, which the cleanup of start checks.
	t.Cleanup(func() {
		for _, w := range ended {
			_, ok := w.next()
			require.False(t, ok)
		}
	})
}
