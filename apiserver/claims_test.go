package apiserver_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/coxswain-dev/coxswain/testenv"
)

func newService(name string, kind corev1.ServiceType) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.ServiceSpec{Type: kind, Ports: []corev1.ServicePort{{Port: 80}}, Selector: map[string]string{"app": name}},
	}
}

func TestService_HasAnAddressOfItsOwnUntilDeleted(t *testing.T) {
	t.Parallel()
	services := kubernetes.NewForConfigOrDie(testenv.Start(t, testenv.APIServerOnly())).CoreV1().Services("default")
	ctx := t.Context()

	made, err := services.Create(ctx, newService("a", corev1.ServiceTypeClusterIP), metav1.CreateOptions{})
	require.NoError(t, err)
	require.NotEmpty(t, made.Spec.ClusterIP)
	require.Equal(t, []string{made.Spec.ClusterIP}, made.Spec.ClusterIPs)
	require.Equal(t, []corev1.IPFamily{corev1.IPv4Protocol}, made.Spec.IPFamilies)

	same := newService("b", corev1.ServiceTypeClusterIP)
	same.Spec.ClusterIP = made.Spec.ClusterIP
	_, err = services.Create(ctx, same, metav1.CreateOptions{})
	require.True(t, apierrors.IsInvalid(err), "a taken address: %v", err)

	require.NoError(t, services.Delete(ctx, "a", metav1.DeleteOptions{}))
	got, err := services.Create(ctx, same, metav1.CreateOptions{})
	require.NoError(t, err, "the address is free again")
	require.Equal(t, made.Spec.ClusterIP, got.Spec.ClusterIP)
}

func TestService_PortsComeAndGoWithItsType(t *testing.T) {
	t.Parallel()
	services := kubernetes.NewForConfigOrDie(testenv.Start(t, testenv.APIServerOnly())).CoreV1().Services("default")
	ctx := t.Context()

	s, err := services.Create(ctx, newService("a", corev1.ServiceTypeNodePort), metav1.CreateOptions{})
	require.NoError(t, err)
	port := s.Spec.Ports[0].NodePort
	require.GreaterOrEqual(t, port, int32(30000))

	s.Spec.Type = corev1.ServiceTypeClusterIP
	s.Spec.Ports[0].NodePort = 0
	s, err = services.Update(ctx, s, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.Zero(t, s.Spec.Ports[0].NodePort)

	other := newService("b", corev1.ServiceTypeNodePort)
	other.Spec.Ports[0].NodePort = port
	_, err = services.Create(ctx, other, metav1.CreateOptions{})
	require.NoError(t, err, "the port is free again")

	out := newService("c", corev1.ServiceTypeNodePort)
	out.Spec.Ports[0].NodePort = 80
	_, err = services.Create(ctx, out, metav1.CreateOptions{})
	require.True(t, apierrors.IsInvalid(err), "out of range: %v", err)
}

func TestService_RacingCreatesNeverShareAnAddress(t *testing.T) {
	t.Parallel()
	client := kubernetes.NewForConfigOrDie(testenv.Start(t, testenv.APIServerOnly()))
	const n = 50
	wanted := "10.96.7.7"
	var made sync.Map
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() {
			s := newService(fmt.Sprintf("s-%d", i), corev1.ServiceTypeClusterIP)
			s.Spec.ClusterIP = wanted
			if got, err := client.CoreV1().Services("default").Create(context.Background(), s, metav1.CreateOptions{}); err == nil {
				made.Store(got.Name, got.Spec.ClusterIP)
			}
		})
	}
	group.Wait()
	count := 0
	made.Range(func(_, _ any) bool { count++; return true })
	require.Equal(t, 1, count)
}
