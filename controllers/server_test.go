package controllers_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// server is the part of the Kubernetes API contract that controllers stand on, in memory:
// optimistic concurrency, list and watch, finalizers, propagation, preconditions. It lets
// tests refuse requests at will, which a real server does not.
type server struct {
	mu      sync.Mutex
	version int64
	objects map[*kind]map[string]*unstructured.Unstructured
	log     []change
	changed chan struct{}
	// refuse, if it returns an error, is the answer to a write. It must not call the server.
	refuse func(verb string, k *kind, name string) *metav1.Status
	// graceful keeps deleted pods, once they are on a node, until they are deleted with grace 0.
	graceful bool
	writes   map[string]int // by verb and resource
}

type change struct {
	version int64
	kind    *kind
	event   string
	object  *unstructured.Unstructured
}

type kind struct {
	group, version, plural, kind string
	namespaced                   bool
}

var kinds = []*kind{
	{"", "v1", "namespaces", "Namespace", false},
	{"", "v1", "nodes", "Node", false},
	{"", "v1", "pods", "Pod", true},
	{"", "v1", "configmaps", "ConfigMap", true},
	{"", "v1", "serviceaccounts", "ServiceAccount", true},
	{"", "v1", "services", "Service", true},
	{"", "v1", "events", "Event", true},
	{"", "v1", "endpoints", "Endpoints", true},
	{"", "v1", "replicationcontrollers", "ReplicationController", true},
	{"", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", true},
	{"", "v1", "persistentvolumes", "PersistentVolume", false},
	{"", "v1", "resourcequotas", "ResourceQuota", true},
	{"apps", "v1", "controllerrevisions", "ControllerRevision", true},
	{"apps", "v1", "daemonsets", "DaemonSet", true},
	{"apps", "v1", "statefulsets", "StatefulSet", true},
	{"batch", "v1", "cronjobs", "CronJob", true},
	{"batch", "v1", "jobs", "Job", true},
	{"policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", true},
	{"apps", "v1", "deployments", "Deployment", true},
	{"apps", "v1", "replicasets", "ReplicaSet", true},
	{"coordination.k8s.io", "v1", "leases", "Lease", true},
	{"discovery.k8s.io", "v1", "endpointslices", "EndpointSlice", true},
}

func (k *kind) gv() schema.GroupVersion {
	return schema.GroupVersion{Group: k.group, Version: k.version}
}

func startServer(t testing.TB) (*server, *rest.Config) {
	s := &server{
		objects: map[*kind]map[string]*unstructured.Unstructured{}, changed: make(chan struct{}), writes: map[string]int{},
	}
	for _, k := range kinds {
		s.objects[k] = map[string]*unstructured.Unstructured{}
	}
	h := httptest.NewServer(s)
	t.Cleanup(func() {
		h.CloseClientConnections()
		h.Close()
	})
	return s, &rest.Config{Host: h.URL, QPS: -1}
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if answer, ok := discoveryDocument(r.URL.Path); ok {
		reply(w, http.StatusOK, answer)
		return
	}
	q := parse(r.URL.Path)
	if q == nil {
		fail(w, http.StatusNotFound, metav1.StatusReasonNotFound, r.URL.Path)
		return
	}
	partial := strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadata")
	switch {
	case r.Method == http.MethodGet && r.URL.Query().Get("watch") != "":
		s.watch(w, r, q, partial)
	case r.Method == http.MethodGet && q.name == "":
		s.list(w, r, q, partial)
	default:
		s.mu.Lock()
		obj, status := s.handle(r, q)
		s.mu.Unlock()
		if status != nil {
			reply(w, int(status.Code), status)
		} else if partial {
			reply(w, http.StatusOK, metadataOf(obj).Object)
		} else {
			reply(w, http.StatusOK, obj.Object)
		}
	}
}

type request struct {
	kind                         *kind
	namespace, name, subresource string
}

func (q *request) key() string { return q.namespace + "/" + q.name }

func parse(path string) *request {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	q := &request{}
	var gv schema.GroupVersion
	switch {
	case parts[0] == "api" && len(parts) > 2:
		gv, parts = schema.GroupVersion{Version: parts[1]}, parts[2:]
	case parts[0] == "apis" && len(parts) > 3:
		gv, parts = schema.GroupVersion{Group: parts[1], Version: parts[2]}, parts[3:]
	default:
		return nil
	}
	if parts[0] == "namespaces" && len(parts) > 2 && parts[2] != "status" && parts[2] != "finalize" {
		q.namespace, parts = parts[1], parts[2:]
	}
	for _, k := range kinds {
		if k.gv() == gv && k.plural == parts[0] {
			q.kind = k
		}
	}
	if len(parts) > 1 {
		q.name = parts[1]
	}
	if len(parts) > 2 {
		q.subresource = parts[2]
	}
	if q.kind == nil {
		return nil
	}
	return q
}

func (s *server) handle(r *http.Request, q *request) (*unstructured.Unstructured, *metav1.Status) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, statusOf(http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error())
	}
	if body, err = jsonOf(body); err != nil {
		return nil, statusOf(http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error())
	}
	if r.Method != http.MethodGet {
		s.writes[r.Method+" "+q.kind.plural+strings.TrimSuffix("/"+q.subresource, "/")]++
		if s.refuse != nil {
			if status := s.refuse(r.Method, q.kind, q.name); status != nil {
				return nil, status
			}
		}
	}
	if r.Method == http.MethodPost {
		return s.create(q, decode(body))
	}
	if r.Method == http.MethodDelete && q.name == "" {
		return s.deleteCollection(q, body)
	}
	old := s.objects[q.kind][q.key()]
	if old == nil {
		return nil, statusOf(http.StatusNotFound, metav1.StatusReasonNotFound, q.kind.plural+" "+q.name+" not found")
	}
	switch r.Method {
	case http.MethodGet:
		return old, nil
	case http.MethodPut:
		return s.update(q, old, decode(body))
	case http.MethodPatch:
		obj, err := patched(q.kind, old, body, r.Header.Get("Content-Type"))
		if err != nil {
			return nil, statusOf(http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error())
		}
		return s.update(q, old, obj)
	}
	return s.delete(q, old, body)
}

