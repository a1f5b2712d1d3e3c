package apiserver_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

func TestWatch_StreamsChunkedLines(t *testing.T) {
	t.Parallel()
	s := start(t)
	for name, http2 := range protocols {
		t.Run(name, func(t *testing.T) {
			s := &server{t: t, config: s.config, http: httpClient(t, s.config, http2)}
			ns := namespaces + "/" + s.create(namespaces, m{"metadata": m{"generateName": "w-"}}).object().GetName()
			created := s.create(ns+"/configmaps", configMap("before"))
			w := s.watch(ns + "/configmaps?watch=1")
			require.Equal(t, "application/json", w.res.Header.Get("Content-Type"))
			if !http2 {
				require.Equal(t, []string{"chunked"}, w.res.TransferEncoding)
			}
			require.Equal(t, created.object().Object, w.expect("ADDED", "before").Object.Object)
			s.create(ns+"/configmaps", configMap("a"))
			w.expect("ADDED", "a")
			s.patch(ns+"/configmaps/a", mergePatch, `{"data":{"k":"w"}}`).ok(http.StatusOK)
			modified := w.expect("MODIFIED", "a")
			require.Equal(t, s.get(ns+"/configmaps/a").object().Object, modified.Object.Object)
			s.delete(ns+"/configmaps/a", nil).ok(http.StatusOK)
			deleted := w.expect("DELETED", "a")
			require.NotEqual(t, modified.Object.GetResourceVersion(), deleted.Object.GetResourceVersion())
			require.Equal(t, modified.Object.GetUID(), deleted.Object.GetUID())
		})
	}
}

func TestWatch_ResumesWithoutGapFromAResourceVersion(t *testing.T) {
	t.Parallel()
	s := start(t)
	from := s.get(configMaps).object().GetResourceVersion()
	var revisions []string
	for i := range 20 {
		revisions = append(revisions,
			s.create(configMaps, configMap(fmt.Sprintf("c%02d", i))).object().GetResourceVersion())
	}
	w := s.watch(configMaps + "?watch=true&resourceVersion=" + from)
	for i := range 20 {
		w.expect("ADDED", fmt.Sprintf("c%02d", i))
	}
	w = s.watch(configMaps + "?watch=true&resourceVersion=" + revisions[9])
	for i := 10; i < 20; i++ {
		e := w.expect("ADDED", fmt.Sprintf("c%02d", i))
		require.Equal(t, revisions[i], e.Object.GetResourceVersion())
	}
}

func TestWatch_LabelSelectorTurnsTransitionsIntoAddedAndDeleted(t *testing.T) {
	t.Parallel()
	s := start(t)
	w := s.watch(configMaps + "?watch=1&labelSelector=app%3Dx")
	s.create(configMaps, configMap("a"))
	s.patch(configMaps+"/a", mergePatch, `{"metadata":{"labels":{"app":"x"}}}`).ok(http.StatusOK)
	require.Equal(t, "x", w.expect("ADDED", "a").Object.GetLabels()["app"])
	s.patch(configMaps+"/a", mergePatch, `{"data":{"k":"2"}}`).ok(http.StatusOK)
	w.expect("MODIFIED", "a")
	left := s.patch(configMaps+"/a", mergePatch, `{"metadata":{"labels":{"app":"y"}}}`).ok(http.StatusOK).object()
	last := w.expect("DELETED", "a").Object
	require.Equal(t, "x", last.GetLabels()["app"], "as it was when it still matched")
	require.Equal(t, left.GetResourceVersion(), last.GetResourceVersion())
	s.delete(configMaps+"/a", nil).ok(http.StatusOK)
	s.create(configMaps, with(configMap("b"), "labels", m{"app": "x"}))
	w.expect("ADDED", "b")
}

