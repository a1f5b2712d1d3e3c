package core

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func TestService_WarnsOfFieldsWithoutEffectAndOfOldForms(t *testing.T) {
	t.Parallel()
	const deprecated = "spec.externalIPs is deprecated and may no longer be implemented in some clusters"
	for name, tt := range map[string]struct {
		annotations map[string]string
		spec        corev1.ServiceSpec
		want        []string
	}{
		"none": {spec: corev1.ServiceSpec{Type: "ClusterIP", ClusterIP: "10.0.0.1", ClusterIPs: []string{"10.0.0.1"},
			SessionAffinity: "None", TrafficDistribution: ptr.To("PreferSameZone")}},
		"external addresses": {spec: corev1.ServiceSpec{Type: "ClusterIP", ClusterIP: "10.0.0.1",
			ExternalIPs: []string{"192.0.2.1"}}, want: []string{deprecated}},
		"headless": {spec: corev1.ServiceSpec{Type: "ClusterIP", ClusterIP: "None", ClusterIPs: []string{"None"},
			ExternalIPs: []string{"192.0.2.1"}, LoadBalancerIP: "192.0.2.2", SessionAffinity: "ClientIP"},
			want: []string{"spec.loadBalancerIP is ignored for headless services",
				"spec.externalIPs is ignored for headless services",
				"spec.SessionAffinity is ignored for headless services"}},
		"external name": {spec: corev1.ServiceSpec{Type: "ExternalName", ExternalName: "example.com",
			ExternalIPs: []string{"192.0.2.1"}},
			want: []string{`spec.externalIPs is ignored when spec.type is "ExternalName"`}},
		"name of another type": {spec: corev1.ServiceSpec{Type: "ClusterIP", ExternalName: "example.com"},
			want: []string{`spec.externalName is ignored when spec.type is not "ExternalName"`}},
		"old words": {annotations: map[string]string{"service.kubernetes.io/topology-aware-hints": "auto"},
			spec: corev1.ServiceSpec{Type: "ClusterIP", TrafficDistribution: ptr.To("PreferClose")},
			want: []string{"annotation service.kubernetes.io/topology-aware-hints is deprecated, please use " +
				"service.kubernetes.io/topology-mode instead",
				`spec.trafficDistribution: "PreferClose" is deprecated; use "PreferSameZone"`}},
		"old forms": {spec: corev1.ServiceSpec{Type: "LoadBalancer", ClusterIP: "10.0.0.1",
			ClusterIPs: []string{"10.0.0.1", "2001:db8:0::1"}, ExternalIPs: []string{"192.000.002.001"},
			LoadBalancerIP: "2001:db8:0::2", LoadBalancerSourceRanges: []string{"2001:db8:0::/64"}},
			want: []string{
				`spec.clusterIPs[1]: IPv6 address "2001:db8:0::1" should be in RFC 5952 canonical format ("2001:db8::1")`,
				`spec.externalIPs[0]: non-standard IP address "192.000.002.001" is invalid: use "192.0.2.1"`,
				deprecated,
				`spec.loadBalancerIP: IPv6 address "2001:db8:0::2" should be in RFC 5952 canonical format ("2001:db8::2")`,
				`spec.loadBalancerSourceRanges[0]: IPv6 CIDR value "2001:db8:0::/64" should be in RFC 5952 canonical ` +
					`format ("2001:db8::/64")`,
			}},
	} {
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Annotations: tt.annotations}, Spec: tt.spec}
		require.Equal(t, tt.want, warnService(s, nil), name)
	}
}
