package kubectllite

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/coxswain-dev/coxswain/internal/kubeversion"
	"github.com/coxswain-dev/coxswain/kubectl-lite/clitest"
)

// fakeServer is a minimal API server for the commands under test: a few kinds, discovery, tables of names, patches and
// watches. TestParity covers the answers of real servers.
type fakeServer struct {
	*httptest.Server
	mu       sync.Mutex
	revision int
	objects  map[string]map[string]any // by path: /api/v1/namespaces/default/pods/web
	watchers map[chan map[string]any]string
	requests []string
	stop     chan struct{}
	streams  func(http.ResponseWriter, *http.Request) bool // answers exec and the like; may be nil
}

type fakeKind struct {
	group, version, kind, plural, short string
	namespaced                          bool
	typed                               runtime.Object
}

var fakeKinds = []fakeKind{
	{"", "v1", "Namespace", "namespaces", "ns", false, &corev1.Namespace{}},
	{"", "v1", "Node", "nodes", "no", false, &corev1.Node{}},
	{"", "v1", "Pod", "pods", "po", true, &corev1.Pod{}},
	{"", "v1", "ConfigMap", "configmaps", "cm", true, &corev1.ConfigMap{}},
	{"", "v1", "Secret", "secrets", "", true, &corev1.Secret{}},
	{"", "v1", "Service", "services", "svc", true, &corev1.Service{}},
	{"", "v1", "ServiceAccount", "serviceaccounts", "sa", true, &corev1.ServiceAccount{}},
	{"", "v1", "Event", "events", "ev", true, &corev1.Event{}},
	{"apps", "v1", "Deployment", "deployments", "deploy", true, &appsv1.Deployment{}},
	{"apps", "v1", "ReplicaSet", "replicasets", "rs", true, &appsv1.ReplicaSet{}},
	{"example.com", "v1", "Widget", "widgets", "", true, nil},
}

func newFakeServer(t *testing.T) *fakeServer {
	t.Helper()
	f := &fakeServer{objects: map[string]map[string]any{}, watchers: map[chan map[string]any]string{}, revision: 1,
		stop: make(chan struct{})}
	f.Server = httptest.NewServer(f)
	t.Cleanup(func() { close(f.stop); f.Server.Close() })
	return f
}