func TestWatch_FieldSelectors(t *testing.T) {
	t.Parallel()
	s := start(t)
	bind := func(name, node string) {
		s.do(http.MethodPost, pods+"/"+name+"/binding", m{"metadata": m{"name": name}, "target": m{"name": node}}).ok(
			http.StatusCreated)
	}
	byName := s.watch(pods + "?watch=1&fieldSelector=metadata.name%3Db")
	byNode := s.watch("/api/v1/pods?watch=true&fieldSelector=spec.nodeName%3Dn1")
	unscheduled := s.watch("/api/v1/pods?watch=true&fieldSelector=spec.nodeName%3D")
	running := s.watch(pods + "?watch=1&fieldSelector=status.phase%3DRunning,metadata.namespace%3Ddefault")
	notB := s.watch(pods + "?watch=1&fieldSelector=metadata.name!%3Db")
	s.create(pods, pod("a"))
	unscheduled.expect("ADDED", "a")
	notB.expect("ADDED", "a")
	s.create(pods, pod("b"))
	unscheduled.expect("ADDED", "b")
	byName.expect("ADDED", "b")
	bind("a", "n1")
	byNode.expect("ADDED", "a")
	unscheduled.expect("DELETED", "a")
	notB.expect("MODIFIED", "a")
	bind("b", "n2")
	unscheduled.expect("DELETED", "b")
	byName.expect("MODIFIED", "b")
	s.patch(pods+"/a/status", mergePatch, `{"status":{"phase":"Running"}}`).ok(http.StatusOK)
	byNode.expect("MODIFIED", "a")
	running.expect("ADDED", "a")
	s.patch(pods+"/a/status", mergePatch, `{"status":{"phase":"Succeeded"}}`).ok(http.StatusOK)
	running.expect("DELETED", "a")

	const events = "/api/v1/namespaces/default/events"
	ofPod := s.watch(events +
		"?watch=1&fieldSelector=involvedObject.kind%3DPod,involvedObject.name%3Da,reason%3DStarted")
	for _, name := range []string{"b", "a"} {
		s.create(events, m{"metadata": m{"name": "e-" + name}, "reason": "Started", "type": "Normal",
			"involvedObject": m{"kind": "Pod", "name": name, "namespace": "default"}})
	}
	ofPod.expect("ADDED", "e-a")
}

func TestWatch_UnsupportedFieldIs400(t *testing.T) {
	t.Parallel()
	s := start(t)
	for path, words := range map[string]string{
		pods + "?fieldSelector=spec.colour%3Dred":               "field label not supported: spec.colour",
		pods + "?watch=1&fieldSelector=spec.colour%3Dred":       "field label not supported: spec.colour",
		configMaps + "?watch=1&fieldSelector=data.k%3Dv":        `"data.k" is not a known field selector: only "metadata.name", "metadata.namespace"`,
		pods + "?watch=1&fieldSelector=a%3Db%3Dc%2C%3D":         "",
		pods + "?watch=1&labelSelector=%3D%3D":                  "found '=='",
		pods + "?labelSelector=a+in":                            "unable to parse",
		pods + "?watch=1&labelSelector=a%20notin%20(%2C)%2C%2C": "found ','",
	} {
		s.get(path).refused(http.StatusBadRequest, metav1.StatusReasonBadRequest, words)
	}
}

func TestWatch_EndsAfterTimeoutSeconds(t *testing.T) {
	t.Parallel()
	s := start(t)
	began := time.Now()
	w := s.watch(configMaps + "?watch=1&timeoutSeconds=1")
	_, ok := w.next()
	require.False(t, ok)
	require.NoError(t, w.scan.Err(), "an orderly end")
	require.GreaterOrEqual(t, time.Since(began), time.Second)
	w = s.watch(configMaps + "?watch=1&timeoutSeconds=1&allowWatchBookmarks=true")
	last := w.expect("BOOKMARK", "")
	require.NotEmpty(t, last.Object.GetResourceVersion())
	require.Equal(t, "ConfigMap", last.Object.GetKind())
}

