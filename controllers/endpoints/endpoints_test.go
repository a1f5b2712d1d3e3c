package endpoints

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	clienttesting "k8s.io/client-go/testing"

	"github.com/coxswain-dev/coxswain/controllers/lib/controllertest/fakeenv"
)

// service returns a Service that selects the pods of the test, after change.
func service(change func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web",
		Labels: map[string]string{"team": "a"}}}
	s.Spec.Selector, s.Spec.ClusterIP = map[string]string{"app": "web"}, "10.96.0.1"
	s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol}
	s.Spec.Ports = []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}}
	change(s)
	return s
}

// pod returns a ready pod of the Service, after change.
func pod(name, ip string, change func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name + "-1"),
		Labels: map[string]string{"app": "web"}}}
	p.Spec.NodeName, p.Status.PodIP = "n", ip
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	change(p)
	return p
}

func notReady(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse }

func endpointsOf(t *testing.T, e *fakeenv.Env) *corev1.Endpoints {
	found, err := e.Client().CoreV1().Endpoints("default").Get(t.Context(), "web", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	require.NoError(t, err)
	return found
}

// describe lists the ports and the ready addresses of each subset, then the unready addresses.
func describe(all []corev1.EndpointSubset) (lines []string) {
	for _, s := range all {
		line := ""
		for _, p := range s.Ports {
			line += fmt.Sprintf("%s:%d ", p.Name, p.Port)
		}
		for _, a := range s.Addresses {
			line += a.IP + " "
		}
		line += "|"
		for _, a := range s.NotReadyAddresses {
			line += " " + a.IP
		}
		lines = append(lines, line)
	}
	return lines
}

func TestSubsets_ListServingPods(t *testing.T) {
	t.Parallel()
	same, deleted := func(*corev1.Service) {}, func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.Now()) }
	both := func(p *corev1.Pod) { p.Status.PodIPs = []corev1.PodIP{{IP: "10.0.0.9"}, {IP: "fd00::9"}} }
	publish := func(s *corev1.Service) { s.Spec.PublishNotReadyAddresses = true }
	named := func(p *corev1.Pod) {
		p.Spec.Containers = []corev1.Container{{Ports: []corev1.ContainerPort{{Name: "x", ContainerPort: 8080}}}}
	}
	for name, c := range map[string]struct {
		svc  *corev1.Service
		pods []*corev1.Pod
		want []string
	}{
		"no pods": {service(same), nil, nil},
		"ready and not, in order": {service(same), []*corev1.Pod{pod("b", "10.0.0.2", func(*corev1.Pod) {}),
			pod("c", "10.0.0.3", notReady), pod("a", "10.0.0.1", func(*corev1.Pod) {})},
			[]string{"http:80 10.0.0.1 10.0.0.2 | 10.0.0.3"}},
		"without an address": {service(same), []*corev1.Pod{pod("a", "", func(*corev1.Pod) {})}, nil},
		"ended": {service(same), []*corev1.Pod{pod("a", "10.0.0.1", func(p *corev1.Pod) {
			p.Status.Phase = corev1.PodSucceeded
		})}, nil},
		"being deleted": {service(same), []*corev1.Pod{pod("a", "10.0.0.1", deleted)}, nil},
		"not ready, but published": {service(publish),
			[]*corev1.Pod{pod("a", "10.0.0.1", notReady), pod("b", "10.0.0.2", deleted)},
			[]string{"http:80 10.0.0.1 10.0.0.2 |"}},
		"of the second family": {service(func(s *corev1.Service) { s.Spec.IPFamilies[0] = corev1.IPv6Protocol }),
			[]*corev1.Pod{pod("a", "10.0.0.9", both), pod("b", "10.0.0.2", func(*corev1.Pod) {})},
			[]string{"http:80 fd00::9 |"}},
		"without the port": {service(func(s *corev1.Service) { s.Spec.Ports[0].TargetPort = intstr.FromString("x") }),
			[]*corev1.Pod{pod("a", "10.0.0.1", func(*corev1.Pod) {}), pod("b", "10.0.0.2", named)},
			[]string{"http:8080 10.0.0.2 |"}},
		"headless without ports": {service(func(s *corev1.Service) { s.Spec.Ports, s.Spec.ClusterIP = nil, "None" }),
			[]*corev1.Pod{pod("a", "10.0.0.1", func(*corev1.Pod) {})}, []string{"10.0.0.1 |"}},
	} {
		all, cut := subsets(c.svc, c.pods)
		require.Equal(t, c.want, describe(all), name)
		require.False(t, cut, name)
	}
}

func TestSubsets_TruncateUnreadyAddressesFirst(t *testing.T) {
	t.Parallel()
	var pods []*corev1.Pod
	for i := range MaxAddresses + 10 {
		change := func(*corev1.Pod) {}
		if i < 20 {
			change = notReady
		}
		pods = append(pods, pod(fmt.Sprint("p", i), fmt.Sprintf("10.0.%d.%d", i/250, i%250+1), change))
	}
	all, cut := subsets(service(func(*corev1.Service) {}), pods)
	require.True(t, cut)
	require.Len(t, all[0].Addresses, MaxAddresses-10)
	require.Len(t, all[0].NotReadyAddresses, 10)
}

func TestEndpoints_AreCreatedForAService(t *testing.T) {
	t.Parallel()
	e := fakeenv.New(t, service(func(*corev1.Service) {}), pod("a", "10.0.0.1", func(*corev1.Pod) {}))
	e.Start(New)
	have := endpointsOf(t, e)
	require.Equal(t, []string{"http:80 10.0.0.1 |"}, describe(have.Subsets))
	require.Equal(t, types.UID("a-1"), have.Subsets[0].Addresses[0].TargetRef.UID)
	require.Equal(t, map[string]string{"team": "a", managedByLabel: managedBy}, have.Labels)
}

func TestEndpoints_OfOthersAreNotChanged(t *testing.T) {
	t.Parallel()
	foreign := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}}
	for name, svc := range map[string]*corev1.Service{
		"no selector": service(func(s *corev1.Service) { s.Spec.Selector = nil }),
		"an alias":    service(func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeExternalName }),
		"no Service":  service(func(s *corev1.Service) { s.Name = "another"; s.Spec.Selector = nil }),
	} {
		e := fakeenv.New(t, svc, foreign, pod("a", "10.0.0.1", func(*corev1.Pod) {}))
		e.Start(New)
		require.NotNil(t, endpointsOf(t, e), name)
		require.Empty(t, endpointsOf(t, e).Subsets, name)
	}
}

func TestEndpoints_AreDeletedByUIDWithTheirService(t *testing.T) {
	t.Parallel()
	e := fakeenv.New(t, &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "e-1",
		Labels: map[string]string{managedByLabel: managedBy}}})
	e.Start(New)
	require.Nil(t, endpointsOf(t, e), "the Service was deleted while no controller ran")
	deletes := e.Writes("delete", "endpoints")
	require.Len(t, deletes, 1)
	require.Equal(t, types.UID("e-1"), *deletes[0].(clienttesting.DeleteActionImpl).DeleteOptions.Preconditions.UID)
}
