package informer_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/coxswain-dev/coxswain/internal/client/informer"
)

// exchange is one request that a script expects, and its answer. If hangs is set, a watch stays open after its
// events.
type exchange struct {
	query  string // the parameters that matter, in order
	status int    // 200 where 0
	answer []any
	hangs  bool
}

type event struct {
	Type   string `json:"type"`
	Object any    `json:"object"`
}

func at(version string, cm *corev1.ConfigMap) *corev1.ConfigMap {
	cm = cm.DeepCopy()
	cm.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}
	cm.ResourceVersion = version
	return cm
}

func bookmark(version string, initial bool) event {
	cm := at(version, &corev1.ConfigMap{})
	if initial {
		cm.Annotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
	}
	return event{"BOOKMARK", cm}
}

func status(code int, reason metav1.StatusReason) metav1.Status {
	return metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
		Code: int32(code), Reason: reason}
}

func list(version, next string, items ...*corev1.ConfigMap) corev1.ConfigMapList {
	l := corev1.ConfigMapList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMapList"},
		ListMeta: metav1.ListMeta{ResourceVersion: version, Continue: next}}
	for _, cm := range items {
		l.Items = append(l.Items, *cm)
	}
	return l
}

// play runs an informer of ConfigMaps against a server that follows a script. done returns when the whole script
// has been requested.
func play(t *testing.T, script ...exchange) (*informer.Informer, *diary, func()) {
	played := make(chan exchange, len(script))
	for _, e := range script {
		played <- e
	}
	over := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var e exchange
		select {
		case e = <-played:
		default:
			t.Errorf("a request that the script does not have: %s", r.URL)
			return
		}
		if got := matter(r.URL.Query()); got != e.query {
			t.Errorf("got %q, and the script has %q", got, e.query)
		}
		w.Header().Set("Content-Type", "application/json")
		if e.status != 0 {
			w.WriteHeader(e.status)
		}
		for _, o := range e.answer {
			_ = json.NewEncoder(w).Encode(o) // the informer may have closed the connection
		}
		_ = http.NewResponseController(w).Flush()
		if len(played) == 0 {
			close(over)
		}
		if e.hangs {
			<-r.Context().Done()
		}
	}))
	t.Cleanup(server.Close)
	client := kubernetes.NewForConfigOrDie(&rest.Config{Host: server.URL, QPS: -1})
	f := informer.NewFactory(client, informer.Options{})
	var d diary
	i := configMaps(f)
	_, err := i.AddEventHandler(&d)
	require.NoError(t, err)
	start(t, f)
	return i, &d, func() { <-over }
}

func configMaps(f *informer.Factory) *informer.Informer {
	f.Core().V1().ConfigMaps().Informer()
	return f.Existing(corev1.SchemeGroupVersion.WithResource("configmaps"))
}

// matter returns the parameters of a request that scripts name.
func matter(q url.Values) string {
	var named []string
	for _, name := range []string{"watch", "sendInitialEvents", "resourceVersionMatch", "resourceVersion", "limit",
		"continue"} {
		if q.Has(name) {
			named = append(named, name+"="+q.Get(name))
		}
	}
	if q.Get("watch") != "" && q.Get("allowWatchBookmarks") != "true" {
		named = append(named, "without bookmarks")
	}
	return strings.Join(named, " ")
}

const (
	streamed = "watch=true sendInitialEvents=true resourceVersionMatch=NotOlderThan"
	watched  = "watch=true resourceVersion="
)

func TestInformer_ResumesAfterAWatchHasEnded(t *testing.T) {
	t.Parallel()
	i, d, done := play(t,
		exchange{query: streamed, answer: []any{event{"ADDED", at("3", configMap("a", "1"))}, bookmark("5", true)}},
		exchange{query: watched + "5", answer: []any{event{"MODIFIED", at("6", configMap("a", "2"))}}},
		exchange{query: watched + "6", answer: []any{event{"DELETED", at("8", configMap("a", "2"))},
			bookmark("12", false)}},
		exchange{query: watched + "12", hangs: true},
	)
	done()
	d.await(t, "begin a 1", "update a 2", "delete a 2")
	require.Equal(t, "12", i.LastSyncResourceVersion())
	require.Equal(t, "12", i.GetIndexer().LastStoreSyncResourceVersion())
}

func TestInformer_ListsAgainIfItsVersionHasExpired(t *testing.T) {
	t.Parallel()
	for name, expired := range map[string]exchange{
		"answer": {query: watched + "5", status: http.StatusGone,
			answer: []any{status(410, metav1.StatusReasonExpired)}},
		"event": {query: watched + "5", answer: []any{event{"ERROR", status(410, metav1.StatusReasonExpired)}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, d, done := play(t,
				exchange{query: streamed, answer: []any{event{"ADDED", at("2", configMap("gone", "1"))},
					event{"ADDED", at("3", configMap("same", "1"))}, bookmark("5", true)}},
				expired,
				exchange{query: streamed, hangs: true, answer: []any{event{"ADDED", at("3", configMap("same", "1"))},
					event{"ADDED", at("9", configMap("new", "1"))}, bookmark("9", true)}},
			)
			done()
			require.Eventually(t, func() bool {
				d.mu.Lock()
				defer d.mu.Unlock()
				return len(d.lines) == 4
			}, time.Minute, time.Millisecond)
			lines := d.take()
			require.ElementsMatch(t, []string{"begin gone 1", "begin same 1"}, lines[:2])
			require.Equal(t, []string{"unknown delete gone 1", "begin new 1"}, lines[2:])
		})
	}
}

