// Package references watches the ConfigMaps and Secrets that pods' volumes are made from, and reads them for volumes
// and environments. Each object is watched by its name, because a node may watch no more than that.
//
// Input: the pods that are set up and released. Output: a call of changed for each pod that has read an object whose
// content is different now. An immutable object is kept in memory until the last of its pods is released.
package references

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/node/runtime"
)

// References watches the ConfigMaps and Secrets that volumes of pods are made from, each by its name and for as long
// as such a pod is set up. Only the resourceVersion of an observed object is kept, not its content. An immutable object
// is the exception: as in the kubelet, its watch ends and the object is kept until its last pod is released.
// References is safe for concurrent use.
type References struct {
	ctx     context.Context      // ends all watches
	watches *sync.WaitGroup      // the goroutines of all watches; the caller of New waits for it
	changed func(runtime.PodKey) // an object that the pod has read is different now; called without mu

	mu    sync.Mutex // guards the maps and everything in them
	byKey map[referenceKey]*reference
	byPod map[types.UID][]referenceKey
}

type referenceKind string

const (
	configMaps referenceKind = "configmaps"
	secrets    referenceKind = "secrets"
)

type referenceKey struct {
	node, namespace, name string
	kind                  referenceKind
}

// reference is one watched object.
type reference struct {
	cancel   context.CancelFunc // ends the watch
	observed bool               // the watch has reported the object, or that it does not exist
	version  string             // the last observed resourceVersion; "" if the object does not exist
	// immutable is the object, once it was observed to be immutable.
	immutable apiruntime.Object
	pods      map[runtime.PodKey]*readVersion
}

// readVersion is the resourceVersion that a pod has read of an object; "" if the object did not exist.
type readVersion struct {
	done    bool
	version string
}

// Limits on watched objects, per pod and per process. Objects beyond a limit are not watched; their pods are set up
// again every runtime.RefreshEvery instead.
const (
	maxPodReferences = 64
	maxReferences    = 1024
)

// New returns References that watch until ctx ends; wait for watches then. Calls of changed run in the goroutines of
// watches and readers, and must not block.
func New(ctx context.Context, watches *sync.WaitGroup, changed func(runtime.PodKey)) *References {
	return &References{
		ctx: ctx, watches: watches, changed: changed, byKey: map[referenceKey]*reference{},
		byPod: map[types.UID][]referenceKey{},
	}
}

// referencesOf returns the keys of the objects that a pod's volumes are made from, each once.
func referencesOf(pod *corev1.Pod) []referenceKey {
	var all []referenceKey
	has := map[referenceKey]bool{}
	add := func(kind referenceKind, name string) {
		key := referenceKey{pod.Spec.NodeName, pod.Namespace, name, kind}
		if name != "" && !has[key] {
			has[key] = true
			all = append(all, key)
		}
	}
	for i := range pod.Spec.Volumes {
		switch v := &pod.Spec.Volumes[i]; {
		case v.ConfigMap != nil:
			add(configMaps, v.ConfigMap.Name)
		case v.Secret != nil:
			add(secrets, v.Secret.SecretName)
		case v.Projected != nil:
			for _, s := range v.Projected.Sources {
				if s.ConfigMap != nil {
					add(configMaps, s.ConfigMap.Name)
				}
				if s.Secret != nil {
					add(secrets, s.Secret.Name)
				}
			}
		}
	}
	return all
}

// Watch begins to watch the objects that a pod's volumes are made from.
func (r *References) Watch(client kubernetes.Interface, pod *corev1.Pod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, watched := r.byPod[pod.UID]; watched {
		return // a pod's volumes are immutable
	}
	keys := referencesOf(pod)
	keys = keys[:min(len(keys), maxPodReferences)]
	watched := make([]referenceKey, 0, len(keys))
	for _, key := range keys {
		ref := r.byKey[key]
		if ref == nil && len(r.byKey) >= maxReferences {
			continue
		}
		if ref == nil {
			ref = r.begin(client, key)
		}
		ref.pods[runtime.KeyOf(pod)] = &readVersion{}
		watched = append(watched, key)
	}
	r.byPod[pod.UID] = watched
}

// begin watches an object. The caller holds mu.
func (r *References) begin(client kubernetes.Interface, key referenceKey) *reference {
	ctx, cancel := context.WithCancel(r.ctx)
	ref := &reference{cancel: cancel, pods: map[runtime.PodKey]*readVersion{}}
	r.byKey[key] = ref
	var example apiruntime.Object = &corev1.ConfigMap{}
	if key.kind == secrets {
		example = &corev1.Secret{}
	}
	byName := func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, key.name).String()
	}
	lw := cache.NewFilteredListWatchFromClient(client.CoreV1().RESTClient(), string(key.kind), key.namespace, byName)
	reflector := cache.NewReflectorWithOptions(lw, example, observer{r, ref},
		cache.ReflectorOptions{Name: "volumes of pods"})
	r.watches.Go(func() { reflector.RunWithContext(ctx) })
	return ref
}