func TestWatch_SendInitialEventsEndsThemWithABookmark(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.create(configMaps, configMap("a"))
	s.create(configMaps, configMap("b"))
	query := "?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
	for _, accept := range []string{"application/json", asPartial, asTable} {
		w := s.watch(configMaps+query, "Accept", accept)
		for range 2 {
			e, ok := w.next()
			require.True(t, ok)
			require.Equal(t, "ADDED", e.Type)
		}
		e, ok := w.next()
		require.True(t, ok)
		require.Equal(t, "BOOKMARK", e.Type)
		if accept != asTable {
			require.Equal(t, "true", e.Object.GetAnnotations()[metav1.InitialEventsAnnotationKey])
		}
		require.NotEmpty(t, e.Object.GetResourceVersion())
	}
	w := s.watch(configMaps + "?watch=1&sendInitialEvents=false&resourceVersionMatch=NotOlderThan")
	s.create(configMaps, configMap("c"))
	w.expect("ADDED", "c")
}

// A bookmark of a Table is a Table of one row. The row's object has the metadata of the bookmark.
func TestWatch_TablesMarkTheEndOfTheInitialEvents(t *testing.T) {
	t.Parallel()
	s := startValves(t)
	s.create(configMaps, configMap("a"))
	const query = "?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
	for path, kind := range map[string]string{configMaps: "ConfigMap", valves: "Valve", oldValves: "Valve",
		"/apis/autoscaling/v1/horizontalpodautoscalers":           "HorizontalPodAutoscaler",
		"/apis/apiextensions.k8s.io/v1/customresourcedefinitions": "CustomResourceDefinition"} {
		for include, want := range map[string]string{"": "PartialObjectMetadata", "Metadata": "PartialObjectMetadata",
			"Object": kind, "None": "PartialObjectMetadata"} {
			w := s.watch(path+query+"&includeObject="+include, "Accept", asTable)
			e, _ := w.next()
			columns := e.Object.Object["columnDefinitions"]
			require.NotEmpty(t, columns, "the first Table has them")
			for ; e.Type == "ADDED"; e, _ = w.next() {
			}
			require.Equal(t, "BOOKMARK", e.Type)
			require.Equal(t, "Table", e.Object.GetKind())
			rows := e.Object.Object["rows"].([]any)
			require.Len(t, rows, 1)
			row := rows[0].(m)
			require.Len(t, row["cells"], len(columns.([]any)))
			object := &unstructured.Unstructured{Object: row["object"].(m)}
			require.Equal(t, want, object.GetKind(), "%s %s", path, include)
			require.Equal(t, map[string]string{metav1.InitialEventsAnnotationKey: "true"}, object.GetAnnotations())
			require.Equal(t, e.Object.GetResourceVersion(), object.GetResourceVersion())
		}
	}
	// Other bookmarks, such as the last one of a watch, do not have the annotation.
	w := s.watch(configMaps+"?watch=1&allowWatchBookmarks=true&timeoutSeconds=1&includeObject=None", "Accept", asTable)
	e, _ := w.next()
	for ; e.Type == "ADDED"; e, _ = w.next() {
	}
	require.Equal(t, "BOOKMARK", e.Type)
	require.Nil(t, e.Object.Object["rows"].([]any)[0].(m)["object"])
}

func TestWatch_TablesAndMetadata(t *testing.T) {
	t.Parallel()
	s := start(t)
	tables := s.watch(pods+"?watch=1", "Accept", asTable)
	partials := s.watch(pods+"?watch=1", "Accept", asPartial)
	s.create(pods, pod("a"))
	first, _ := tables.next()
	require.Equal(t, "Table", first.Object.GetKind())
	require.NotEmpty(t, first.Object.Object["columnDefinitions"])
	require.Equal(t, "a", first.Object.Object["rows"].([]any)[0].(m)["cells"].([]any)[0])
	partial := partials.expect("ADDED", "a")
	require.Equal(t, "PartialObjectMetadata", partial.Object.GetKind())
	require.NotContains(t, partial.Object.Object, "spec")
	s.patch(pods+"/a", mergePatch, `{"metadata":{"labels":{"x":"y"}}}`).ok(http.StatusOK)
	second, _ := tables.next()
	require.Empty(t, second.Object.Object["columnDefinitions"], "the columns are sent once")
	require.Equal(t, "MODIFIED", second.Type)
}