func TestInformer_ListsIfListsCannotBeWatched(t *testing.T) {
	t.Parallel()
	_, d, done := play(t,
		exchange{query: streamed, status: 422, answer: []any{status(422, metav1.StatusReasonInvalid)}},
		exchange{query: "resourceVersion=0", answer: []any{list("5", "", at("3", configMap("a", "1")))}},
		exchange{query: watched + "5", answer: []any{event{"ERROR", status(410, metav1.StatusReasonExpired)}}},
		exchange{query: "limit=500", answer: []any{list("9", "more", at("3", configMap("a", "1")))}},
		exchange{query: "limit=500 continue=more", answer: []any{list("9", "", at("8", configMap("b", "1")))}},
		exchange{query: watched + "9", answer: []any{event{"MODIFIED", at("10", configMap("b", "2"))}}, hangs: true},
	)
	done()
	d.await(t, "begin a 1", "begin b 1", "update b 2")
}

func TestInformer_RetriesAfterFailures(t *testing.T) {
	t.Parallel()
	i, d, done := play(t,
		exchange{query: streamed, status: 503, answer: []any{status(503, metav1.StatusReasonServiceUnavailable)}},
		exchange{query: streamed, answer: []any{event{"ADDED", at("1", configMap("half", "1"))}}}, // and no more
		exchange{query: streamed, answer: []any{event{"ADDED", at("3", configMap("a", "1"))}, bookmark("5", true)}},
		exchange{query: watched + "5", status: 500, answer: []any{"no status"}},
		exchange{query: watched + "5", answer: []any{event{"ADDED", at("6", configMap("b", "1"))}}, hangs: true},
	)
	done()
	d.await(t, "begin a 1", "add b 1")
	require.Len(t, i.GetStore().List(), 2)
}

func TestBusy_EndsAfterTheHandlersOrABookmark(t *testing.T) {
	t.Parallel()
	more := make(chan any)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		for {
			_ = http.NewResponseController(w).Flush() // the informer may have closed the connection
			select {
			case o := <-more:
				_ = json.NewEncoder(w).Encode(o)
			case <-r.Context().Done():
				return
			}
		}
	}))
	t.Cleanup(server.Close)
	client := kubernetes.NewForConfigOrDie(&rest.Config{Host: server.URL})
	f := informer.NewFactory(client, informer.Options{})
	i := configMaps(f)
	handling, goOn := make(chan struct{}), make(chan struct{})
	_, err := i.AddEventHandler(handlerFunc(func() { close(handling); <-goOn }))
	require.NoError(t, err)
	require.Empty(t, f.Busy(5), "it has not begun")
	start(t, f)
	require.Eventually(t, func() bool { return f.Busy(5) != "" }, time.Minute, time.Millisecond)
	more <- bookmark("5", true)
	require.Eventually(t, func() bool { return f.Busy(5) == "" }, time.Minute, time.Millisecond)
	require.Equal(t, "configmaps have been seen up to revision 5 of 6", f.Busy(6))
	more <- event{"ADDED", at("6", configMap("a", "1"))}
	<-handling
	require.NotEmpty(t, f.Busy(6), "a handler is at work")
	close(goOn)
	require.Eventually(t, func() bool { return f.Busy(6) == "" }, time.Minute, time.Millisecond)
	require.NotEmpty(t, f.Busy(9))
	more <- bookmark("9", false)
	require.Eventually(t, func() bool { return f.Busy(9) == "" }, time.Minute, time.Millisecond)
}

type handlerFunc func()

func (f handlerFunc) OnAdd(any, bool)   { f() }
func (f handlerFunc) OnUpdate(_, _ any) { f() }
func (f handlerFunc) OnDelete(any)      { f() }

func TestOnError_GetsTheServersStatus(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(server.Close)
	client := kubernetes.NewForConfigOrDie(&rest.Config{Host: server.URL})
	for _, resource := range []string{"widgets", "../pods"} {
		i := informer.NewMetadata(client, corev1.SchemeGroupVersion.WithResource(resource), nil)
		errs := make(chan error, 100)
		i.OnError(func(err error) { errs <- err })
		stop := make(chan struct{})
		ended := make(chan struct{})
		go func() { defer close(ended); i.Run(stop) }()
		require.True(t, apierrors.IsNotFound(<-errs))
		close(stop)
		<-ended
	}
}
