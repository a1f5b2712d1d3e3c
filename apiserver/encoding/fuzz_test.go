package encoding

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/builtin"
)

// FuzzProtobuf checks that a message is either rejected or converted to JSON.
func FuzzProtobuf(f *testing.F) {
	for _, obj := range []ProtoUnmarshaler{
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"a": "b"}},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{
				Limits: corev1.ResourceList{"memory": resource.MustParse("1Gi")}}}}}},
		&appsv1.Deployment{Spec: appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{}}}, &corev1.Secret{
			Data: map[string][]byte{"a": {0, 1, 2}}},
	} {
		raw, err := obj.(interface{ Marshal() ([]byte, error) }).Marshal()
		require.NoError(f, err)
		f.Add("v1", "Pod", raw)
		f.Add("apps/v1", "Deployment", raw)
		f.Add("v1", "Secret", raw[:len(raw)/2])
	}
	f.Add("v1", "DeleteOptions", []byte{0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Add("", "", []byte{})
	kinds := api.NewRegistry(builtin.Kinds()...).Snapshot()
	f.Fuzz(func(t *testing.T, version, kind string, raw []byte) {
		u := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: version, Kind: kind}, Raw: raw}
		wrapped, err := u.Marshal()
		require.NoError(t, err)
		doc, err := jsonOfProtobuf(kinds, append([]byte("k8s\x00"), wrapped...))
		if err == nil && !json.Valid(doc) {
			t.Fatalf("%q", doc)
		}
	})
}

// FuzzQuantities checks that a document with accepted quantities is decoded quickly.
func FuzzQuantities(f *testing.F) {
	for _, text := range []string{`{"spec":{"overhead":{"memory":"1e999999999"}}}`, `{"spec":{"overhead":{"cpu":1E-9}}}`,
		`{"spec":{"containers":[{"resources":{"limits":{"memory":"\u0031e9999999"}}}]}}`, `{"spec":{"overhead":null}}`,
		`{"SPEC":{"Overhead":{"memory":"1e999999999"}}}`, `{"spec":{"overhead":{"memory":"1","memory":"9e9999999"}}}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		pod := &corev1.Pod{}
		if CheckQuantities(doc, pod) != nil {
			return
		}
		_, _ = UnmarshalStrict(doc, pod)
		for _, q := range pod.Spec.Overhead {
			_ = q.String()
		}
	})
}