// In Kubernetes a GET of one object cannot watch. A client watches one object by a field selector on its collection.
func TestWatch_OfOneObjectIsAFieldSelector(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.create(configMaps, configMap("a"))
	require.Equal(t, "ConfigMap", s.get(configMaps+"/a?watch=1").ok(http.StatusOK).at("kind"))
	w := s.watch(configMaps + "?watch=1&fieldSelector=metadata.name%3Da")
	w.expect("ADDED", "a")
	s.create(configMaps, configMap("b"))
	s.delete(configMaps+"/a", nil).ok(http.StatusOK)
	w.expect("DELETED", "a")
}

func TestWatch_RefusesBadParameters(t *testing.T) {
	t.Parallel()
	s := start(t)
	for _, query := range []string{"resourceVersion=abc", "resourceVersion=-1", "timeoutSeconds=abc",
		"timeoutSeconds=-1"} {
		s.get(configMaps+"?watch=1&"+query).refused(http.StatusBadRequest, metav1.StatusReasonBadRequest, "invalid")
	}
	for _, value := range []string{"x", "", "1.5", "99999999999999999999"} {
		for _, verb := range []string{http.MethodGet, http.MethodDelete} {
			s.do(verb, configMaps+"?timeoutSeconds="+value, nil).refused(http.StatusBadRequest,
				metav1.StatusReasonBadRequest, "strconv.ParseInt")
		}
	}
	s.get(configMaps + "?timeoutSeconds=5").ok(http.StatusOK)
	s.delete(configMaps+"?timeoutSeconds=5", nil).ok(http.StatusOK)
	s.get(configMaps+"?watch=1", "Accept", "image/png").refused(http.StatusNotAcceptable,
		metav1.StatusReasonNotAcceptable, "application/json")
}

func TestReflector_SeesEverythingWithWatchListOnAndOff(t *testing.T) {
	t.Parallel()
	s := start(t)
	for _, contentType := range []string{"application/json", "application/vnd.kubernetes.protobuf"} {
		config := *s.config
		config.ContentType = contentType
		config.AcceptContentTypes = contentType
		client := kubernetes.NewForConfigOrDie(&config)
		for _, watchList := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s WatchList=%t", contentType, watchList), func(t *testing.T) {
				s := &server{t: t, config: s.config, http: s.http}
				ns := s.create(namespaces, m{"metadata": m{"generateName": "r-"}}).object().GetName()
				path := namespaces + "/" + ns + "/configmaps"
				s.create(path, configMap("before"))
				store := cache.NewStore(cache.MetaNamespaceKeyFunc)
				var semantics any = client
				if !watchList {
					semantics = listsFirst{}
				}
				lw := cache.ToListWatcherWithWatchListSemantics(
					cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "configmaps", ns, fields.Everything()),
					semantics)
				reflector := cache.NewReflectorWithOptions(lw, &corev1.ConfigMap{}, store, cache.ReflectorOptions{})
				stop, done := make(chan struct{}), make(chan struct{})
				go func() { defer close(done); reflector.Run(stop) }()
				defer func() { close(stop); <-done }()
				s.create(path, configMap("a"))
				s.create(path, configMap("b"))
				s.delete(path+"/a", nil).ok(http.StatusOK)
				require.EventuallyWithT(t, func(c *assert.CollectT) {
					keys := strings.Join(sorted(store.ListKeys()), " ")
					assert.Equal(c, ns+"/b "+ns+"/before", keys)
				}, patience, tick)
			})
		}
	}
}

// listsFirst disables the streaming lists of a reflector.
type listsFirst struct{}

func (listsFirst) IsWatchListSemanticsUnSupported() bool { return true }
