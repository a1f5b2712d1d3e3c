package kubectllite

import (
	"errors"
	"strings"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	netutils "k8s.io/utils/net"
)

func serviceFlags(flags *pflag.FlagSet, kind corev1.ServiceType) build {
	tcp := flags.StringSlice("tcp", nil, "Port pairs can be specified as '<port>:<targetPort>'.")
	var clusterIP, externalName string
	var nodePort int32
	switch kind {
	case corev1.ServiceTypeClusterIP:
		flags.StringVar(&clusterIP, "clusterip", "", "Assign your own ClusterIP or set to 'None' for a 'headless' service (no loadbalancing).")
	case corev1.ServiceTypeNodePort:
		flags.Int32Var(&nodePort, "node-port", 0, "Port used to expose the service on each node in a cluster.")
	case corev1.ServiceTypeExternalName:
		flags.StringVar(&externalName, "external-name", "", "External name of service")
	}
	return func(name string, _ []string) (runtime.Object, error) {
		if len(*tcp) == 0 && kind != corev1.ServiceTypeExternalName && clusterIP != corev1.ClusterIPNone {
			return nil, errors.New("at least one tcp port specifier must be provided")
		}
		ports, err := servicePorts(*tcp, nodePort)
		if err != nil {
			return nil, err
		}
		labels := map[string]string{"app": name}
		return &corev1.Service{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
			Spec:       corev1.ServiceSpec{Type: kind, Selector: labels, Ports: ports, ClusterIP: clusterIP, ExternalName: externalName},
		}, nil
	}
}

// servicePorts reads "80" and "80:8080"; the target may be a port's name.
func servicePorts(pairs []string, nodePort int32) ([]corev1.ServicePort, error) {
	var ports []corev1.ServicePort
	for _, pair := range pairs {
		from, to, given := strings.Cut(pair, ":")
		port, err := netutils.ParsePort(from, true)
		if err != nil {
			return nil, err
		}
		name, target := from, intstr.FromInt(port)
		if given {
			name = from + "-" + to
			target = intstr.Parse(to)
			faults := validation.IsValidPortName(to)
			if target.Type == intstr.Int {
				faults = validation.IsValidPortNum(target.IntValue())
			}
			if len(faults) > 0 {
				return nil, errors.New(strings.Join(faults, ","))
			}
		}
		ports = append(ports, corev1.ServicePort{
			Name: name, Port: int32(port), TargetPort: target, Protocol: corev1.ProtocolTCP, NodePort: nodePort,
		})
	}
	return ports, nil
}
