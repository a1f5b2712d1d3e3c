// Package objecttest makes random objects of every kind for tests that compare two ways of doing the same, such as
// our decoder and Kubernetes'. Only tests import it.
package objecttest

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/randfill"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/kindtest"
)

// Objects makes random objects of a kind, as they look after decoding.
type Objects struct {
	*rand.Rand
	res  *api.Resource
	fill *randfill.Filler
}

// New returns a source of objects that depends on the seed alone.
func New(res *api.Resource, seed uint64) *Objects {
	o := &Objects{Rand: rand.New(rand.NewPCG(seed, 7)), res: res}
	o.fill = randfill.NewWithSeed(int64(seed)).NilChance(0.4).NumElements(0, 3).MaxDepth(14).Funcs(
		func(s *string, c randfill.Continue) { *s = o.text() },
		func(d *metav1.Time, c randfill.Continue) { *d = metav1.Unix(o.Int64N(1e9), 0) },
		func(d *metav1.MicroTime, c randfill.Continue) {
			*d = metav1.NewMicroTime(time.UnixMicro(o.Int64N(1e15)))
		},
		func(q *resource.Quantity, c randfill.Continue) {
			*q = resource.MustParse(o.Pick("1", "100m", "1Gi", "1024", "1e3", "0"))
		},
		func(v *intstr.IntOrString, c randfill.Continue) { *v = intstr.Parse(o.Pick("1", "80", "50%", "http")) },
		func(v *runtime.RawExtension, c randfill.Continue) {
			v.Raw = []byte(o.Pick(`{"a":1}`, `{"a":{"b":[1,2]},"c":null}`, `{"a":{"b":"x"},"d":{}}`,
				`{"kind":"x","a":"<&>"}`))
		},
		func(v *metav1.FieldsV1, c randfill.Continue) { v.Raw = []byte(`{"f:x":{}}`) },
		func(m *metav1.ManagedFieldsEntry, c randfill.Continue) {},
		kindtest.FillSchema,
		func(v *apiextensionsv1.JSON, c randfill.Continue) {
			v.Raw = []byte(o.Pick(`{"a":1}`, `"x"`, `7`, `[true]`))
		},
	)
	return o
}

// Pick returns one of its arguments.
func (o *Objects) Pick(from ...string) string { return from[o.IntN(len(from))] }

// text returns a short string, so that it repeats, and not always a harmless one.
func (o *Objects) text() string {
	return o.Pick("a", "b", "c", "web", "", "x:", `q"uote`, `back\slash`, "<tag>&", "ümlaut", "\u2028", "tab\t", "a/b",
		"TCP", "z z", "!")
}

// Next returns a random object; if there is an old one, the new one shares much with it.
func (o *Objects) Next(old api.Object) api.Object {
	obj := o.res.New()
	o.fill.Fill(obj)
	obj.SetManagedFields(nil)
	sent := DocumentOf(obj)
	if old != nil {
		sent, _ = o.mix(without(DocumentOf(old)), sent).(map[string]any)
	}
	doc, err := json.Marshal(sent)
	if err != nil {
		panic(err)
	}
	var made api.Object
	for range 2 { // an empty list that is left out when stored is gone after the second time
		made = o.res.New()
		made.GetObjectKind().SetGroupVersionKind(o.res.GVK())
		if err := kjson.UnmarshalCaseSensitivePreserveInts(doc, made); err != nil {
			panic(err)
		}
		if doc, err = json.Marshal(made); err != nil {
			panic(err)
		}
	}
	made.GetObjectKind().SetGroupVersionKind(o.res.GVK())
	return made
}

// DocumentOf returns the object's JSON as a map.
func DocumentOf(obj api.Object) map[string]any {
	doc, err := json.Marshal(obj)
	if err != nil {
		panic(err)
	}
	var m map[string]any
	if err := kjson.UnmarshalCaseSensitivePreserveInts(doc, &m); err != nil {
		panic(err)
	}
	return m
}

// mix takes most values from the old document and some from the new one.
func (o *Objects) mix(old, now any) any {
	was, ok := old.(map[string]any)
	is, ok2 := now.(map[string]any)
	if ok && ok2 {
		mixed := map[string]any{}
		for _, k := range slices.Sorted(maps.Keys(was)) {
			v := was[k]
			if n, both := is[k]; both {
				mixed[k] = o.mix(v, n)
			} else if o.IntN(4) > 0 {
				mixed[k] = v
			}
		}
		for _, k := range slices.Sorted(maps.Keys(is)) {
			v := is[k]
			if _, both := was[k]; !both && o.IntN(4) == 0 {
				mixed[k] = v
			}
		}
		return mixed
	}
	a, ok := old.([]any)
	b, ok2 := now.([]any)
	if ok && ok2 {
		mixed := []any{}
		for i := range a {
			switch o.IntN(5) {
			case 0:
			case 1:
				if i < len(b) {
					mixed = append(mixed, o.mix(a[i], b[i]))
				}
			default:
				mixed = append(mixed, a[i])
			}
		}
		if len(b) > 0 && o.IntN(3) == 0 {
			mixed = append(mixed, b[0])
		}
		o.Shuffle(len(mixed), func(i, j int) { mixed[i], mixed[j] = mixed[j], mixed[i] })
		return mixed
	}
	if o.IntN(4) == 0 {
		return now
	}
	return old
}

// without drops the managedFields of a document.
func without(doc map[string]any) map[string]any {
	if metadata, ok := doc["metadata"].(map[string]any); ok {
		delete(metadata, "managedFields")
	}
	return doc
}

// Pod returns the registration of pods among the kinds, and a defaulted pod of some 2 kB, for benchmarks.
func Pod(kinds []*api.Resource) (*api.Resource, *corev1.Pod) {
	registry := api.NewRegistry(kinds...)
	res := registry.Snapshot().Kind(corev1.SchemeGroupVersion.WithKind("Pod"))
	pod := res.New().(*corev1.Pod)
	pod.SetGroupVersionKind(res.GVK())
	pod.Name, pod.Namespace = "web-7c5b8f9d6-abcde", "default"
	pod.Labels = map[string]string{"app": "web", "pod-template-hash": "7c5b8f9d6", "tier": "front", "team": "blue"}
	pod.Annotations = map[string]string{"checksum/config": "8f14e45fceea167a5a36dedd4bea2543",
		"owner": "blue@example.com"}
	for i := range 2 {
		c := corev1.Container{Name: fmt.Sprintf("c%d", i), Image: "registry.example.com/team/web:1.2.3"}
		c.Ports = []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}, {Name: "metrics", ContainerPort: 9090}}
		for j := range 4 {
			c.Env = append(c.Env, corev1.EnvVar{Name: fmt.Sprintf("SETTING_%d", j), Value: "value"})
		}
		c.VolumeMounts = []corev1.VolumeMount{{Name: "config", MountPath: "/etc/config", ReadOnly: true}}
		pod.Spec.Containers = append(pod.Spec.Containers, c)
	}
	pod.Spec.Volumes = []corev1.Volume{{Name: "config", VolumeSource: corev1.VolumeSource{
		ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "web"}}}}}
	res.Default(pod)
	return res, pod
}