// kubeconfig writes a kubeconfig for the server and returns its path.
func (f *fakeServer) kubeconfig(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: fake
clusters: [{name: fake, cluster: {server: %q}}]
users: [{name: fake, user: {}}]
contexts: [{name: fake, context: {cluster: fake, user: fake}}]
`, f.URL)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// run runs one invocation against the server.
func (f *fakeServer) run(t *testing.T, stdin string, args ...string) clitest.Outcome {
	t.Helper()
	return clitest.Run(t, context.Background(), f.kubeconfig(t), stdin, args...)
}

func (f *fakeServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	f.requests = append(f.requests, r.Method+" "+r.URL.RequestURI())
	f.mu.Unlock()
	if f.streams != nil && f.streams(w, r) {
		return
	}
	if answer := f.discovery(r.URL.Path); answer != nil {
		respond(w, http.StatusOK, answer)
		return
	}
	kind, name, ok := locate(r.URL.Path)
	if !ok {
		refuse(w, http.StatusNotFound, "NotFound", "the server could not find the requested resource", "")
		return
	}
	switch {
	case r.Method == http.MethodGet && name == "" && r.URL.Query().Get("watch") != "":
		f.watch(w, r, kind)
	case r.Method == http.MethodGet && name == "":
		f.list(w, r, kind)
	case r.Method == http.MethodGet:
		f.get(w, r, kind, name)
	case r.Method == http.MethodPost:
		f.create(w, r, kind)
	case r.Method == http.MethodPatch, r.Method == http.MethodPut:
		f.update(w, r, kind, name)
	case r.Method == http.MethodDelete:
		f.remove(w, r, kind, name)
	}
}

// asked counts the requests that contain the text.
func (f *fakeServer) asked(text string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, request := range f.requests {
		if strings.Contains(request, text) {
			n++
		}
	}
	return n
}

func (f *fakeServer) discovery(path string) any {
	groupList := func(group, version string) any {
		list := metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"},
			GroupVersion: strings.TrimPrefix(group+"/"+version, "/")}
		for _, k := range fakeKinds {
			if k.group != group {
				continue
			}
			one := metav1.APIResource{Name: k.plural, SingularName: strings.ToLower(k.kind), Kind: k.kind,
				Namespaced: k.namespaced,
				Verbs:      metav1.Verbs{"create", "delete", "get", "list", "patch", "update", "watch"}}
			if k.short != "" {
				one.ShortNames = []string{k.short}
			}
			if k.plural == "pods" || k.plural == "deployments" {
				one.Categories = []string{"all"}
			}
			list.APIResources = append(list.APIResources, one)
		}
		return list
	}
	switch path {
	case "/version":
		return map[string]string{"major": kubeversion.Major, "minor": kubeversion.Minor,
			"gitVersion": kubeversion.Release + "+fake"}
	case "/api":
		return metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions", APIVersion: "v1"},
			Versions: []string{"v1"}}
	case "/apis":
		list := metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}
		for _, g := range []string{"apps", "example.com"} {
			v := metav1.GroupVersionForDiscovery{GroupVersion: g + "/v1", Version: "v1"}
			list.Groups = append(list.Groups, metav1.APIGroup{Name: g, Versions: []metav1.GroupVersionForDiscovery{v},
				PreferredVersion: v})
		}
		return list
	case "/api/v1":
		return groupList("", "v1")
	case "/apis/apps/v1":
		return groupList("apps", "v1")
	case "/apis/example.com/v1":
		return groupList("example.com", "v1")
	}
	return nil
}

// locate returns the kind and name in a path. The name may be "".
func locate(path string) (kind fakeKind, name string, ok bool) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	group, rest := "", parts
	switch {
	case len(parts) > 2 && parts[0] == "api":
		rest = parts[2:]
	case len(parts) > 3 && parts[0] == "apis":
		group, rest = parts[1], parts[3:]
	default:
		return kind, "", false
	}
	if rest[0] == "namespaces" && len(rest) > 2 {
		rest = rest[2:]
	}
	for _, k := range fakeKinds {
		if k.group == group && k.plural == rest[0] {
			if len(rest) > 1 {
				name = rest[1]
			}
			return k, name, true
		}
	}
	return kind, "", false
}

func respond(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body)
}

func refuse(w http.ResponseWriter, code int32, reason metav1.StatusReason, message, name string) {
	respond(w, int(code), metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure",
		Reason: reason, Message: message, Code: code, Details: &metav1.StatusDetails{Name: name}})
}

func (k fakeKind) notFound(w http.ResponseWriter, name string) {
	resource := strings.TrimSuffix(k.plural+"."+k.group, ".")
	refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound, fmt.Sprintf("%s %q not found", resource, name), name)
}

// answer sends an object or a list, as a table if the request asks for one.
func answer(w http.ResponseWriter, r *http.Request, code int, obj map[string]any, items []map[string]any) {
	if !strings.Contains(r.Header.Get("Accept"), "as=Table") {
		respond(w, code, obj)
		return
	}
	if items == nil {
		items = []map[string]any{obj}
	}
	rows := []any{}
	for _, item := range items {
		u := unstructured.Unstructured{Object: item}
		rows = append(rows, map[string]any{"cells": []any{u.GetName(), u.GetResourceVersion()},
			"object": map[string]any{
				"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": item["metadata"]}})
	}
	respond(w, code, map[string]any{"kind": "Table", "apiVersion": "meta.k8s.io/v1",
		"metadata": map[string]any{"resourceVersion": (&unstructured.Unstructured{Object: obj}).GetResourceVersion()},
		"columnDefinitions": []any{
			map[string]any{"name": "Name", "type": "string", "format": "name", "priority": 0},
			map[string]any{"name": "Revision", "type": "string", "priority": 1},
		}, "rows": rows})
}

func (f *fakeServer) list(w http.ResponseWriter, r *http.Request, k fakeKind) {
	f.mu.Lock()
	defer f.mu.Unlock()
	selector, _ := labels.Parse(r.URL.Query().Get("labelSelector"))
	items, raw := []map[string]any{}, []any{}
	for _, path := range sortedKeys(f.objects) {
		kind, _, _ := locate(path)
		u := unstructured.Unstructured{Object: f.objects[path]}
		inside := strings.HasPrefix(path, r.URL.Path+"/") || !strings.Contains(r.URL.Path, "/namespaces/")
		if kind.plural != k.plural || kind.group != k.group || !inside ||
			!selector.Matches(labels.Set(u.GetLabels())) ||
			!named(r, &u) {
			continue
		}
		items, raw = append(items, u.Object), append(raw, u.Object)
	}
	answer(w, r, http.StatusOK, map[string]any{"kind": k.kind + "List", "apiVersion": k.apiVersion(),
		"metadata": map[string]any{"resourceVersion": strconv.Itoa(f.revision)}, "items": raw}, items)
}

func named(r *http.Request, u *unstructured.Unstructured) bool {
	name, ok := strings.CutPrefix(r.URL.Query().Get("fieldSelector"), "metadata.name=")
	return !ok || name == u.GetName()
}

func (k fakeKind) apiVersion() string { return strings.TrimPrefix(k.group+"/"+k.version, "/") }

func (f *fakeServer) get(w http.ResponseWriter, r *http.Request, k fakeKind, name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	obj, ok := f.objects[r.URL.Path]
	if !ok {
		k.notFound(w, name)
		return
	}
	answer(w, r, http.StatusOK, obj, nil)
}

// decode reads an object that a client sent as JSON or as protobuf.
func decode(r *http.Request, obj *map[string]any) error {
	text, err := io.ReadAll(r.Body)
	if err != nil || !strings.Contains(r.Header.Get("Content-Type"), "protobuf") {
		return errors.Join(err, json.Unmarshal(text, obj))
	}
	typed, kind, err := scheme.Codecs.UniversalDeserializer().Decode(text, nil, nil)
	if err != nil {
		return err
	}
	if *obj, err = runtime.DefaultUnstructuredConverter.ToUnstructured(typed); err != nil {
		return err
	}
	(*obj)["apiVersion"], (*obj)["kind"] = kind.ToAPIVersionAndKind()
	return nil
}

func (f *fakeServer) create(w http.ResponseWriter, r *http.Request, k fakeKind) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var obj map[string]any
	if err := decode(r, &obj); err != nil {
		refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error(), "")
		return
	}
	u := unstructured.Unstructured{Object: obj}
	path := r.URL.Path + "/" + u.GetName()
	if _, taken := f.objects[path]; taken {
		refuse(w, http.StatusConflict, metav1.StatusReasonAlreadyExists,
			fmt.Sprintf("%s %q already exists", strings.TrimSuffix(k.plural+"."+k.group, "."), u.GetName()),
			u.GetName())
		return
	}
	if parts := strings.Split(path, "/namespaces/"); len(parts) > 1 && k.namespaced {
		u.SetNamespace(strings.Split(parts[1], "/")[0])
	}
	u.SetUID(types.UID("uid of " + path))
	f.store(r, path, "ADDED", obj)
	answer(w, r, http.StatusCreated, obj, nil)
}

// store keeps the object, unless the request is a dry run, and notifies watchers.
func (f *fakeServer) store(r *http.Request, path, event string, obj map[string]any) {
	if r.URL.Query().Get("dryRun") != "" {
		return
	}
	f.revision++
	u := unstructured.Unstructured{Object: obj}
	u.SetResourceVersion(strconv.Itoa(f.revision))
	if event == "DELETED" {
		delete(f.objects, path)
	} else {
		f.objects[path] = obj
	}
	for ch, prefix := range f.watchers {
		if strings.HasPrefix(path, prefix+"/") {
			ch <- map[string]any{"type": event, "object": u.DeepCopy().Object}
		}
	}
}

func (f *fakeServer) update(w http.ResponseWriter, r *http.Request, k fakeKind, name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	path, isScale := strings.CutSuffix(r.URL.Path, "/scale")
	current, ok := f.objects[path]
	if !ok {
		k.notFound(w, name)
		return
	}
	if isScale {
		_ = unstructured.SetNestedField(current, int64(7), "spec", "replicas")
		respond(w, http.StatusOK, map[string]any{"kind": "Scale", "apiVersion": "autoscaling/v1",
			"metadata": map[string]any{"name": name}, "spec": map[string]any{"replicas": 7}})
		return
	}
	patch, _ := io.ReadAll(r.Body)
	before, _ := json.Marshal(current)
	after, err := applyFakePatch(r, k, before, patch)
	if err != nil {
		refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error(), name)
		return
	}
	var obj map[string]any
	_ = json.Unmarshal(after, &obj)
	f.store(r, path, "MODIFIED", obj)
	answer(w, r, http.StatusOK, obj, nil)
}

func applyFakePatch(r *http.Request, k fakeKind, before, patch []byte) ([]byte, error) {
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	switch kind {
	case "application/strategic-merge-patch+json":
		return strategicpatch.StrategicMergePatch(before, patch, k.typed)
	case "application/json-patch+json":
		ops, err := jsonpatch.DecodePatch(patch)
		if err != nil {
			return nil, err
		}
		return ops.Apply(before)
	case "application/merge-patch+json", "application/apply-patch+yaml":
		return jsonpatch.MergePatch(before, patch)
	default:
		return patch, nil
	}
}

func (f *fakeServer) remove(w http.ResponseWriter, r *http.Request, k fakeKind, name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	obj, ok := f.objects[r.URL.Path]
	if !ok {
		k.notFound(w, name)
		return
	}
	var options metav1.DeleteOptions
	_ = json.NewDecoder(r.Body).Decode(&options)
	if len(options.DryRun) == 0 {
		f.store(r, r.URL.Path, "DELETED", obj)
	}
	respond(w, http.StatusOK, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status: "Success"})
}

func (f *fakeServer) watch(w http.ResponseWriter, r *http.Request, k fakeKind) {
	ch := make(chan map[string]any, 100)
	f.mu.Lock()
	f.watchers[ch] = r.URL.Path
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		delete(f.watchers, ch)
		f.mu.Unlock()
	}()
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	w.(http.Flusher).Flush()
	for {
		select {
		case <-r.Context().Done():
			return
		case <-f.stop:
			return
		case event := <-ch:
			obj := event["object"].(map[string]any)
			if !named(r, &unstructured.Unstructured{Object: obj}) {
				continue
			}
			var body bytes.Buffer
			recorder := httptest.NewRecorder()
			recorder.Body = &body
			answer(recorder, r, http.StatusOK, obj, nil)
			_, _ = fmt.Fprintf(w, `{"type":%q,"object":%s}`+"\n", event["type"], body.String())
			w.(http.Flusher).Flush()
		}
	}
}