// Release ends the watches that only this pod needed.
func (r *References) Release(pod types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, key := range r.byPod[pod] {
		ref := r.byKey[key]
		for p := range ref.pods {
			if p.UID == pod {
				delete(ref.pods, p)
			}
		}
		if len(ref.pods) == 0 {
			ref.cancel()
			delete(r.byKey, key)
		}
	}
	delete(r.byPod, pod)
}

// Complete reports whether changes of all objects behind a pod's volumes will be noticed.
func (r *References) Complete(pod *corev1.Pod) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, key := range referencesOf(pod) {
		if ref := r.byKey[key]; ref == nil || !ref.observed || ref.pods[runtime.KeyOf(pod)] == nil {
			return false
		}
	}
	return true
}

// cached returns an object that was observed to be immutable; nil if there is none.
func (r *References) cached(key referenceKey) apiruntime.Object {
	r.mu.Lock()
	defer r.mu.Unlock()
	if ref := r.byKey[key]; ref != nil {
		return ref.immutable
	}
	return nil
}

// read records the version that a pod has read, and calls changed if a newer one was already observed.
func (r *References) read(key referenceKey, pod runtime.PodKey, version string) {
	r.mu.Lock()
	ref := r.byKey[key]
	if ref == nil || ref.pods[pod] == nil {
		r.mu.Unlock()
		return
	}
	*ref.pods[pod] = readVersion{true, version}
	old := ref.observed && ref.version != version
	if order, err := resourceversion.CompareResourceVersion(ref.version, version); err == nil && order < 0 {
		old = false // the watch lags behind the read
	}
	r.mu.Unlock()
	if old {
		r.changed(pod)
	}
}

// observer is the reflector's store for one object.
type observer struct {
	*References
	*reference
}

func (s observer) Add(o any) error    { return s.observe(o) }
func (s observer) Update(o any) error { return s.observe(o) }
func (s observer) Delete(any) error   { return s.observe(nil) }
func (s observer) Resync() error      { return nil }

func (s observer) Replace(list []any, _ string) error {
	if len(list) == 0 {
		return s.observe(nil)
	}
	return s.observe(list[0])
}

// observe records the state of the object, nil if it does not exist, and calls changed for each pod that has read
// another one. Once an immutable object is kept, later reports are ignored.
func (s observer) observe(o any) error {
	version := ""
	if o != nil {
		m, err := meta.Accessor(o)
		if err != nil {
			return err
		}
		version = m.GetResourceVersion()
	}
	s.mu.Lock()
	if s.immutable != nil {
		s.mu.Unlock()
		return nil
	}
	s.observed, s.version = true, version
	if isImmutable(o) {
		s.immutable = o.(apiruntime.Object)
		s.cancel()
	}
	var old []runtime.PodKey
	for pod, read := range s.pods {
		if read.done && read.version != version {
			old = append(old, pod)
		}
	}
	s.mu.Unlock()
	for _, pod := range old {
		s.changed(pod)
	}
	return nil
}

func isImmutable(o any) bool {
	switch o := o.(type) {
	case *corev1.ConfigMap:
		return ptr.Deref(o.Immutable, false)
	case *corev1.Secret:
		return ptr.Deref(o.Immutable, false)
	}
	return false
}

// readReference returns a ConfigMap or Secret for a pod: the cached object if it is immutable, and otherwise the API
// server's, whose version is recorded.
func readReference[T interface {
	apiruntime.Object
	metav1.Object
}](r *References, kind referenceKind, pod *corev1.Pod, name string, get func() (T, error)) (T, error) {
	if r == nil {
		return get()
	}
	key := referenceKey{pod.Spec.NodeName, pod.Namespace, name, kind}
	if object, ok := r.cached(key).(T); ok {
		return object, nil
	}
	o, err := get()
	switch {
	case err == nil:
		r.read(key, runtime.KeyOf(pod), o.GetResourceVersion())
	case apierrors.IsNotFound(err):
		r.read(key, runtime.KeyOf(pod), "")
	}
	return o, err
}

// ConfigMap reads a ConfigMap for a pod.
func (r *References) ConfigMap(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod, name string) (
	*corev1.ConfigMap, error) {
	return readReference(r, configMaps, pod, name, func() (*corev1.ConfigMap, error) {
		return client.CoreV1().ConfigMaps(pod.Namespace).Get(ctx, name, metav1.GetOptions{})
	})
}

// Secret reads a Secret for a pod.
func (r *References) Secret(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod, name string) (
	*corev1.Secret, error) {
	return readReference(r, secrets, pod, name, func() (*corev1.Secret, error) {
		return client.CoreV1().Secrets(pod.Namespace).Get(ctx, name, metav1.GetOptions{})
	})
}

// Count returns the number of objects that are watched or cached.
func (r *References) Count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.byKey)
}