func (s *server) create(q *request, obj *unstructured.Unstructured) (*unstructured.Unstructured, *metav1.Status) {
	obj.SetNamespace(q.namespace)
	if obj.GetName() == "" {
		obj.SetName(obj.GetGenerateName() + rand.String(5))
	}
	q.name = obj.GetName()
	if q.namespace != "" {
		if ns := s.objects[kinds[0]]["/"+q.namespace]; ns != nil && ns.GetDeletionTimestamp() != nil {
			status := statusOf(http.StatusForbidden, metav1.StatusReasonForbidden, "namespace is being terminated")
			status.Details = &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: "NamespaceTerminating"}}}
			return nil, status
		}
	}
	if s.objects[q.kind][q.key()] != nil {
		return nil, statusOf(http.StatusConflict, metav1.StatusReasonAlreadyExists, q.name+" already exists")
	}
	obj.SetUID(uuid.NewUUID())
	obj.SetCreationTimestamp(metav1.Now())
	obj.SetGeneration(1)
	if q.kind.plural == "namespaces" {
		_ = unstructured.SetNestedStringSlice(obj.Object, []string{"kubernetes"}, "spec", "finalizers")
	}
	return s.store(q, "ADDED", obj), nil
}

func (s *server) update(q *request, old, obj *unstructured.Unstructured) (*unstructured.Unstructured, *metav1.Status) {
	if v := obj.GetResourceVersion(); v != "" && v != old.GetResourceVersion() || obj.GetUID() != "" && obj.GetUID() != old.GetUID() {
		return nil, statusOf(http.StatusConflict, metav1.StatusReasonConflict, "the object has been modified")
	}
	obj.SetUID(old.GetUID())
	obj.SetCreationTimestamp(old.GetCreationTimestamp())
	obj.SetDeletionTimestamp(old.GetDeletionTimestamp())
	keep := "status"
	if q.subresource == "status" {
		keep = "spec"
		obj.SetAnnotations(old.GetAnnotations())
	}
	if _, isStatusKind := old.Object["spec"]; isStatusKind && q.subresource != "finalize" {
		delete(obj.Object, keep)
		if v, ok := old.Object[keep]; ok {
			obj.Object[keep] = v
		}
	}
	obj.SetGeneration(old.GetGeneration())
	if !reflect.DeepEqual(old.Object["spec"], obj.Object["spec"]) && q.kind.plural != "pods" {
		obj.SetGeneration(old.GetGeneration() + 1)
	}
	obj.SetResourceVersion(old.GetResourceVersion())
	if reflect.DeepEqual(old.Object, obj.Object) {
		return old, nil
	}
	if obj.GetDeletionTimestamp() != nil && !s.held(q.kind, obj) {
		return s.remove(q, obj), nil
	}
	return s.store(q, "MODIFIED", obj), nil
}

// held says whether a deleted object must stay for now.
func (s *server) held(k *kind, obj *unstructured.Unstructured) bool {
	finalizers, _, _ := unstructured.NestedStringSlice(obj.Object, "spec", "finalizers")
	node, _, _ := unstructured.NestedString(obj.Object, "spec", "nodeName")
	return len(obj.GetFinalizers()) > 0 || k.plural == "namespaces" && len(finalizers) > 0 ||
		k.plural == "pods" && s.graceful && node != "" && (obj.GetDeletionGracePeriodSeconds() == nil || *obj.GetDeletionGracePeriodSeconds() != 0)
}

