package kubectllite

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/client-go/dynamic"

	"github.com/coxswain-dev/coxswain/kubectl-lite/diagnose"
	"github.com/coxswain-dev/coxswain/kubectl-lite/session"
)

// treeMirror is a copy of the objects of a tree, kept up to date by one watch per kind. It watches the kinds that had
// objects in the tree when the whole namespace was last read, and workloadKinds. Objects of other kinds appear at the
// next reading.
type treeMirror struct {
	*session.Session
	client    dynamic.Interface
	namespace string

	mu      sync.Mutex // guards the fields below, except watched, which only follow uses
	root    *unstructured.Unstructured
	objects map[types.UID]*unstructured.Unstructured
	watched map[schema.GroupVersionResource]bool
	trouble string
}

// workloadKinds are always watched, even if the tree has no such object yet.
var workloadKinds = []schema.GroupVersionResource{
	{Version: "v1", Resource: "pods"},
	{Group: "apps", Version: "v1", Resource: "replicasets"},
	{Group: "batch", Version: "v1", Resource: "jobs"},
}

// rereading is the interval at which the whole namespace is read, to find kinds that are new in the tree.
const rereading = 15 * time.Second

// follow runs tree -w.
func (o *treeOptions) follow(ctx context.Context, root *unstructured.Unstructured) error {
	client, err := o.QuietClient()
	if err != nil {
		return err
	}
	m := &treeMirror{Session: o.Session, client: client, namespace: root.GetNamespace(), root: root,
		objects: map[types.UID]*unstructured.Unstructured{}, watched: map[schema.GroupVersionResource]bool{}}
	mapper, err := o.ToRESTMapper()
	if err != nil {
		return err
	}
	resourceOf := func(obj *unstructured.Unstructured) (schema.GroupVersionResource, error) {
		kind := obj.GroupVersionKind()
		mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
		if err != nil {
			return schema.GroupVersionResource{}, err
		}
		return mapping.Resource, nil
	}
	return o.Live(ctx, func() []string { return m.lines(o) }, func(ctx context.Context, changed func()) error {
		var watching sync.WaitGroup
		defer watching.Wait()
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		watchKind := func(resource schema.GroupVersionResource) {
			if m.watched[resource] {
				return
			}
			m.watched[resource] = true
			watching.Go(func() { m.watch(ctx, resource, changed) })
		}
		return resuming(ctx, func(err error) { m.setTrouble(err); changed() }, func() error {
			if err := m.read(ctx); err != nil {
				return err
			}
			changed()
			kinds := slices.Clone(workloadKinds)
			for _, obj := range m.relatives() {
				resource, err := resourceOf(obj)
				if err != nil {
					return err
				}
				kinds = append(kinds, resource)
			}
			for _, resource := range kinds {
				watchKind(resource)
			}
			select {
			case <-ctx.Done():
			case <-time.After(rereading):
			}
			return nil
		})
	})
}

// read reads all objects that may have owners.
func (m *treeMirror) read(ctx context.Context) error {
	m.mu.Lock()
	root := m.root
	m.mu.Unlock()
	all, err := m.Descendants(ctx, root)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	fresh := map[types.UID]*unstructured.Unstructured{m.root.GetUID(): m.newest(m.root)}
	for _, children := range all {
		for _, child := range children {
			fresh[child.GetUID()] = m.newest(child)
		}
	}
	m.objects = fresh
	return nil
}

// newest returns the later version of an object: the given one, or the one in the mirror. A list and a watch of the
// same kind may arrive in any order. m.mu must be held.
func (m *treeMirror) newest(read *unstructured.Unstructured) *unstructured.Unstructured {
	old := m.objects[read.GetUID()]
	if old != nil && later(old.GetResourceVersion(), read.GetResourceVersion()) == old.GetResourceVersion() {
		return old
	}
	return read
}

// relatives returns the objects of the tree.
func (m *treeMirror) relatives() []*unstructured.Unstructured {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := m.family()
	found, seen := []*unstructured.Unstructured{m.root}, map[types.UID]bool{m.root.GetUID(): true}
	for i := 0; i < len(found); i++ {
		for _, child := range all[found[i].GetUID()] {
			if !seen[child.GetUID()] { // owners may form a cycle
				seen[child.GetUID()] = true
				found = append(found, child)
			}
		}
	}
	return found
}

func (m *treeMirror) family() diagnose.Family {
	return diagnose.Owned(slices.Collect(maps.Values(m.objects)))
}

// watch keeps one kind up to date until ctx ends. After a broken watch it lists the kind again.
func (m *treeMirror) watch(ctx context.Context, resource schema.GroupVersionResource, changed func()) {
	var from dynamic.ResourceInterface = m.client.Resource(resource)
	if m.namespace != "" {
		from = m.client.Resource(resource).Namespace(m.namespace)
	}
	// The error is of a kind that the user may not watch: follow reads it from time to time.
	_ = resuming(ctx, func(err error) { m.setTrouble(err); changed() }, func() error {
		list, err := from.List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			return err
		}
		m.replace(resource, list)
		changed()
		changes, err := from.Watch(ctx, metav1.ListOptions{ResourceVersion: list.GetResourceVersion(),
			AllowWatchBookmarks: true})
		if err != nil {
			return err
		}
		defer changes.Stop()
		m.setTrouble(nil)
		for event := range changes.ResultChan() {
			if event.Type == watch.Error {
				if err := apierrors.FromObject(event.Object); !apierrors.IsResourceExpired(err) &&
					!apierrors.IsGone(err) {
					return err
				}
				return nil
			}
			if obj, ok := event.Object.(*unstructured.Unstructured); ok && event.Type != watch.Bookmark {
				m.apply(obj, event.Type == watch.Deleted)
				changed()
			}
		}
		return nil
	})
}

// replace replaces all objects of one kind by a list.
func (m *treeMirror) replace(resource schema.GroupVersionResource, list *unstructured.UnstructuredList) {
	m.mu.Lock()
	defer m.mu.Unlock()
	present := map[types.UID]bool{}
	kind := strings.TrimSuffix(list.GetKind(), "List")
	for i := range list.Items {
		present[list.Items[i].GetUID()] = true
		m.put(&list.Items[i])
	}
	for uid, obj := range m.objects {
		if obj.GetKind() == kind && obj.GroupVersionKind().Group == resource.Group && !present[uid] {
			delete(m.objects, uid)
		}
	}
}

func (m *treeMirror) apply(obj *unstructured.Unstructured, gone bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if gone {
		delete(m.objects, obj.GetUID())
		return
	}
	m.put(obj)
}

// put adds or updates an object. m.mu must be held.
func (m *treeMirror) put(obj *unstructured.Unstructured) {
	obj = m.newest(obj)
	m.objects[obj.GetUID()] = obj
	if obj.GetUID() == m.root.GetUID() {
		m.root = obj
	}
}

func (m *treeMirror) setTrouble(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.trouble = ""
	if err != nil {
		m.trouble = "connection lost, trying again: " + err.Error()
	}
}

// lines draws the tree.
func (m *treeMirror) lines(o *treeOptions) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var b bytes.Buffer
	tabs := printers.GetNewTabWriter(&b)
	if _, there := m.objects[m.root.GetUID()]; !there && len(m.objects) > 0 {
		return []string{m.root.GetKind() + "/" + m.root.GetName() + " is gone"}
	}
	o.printTree(tabs, m.family(), m.root)
	_ = tabs.Flush() // to memory
	lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
	if m.trouble != "" {
		lines = append(lines, "", m.trouble)
	}
	return lines
}
