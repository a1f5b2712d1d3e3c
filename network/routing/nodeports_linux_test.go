package routing

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/network/router"
)

func TestNodePortsOf_ListsEachPortOnce(t *testing.T) {
	t.Parallel()
	service := func(ports ...corev1.ServicePort) *corev1.Service {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a"},
			Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, ClusterIP: "10.96.0.9", Ports: ports}}
	}
	dns := service(corev1.ServicePort{Protocol: corev1.ProtocolUDP, Port: 53, NodePort: 30053},
		corev1.ServicePort{Protocol: corev1.ProtocolTCP, Port: 53, NodePort: 30053})
	kept, err := onlyPorts(dns)
	require.NoError(t, err)
	require.Empty(t, kept.(*corev1.Service).Spec.ClusterIP)
	require.Equal(t, "default/a", kept.(*corev1.Service).Namespace+"/"+kept.(*corev1.Service).Name)
	require.Equal(t, []router.NodePort{{Protocol: 6, Port: 30053}, {Protocol: 17, Port: 30053},
		{Protocol: 6, Port: 32000}},
		nodePortsOf([]*corev1.Service{service(corev1.ServicePort{Port: 80, NodePort: 32000}), kept.(*corev1.Service),
			service(corev1.ServicePort{Port: 80}), service(corev1.ServicePort{Port: 80, NodePort: 32000})}))
}