func (s *server) delete(q *request, old *unstructured.Unstructured, body []byte) (*unstructured.Unstructured, *metav1.Status) {
	var o metav1.DeleteOptions
	if len(body) > 0 {
		if err := json.Unmarshal(body, &o); err != nil {
			return nil, statusOf(http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error())
		}
	}
	if p := o.Preconditions; p != nil {
		if p.UID != nil && *p.UID != old.GetUID() || p.ResourceVersion != nil && *p.ResourceVersion != old.GetResourceVersion() {
			return nil, statusOf(http.StatusConflict, metav1.StatusReasonConflict, "precondition failed")
		}
	}
	obj := old.DeepCopy()
	finalizers := slices.DeleteFunc(obj.GetFinalizers(), func(f string) bool {
		return o.PropagationPolicy != nil && (f == metav1.FinalizerOrphanDependents || f == metav1.FinalizerDeleteDependents)
	})
	if o.PropagationPolicy != nil {
		switch *o.PropagationPolicy {
		case metav1.DeletePropagationOrphan:
			finalizers = append(finalizers, metav1.FinalizerOrphanDependents)
		case metav1.DeletePropagationForeground:
			finalizers = append(finalizers, metav1.FinalizerDeleteDependents)
		}
	}
	obj.SetFinalizers(finalizers)
	if obj.GetDeletionTimestamp() == nil {
		obj.SetDeletionTimestamp(new(metav1.Now()))
		if q.kind.plural == "namespaces" {
			_ = unstructured.SetNestedField(obj.Object, "Terminating", "status", "phase")
		}
	}
	if o.GracePeriodSeconds != nil {
		obj.SetDeletionGracePeriodSeconds(o.GracePeriodSeconds)
	}
	if !s.held(q.kind, obj) {
		return s.remove(q, obj), nil
	}
	if reflect.DeepEqual(old.Object, obj.Object) {
		return old, nil
	}
	return s.store(q, "MODIFIED", obj), nil
}

func (s *server) deleteCollection(q *request, body []byte) (*unstructured.Unstructured, *metav1.Status) {
	for _, key := range slices.Sorted(maps.Keys(s.objects[q.kind])) {
		obj := s.objects[q.kind][key]
		if obj.GetNamespace() == q.namespace {
			one := &request{kind: q.kind, namespace: q.namespace, name: obj.GetName()}
			if _, status := s.delete(one, obj, body); status != nil {
				return nil, status
			}
		}
	}
	return decode([]byte(`{"kind":"Status","apiVersion":"v1","status":"Success"}`)), nil
}

func (s *server) store(q *request, event string, obj *unstructured.Unstructured) *unstructured.Unstructured {
	s.version++
	obj.SetResourceVersion(strconv.FormatInt(s.version, 10))
	obj.SetGroupVersionKind(q.kind.gv().WithKind(q.kind.kind))
	s.objects[q.kind][q.key()] = obj
	s.tell(q.kind, event, obj)
	return obj
}

func (s *server) remove(q *request, obj *unstructured.Unstructured) *unstructured.Unstructured {
	s.version++
	obj.SetResourceVersion(strconv.FormatInt(s.version, 10))
	delete(s.objects[q.kind], q.key())
	s.tell(q.kind, "DELETED", obj)
	return obj
}

func (s *server) tell(k *kind, event string, obj *unstructured.Unstructured) {
	s.log = append(s.log, change{s.version, k, event, obj})
	close(s.changed)
	s.changed = make(chan struct{})
}

func (q *request) selects(obj *unstructured.Unstructured, selector labels.Selector) bool {
	return (q.namespace == "" || q.namespace == obj.GetNamespace()) && selector.Matches(labels.Set(obj.GetLabels()))
}

func (s *server) list(w http.ResponseWriter, r *http.Request, q *request, partial bool) {
	selector, err := labels.Parse(r.URL.Query().Get("labelSelector"))
	if err != nil {
		fail(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error())
		return
	}
	s.mu.Lock()
	items := []any{}
	for _, key := range slices.Sorted(maps.Keys(s.objects[q.kind])) {
		if obj := s.objects[q.kind][key]; q.selects(obj, selector) {
			if partial {
				obj = metadataOf(obj)
			}
			items = append(items, obj.Object)
		}
	}
	version := strconv.FormatInt(s.version, 10)
	s.mu.Unlock()
	list := map[string]any{"apiVersion": q.kind.gv().String(), "kind": q.kind.kind + "List",
		"metadata": map[string]any{"resourceVersion": version}, "items": items}
	if partial {
		list["apiVersion"], list["kind"] = "meta.k8s.io/v1", "PartialObjectMetadataList"
	}
	reply(w, http.StatusOK, list)
}

