// Package references watches the ConfigMaps and Secrets that pods' volumes are made from, each by its name,
// which is all that a node may watch, and reads them for volumes and environments.
//
// What comes in: the pods that are set up and released. What goes out: a call for each pod that has read something that
// has since changed. An immutable object is kept until the last of its pods goes, and read from memory.
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

// References are the ConfigMaps and Secrets that volumes of pods are made from. Each is watched by its name,
// which is what a node may watch, as long as there is such a pod. What is seen is not kept, but for an
// immutable object: its watch ends, and it stays what it was until the last of its pods goes, as with the
// kubelet. It is safe for concurrent use.
type References struct {
	ctx     context.Context
	watches *sync.WaitGroup
	changed func(runtime.PodKey) // something that the pod has read is different now

	mu    sync.Mutex
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

// reference is an object that is watched.
type reference struct {
	cancel context.CancelFunc
	known  bool   // something was seen, if only that there is no such object
	seen   string // its resourceVersion; "" where there is none
	held   apiruntime.Object
	pods   map[runtime.PodKey]*readVersion
}

// readVersion is what a pod has read of an object: its resourceVersion, "" where there was none.
type readVersion struct {
	done    bool
	version string
}

// A pod's references beyond the first so many, and a process' beyond so many, are looked at every
// runtime.RefreshEvery instead.
const (
	maxPodReferences = 64
	maxReferences    = 1024
)

func New(ctx context.Context, watches *sync.WaitGroup, changed func(runtime.PodKey)) *References {
	return &References{
		ctx: ctx, watches: watches, changed: changed, byKey: map[referenceKey]*reference{},
		byPod: map[types.UID][]referenceKey{},
	}
}

// referencesOf are the objects that a pod's volumes are made from.
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

// Watch begins to watch what a pod's volumes are made from.
func (r *References) Watch(client kubernetes.Interface, pod *corev1.Pod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, watched := r.byPod[pod.UID]; watched {
		return // volumes do not change
	}
	wanted := referencesOf(pod)
	wanted = wanted[:min(len(wanted), maxPodReferences)]
	mine := make([]referenceKey, 0, len(wanted))
	for _, key := range wanted {
		ref := r.byKey[key]
		if ref == nil && len(r.byKey) >= maxReferences {
			continue
		}
		if ref == nil {
			ref = r.begin(client, key)
		}
		ref.pods[runtime.KeyOf(pod)] = &readVersion{}
		mine = append(mine, key)
	}
	r.byPod[pod.UID] = mine
}

// begin watches an object. The caller has the lock.
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
	reflector := cache.NewReflectorWithOptions(lw, example, seenBy{r, ref},
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

// Complete reports that every change of what a pod's volumes are made from will be noticed.
func (r *References) Complete(pod *corev1.Pod) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, key := range referencesOf(pod) {
		if ref := r.byKey[key]; ref == nil || !ref.known || ref.pods[runtime.KeyOf(pod)] == nil {
			return false
		}
	}
	return true
}

// held is an immutable object; nil where it is not known to be one.
func (r *References) held(key referenceKey) apiruntime.Object {
	r.mu.Lock()
	defer r.mu.Unlock()
	if ref := r.byKey[key]; ref != nil {
		return ref.held
	}
	return nil
}

// read notes what a pod has read, and calls changed where that is known to be old.
func (r *References) read(key referenceKey, pod runtime.PodKey, version string) {
	r.mu.Lock()
	ref := r.byKey[key]
	if ref == nil || ref.pods[pod] == nil {
		r.mu.Unlock()
		return
	}
	*ref.pods[pod] = readVersion{true, version}
	old := ref.known && ref.seen != version
	if order, err := resourceversion.CompareResourceVersion(ref.seen, version); err == nil && order < 0 {
		old = false // the watch is not there yet
	}
	r.mu.Unlock()
	if old {
		r.changed(pod)
	}
}

// seenBy is where a reflector puts what it sees of an object.
type seenBy struct {
	*References
	*reference
}

func (s seenBy) Add(o any) error    { return s.see(o) }
func (s seenBy) Update(o any) error { return s.see(o) }
func (s seenBy) Delete(any) error   { return s.see(nil) }
func (s seenBy) Resync() error      { return nil }

func (s seenBy) Replace(list []any, _ string) error {
	if len(list) == 0 {
		return s.see(nil)
	}
	return s.see(list[0])
}

func (s seenBy) see(o any) error {
	version := ""
	if o != nil {
		m, err := meta.Accessor(o)
		if err != nil {
			return err
		}
		version = m.GetResourceVersion()
	}
	s.mu.Lock()
	if s.reference.held != nil {
		s.mu.Unlock()
		return nil
	}
	s.known, s.seen = true, version
	if isImmutable(o) {
		s.reference.held = o.(apiruntime.Object)
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

// readReference reads a ConfigMap or Secret for a pod: what is held of an immutable one, and what the API server has
// otherwise.
func readReference[T interface {
	apiruntime.Object
	metav1.Object
}](r *References, kind referenceKind, pod *corev1.Pod, name string, get func() (T, error)) (T, error) {
	if r == nil {
		return get()
	}
	key := referenceKey{pod.Spec.NodeName, pod.Namespace, name, kind}
	if held, ok := r.held(key).(T); ok {
		return held, nil
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

// Count is how many objects are watched, or held.
func (r *References) Count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.byKey)
}
