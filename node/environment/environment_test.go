package environment

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/coxswain-dev/coxswain/node/runtime"
)

func named(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name, Namespace: "default"} }

func TestExpand(t *testing.T) {
	t.Parallel()
	values := map[string]string{"A": "1", "B": "$(A)"}
	for text, want := range map[string]string{
		"": "", "plain": "plain", "$(A)": "1", "x$(A)y$(B)": "x1y$(A)", "$(NONE)": "$(NONE)", "$$(A)": "$(A)", "$": "$",
		"$A": "$A", "$(A": "$(A", "a$": "a$", "$$$(A)": "$1",
	} {
		got, err := Expand(text, values)
		require.NoError(t, err)
		require.Equal(t, want, got, text)
	}
}

func TestResolve_BoundsTheSize(t *testing.T) {
	t.Parallel()
	pod := &corev1.Pod{ObjectMeta: named("p"), Spec: corev1.PodSpec{NodeName: "n",
		Containers: []corev1.Container{{Name: "c", Image: "nginx:1"}}}}
	e := &Environment{Client: fake.NewClientset(), Pod: pod}
	resolve := func(env []corev1.EnvVar, args ...string) error {
		c := &corev1.Container{Env: env, Args: args}
		_, _, err := e.Resolve(t.Context(), c)
		return err
	}
	env := []corev1.EnvVar{{Name: "V0", Value: strings.Repeat("x", 1000)}}
	for i := range 60 {
		reference := fmt.Sprintf("$(V%d)", i)
		env = append(env, corev1.EnvVar{Name: fmt.Sprintf("V%d", i+1), Value: reference + reference})
	}
	require.Equal(t, errTooLarge, resolve(env))
	require.NoError(t, resolve(env[:7]))
	require.Equal(t, errTooLarge, resolve(env[:7], slices.Repeat([]string{"$(V6)"}, 40)...), "64 kB forty times")
	var wide []corev1.EnvVar
	for i := range 40 {
		wide = append(wide, corev1.EnvVar{Name: fmt.Sprintf("W%d", i), Value: "$(V6)"})
	}
	require.Equal(t, errTooLarge, resolve(append(env[:7:7], wide...)))
	require.Equal(t, errTooLarge, resolve(nil, strings.Repeat("$(", 1<<19)), "a string that the kernel does not take")
}

func TestResolve_ReadsAllSources(t *testing.T) {
	t.Parallel()
	client := fake.NewClientset(
		&corev1.ConfigMap{ObjectMeta: named("cm"), Data: map[string]string{"color": "blue", "size": "L"}},
		&corev1.Secret{ObjectMeta: named("s"), Data: map[string][]byte{"password": []byte("x")}},
		&corev1.Service{ObjectMeta: named("my-db"), Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.9",
			Ports: []corev1.ServicePort{{Name: "sql", Port: 5432, Protocol: "TCP"}}}},
		&corev1.Service{ObjectMeta: named("headless"),
			Spec: corev1.ServiceSpec{ClusterIP: "None", Ports: []corev1.ServicePort{{Port: 1}}}},
	)
	pod := &corev1.Pod{ObjectMeta: named("p"), Spec: corev1.PodSpec{NodeName: "n",
		Containers: []corev1.Container{{Name: "c", Image: "nginx:1"}}}}
	pod.Labels = map[string]string{"app": "web"}
	pod.Status.PodIP = "10.244.0.9"
	field := func(path string) *corev1.EnvVarSource {
		return &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}
	}
	c := &pod.Spec.Containers[0]
	c.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("250m")}
	c.Command = []string{"run", "--at=$(IP)", "--no=$(NO)"}
	c.EnvFrom = []corev1.EnvFromSource{{Prefix: "P_",
		ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "cm"}}}}
	c.Env = []corev1.EnvVar{
		{Name: "P_size", Value: "XL"},
		{Name: "SECRET",
			ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "s"}, Key: "password"}}},
		{Name: "MAYBE", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "none"}, Key: "k", Optional: new(true)}}},
		{Name: "IP", ValueFrom: field("status.podIP")}, {Name: "APP", ValueFrom: field("metadata.labels['app']")},
		{Name: "NODE", ValueFrom: field("spec.nodeName")},
		{Name: "CPU", ValueFrom: &corev1.EnvVarSource{ResourceFieldRef: &corev1.ResourceFieldSelector{Resource: "requests.cpu", Divisor: resource.MustParse("1m")}}},
		{Name: "MEMORY",
			ValueFrom: &corev1.EnvVarSource{ResourceFieldRef: &corev1.ResourceFieldSelector{Resource: "limits.memory"}}},
		{Name: "URL", Value: "http://$(IP)/$(P_color)"},
	}
	e := &Environment{Client: client, Pod: pod,
		Allocatable: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Ki")}}
	env, argv, err := e.Resolve(t.Context(), c)
	require.NoError(t, err)
	require.Equal(t, []string{"run", "--at=10.244.0.9", "--no=$(NO)"}, argv)
	require.Equal(t, []string{
		"MY_DB_SERVICE_HOST=10.96.0.9", "MY_DB_SERVICE_PORT=5432", "MY_DB_SERVICE_PORT_SQL=5432",
		"MY_DB_PORT=tcp://10.96.0.9:5432", "MY_DB_PORT_5432_TCP=tcp://10.96.0.9:5432", "MY_DB_PORT_5432_TCP_PROTO=tcp",
		"MY_DB_PORT_5432_TCP_PORT=5432", "MY_DB_PORT_5432_TCP_ADDR=10.96.0.9",
		"P_color=blue", "P_size=XL", "SECRET=x", "IP=10.244.0.9", "APP=web", "NODE=n", "CPU=250", "MEMORY=1024",
		"URL=http://10.244.0.9/blue",
	}, env)

	c.Env = []corev1.EnvVar{{Name: "X",
		ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "cm"}, Key: "none"}}}}
	_, _, err = e.Resolve(t.Context(), c)
	require.ErrorAs(t, err, new(runtime.ConfigError))
	require.EqualError(t, err, "couldn't find key none in ConfigMap default/cm")
}