func (s *server) watch(w http.ResponseWriter, r *http.Request, q *request, partial bool) {
	selector, err := labels.Parse(r.URL.Query().Get("labelSelector"))
	if err != nil || r.URL.Query().Get("sendInitialEvents") != "" {
		fail(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "not served")
		return
	}
	from, _ := strconv.ParseInt(r.URL.Query().Get("resourceVersion"), 10, 64)
	w.Header().Set("Content-Type", "application/json")
	out := json.NewEncoder(w)
	flush := http.NewResponseController(w)
	next := 0
	for {
		s.mu.Lock()
		events, changed := s.log[next:], s.changed
		next = len(s.log)
		s.mu.Unlock()
		for _, c := range events {
			if c.version <= from || c.kind != q.kind || !q.selects(c.object, selector) {
				continue
			}
			obj := c.object
			if partial {
				obj = metadataOf(obj)
			}
			if out.Encode(map[string]any{"type": c.event, "object": obj.Object}) != nil {
				return
			}
		}
		if flush.Flush() != nil {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-changed:
		}
	}
}

func discoveryDocument(path string) (any, bool) {
	switch strings.Trim(path, "/") {
	case "api":
		return metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}}, true
	case "apis":
		list := metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}
		for _, k := range kinds {
			v := metav1.GroupVersionForDiscovery{GroupVersion: k.gv().String(), Version: k.version}
			if k.group != "" && !slices.ContainsFunc(list.Groups, func(g metav1.APIGroup) bool { return g.Name == k.group }) {
				list.Groups = append(list.Groups, metav1.APIGroup{Name: k.group, Versions: []metav1.GroupVersionForDiscovery{v}, PreferredVersion: v})
			}
		}
		return list, true
	}
	list := metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}}
	for _, k := range kinds {
		list.GroupVersion = k.gv().String()
		if prefix := "apis/" + list.GroupVersion; strings.Trim(path, "/") != prefix && strings.Trim(path, "/") != "api/"+list.GroupVersion {
			continue
		}
		for _, o := range kinds {
			if o.gv() == k.gv() {
				list.APIResources = append(list.APIResources, metav1.APIResource{Name: o.plural, Kind: o.kind, Namespaced: o.namespaced,
					Verbs: metav1.Verbs{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}})
			}
		}
		return list, true
	}
	return nil, false
}

func patched(k *kind, old *unstructured.Unstructured, patch []byte, contentType string) (*unstructured.Unstructured, error) {
	if strings.HasPrefix(contentType, "application/merge-patch+json") {
		obj := old.DeepCopy()
		merge(obj.Object, decode(patch).Object)
		return obj, nil
	}
	typed, err := scheme.Scheme.New(k.gv().WithKind(k.kind))
	if err != nil {
		return nil, err
	}
	original, err := json.Marshal(old.Object)
	if err != nil {
		return nil, err
	}
	merged, err := strategicpatch.StrategicMergePatch(original, patch, typed)
	if err != nil {
		return nil, err
	}
	return decode(merged), nil
}

// merge is RFC 7386.
func merge(target, patch map[string]any) {
	for key, value := range patch {
		inner, isMap := value.(map[string]any)
		current, wasMap := target[key].(map[string]any)
		switch {
		case value == nil:
			delete(target, key)
		case isMap && wasMap:
			merge(current, inner)
		default:
			target[key] = value
		}
	}
}

// jsonOf translates protobuf, which clients send of their own accord.
func jsonOf(body []byte) ([]byte, error) {
	if !bytes.HasPrefix(body, []byte("k8s\x00")) {
		return body, nil
	}
	obj, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		return nil, err
	}
	return json.Marshal(obj)
}

func decode(body []byte) *unstructured.Unstructured {
	obj := &unstructured.Unstructured{}
	if err := json.Unmarshal(body, &obj.Object); err != nil {
		panic(err)
	}
	return &unstructured.Unstructured{Object: integers(obj.Object).(map[string]any)}
}

// integers turns JSON's numbers into what unstructured objects hold.
func integers(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for key := range v {
			v[key] = integers(v[key])
		}
	case []any:
		for i := range v {
			v[i] = integers(v[i])
		}
	case float64:
		return int64(v)
	}
	return v
}

func metadataOf(obj *unstructured.Unstructured) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": obj.Object["metadata"],
	}}
}

func reply(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // the client may be gone
}

func fail(w http.ResponseWriter, code int, reason metav1.StatusReason, message string) {
	reply(w, code, statusOf(code, reason, message))
}

func statusOf(code int, reason metav1.StatusReason, message string) *metav1.Status {
	return &metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status: metav1.StatusFailure, Code: int32(code), Reason: reason, Message: fmt.Sprint(message)}
}
