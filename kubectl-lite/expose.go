package kubectllite

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/cli-runtime/pkg/resource"
	"k8s.io/kubectl/pkg/polymorphichelpers"

	cmdutil "k8s.io/kubectl/pkg/cmd/util"
)

type exposeOptions struct {
	generateOptions
	files                                                  resource.FilenameOptions
	name, port, targetPort, protocol, selector, withLabels string
	kind, clusterIP, externalIP, loadBalancerIP            string
	sessionAffinity                                        string
}

func newExpose(s *session) *cobra.Command {
	o := &exposeOptions{generateOptions: generateOptions{session: s, done: "exposed", generator: generator{resource: coreResource("services")}}}
	cmd := &cobra.Command{
		Use:   "expose (-f FILENAME | TYPE NAME) [--port=port] [--protocol=TCP|UDP|SCTP] [--target-port=number-or-name] [--name=name] [--external-ip=external-ip-of-service] [--type=type]",
		Short: "Take a replication controller, service, deployment or pod and expose it as a new Kubernetes service",
		Example: `  kubectl-lite expose deployment web --port=80 --target-port=8080
  kubectl-lite expose pod db --port=5432 --name=database`,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.complete(cmd); err != nil {
				return err
			}
			return o.expose(contextOf(cmd), args)
		},
	}
	o.addFlags(cmd, "kubectl-expose")
	cmdutil.AddApplyAnnotationVarFlags(cmd, &o.annotate)
	flags := cmd.Flags()
	flags.StringVar(&o.name, "name", "", "The name for the newly created object.")
	flags.StringVar(&o.port, "port", "", "The port that the service should serve on. Copied from the resource being exposed, if unspecified")
	flags.StringVar(&o.targetPort, "target-port", "", "Name or number for the port on the container that the service should direct traffic to. Optional.")
	flags.StringVar(&o.protocol, "protocol", "", "The network protocol for the service to be created. Default is 'TCP'.")
	flags.StringVar(&o.selector, "selector", "", "A label selector to use for this service. Only equality-based selector requirements are supported. If empty (the default) infer the selector from the replication controller or replica set.)")
	flags.StringVarP(&o.withLabels, "labels", "l", "", "Labels to apply to the service created by this call.")
	flags.StringVar(&o.kind, "type", "", "Type for this service: ClusterIP, NodePort, LoadBalancer, or ExternalName. Default is 'ClusterIP'.")
	flags.StringVar(&o.clusterIP, "cluster-ip", "", "ClusterIP to be assigned to the service. Leave empty to auto-allocate, or set to 'None' to create a headless service.")
	flags.StringVar(&o.externalIP, "external-ip", "", "Additional external IP address (not managed by Kubernetes) to accept for the service.")
	flags.StringVar(&o.loadBalancerIP, "load-balancer-ip", "", "IP to assign to the LoadBalancer. If empty, an ephemeral IP will be created and used (cloud-provider specific).")
	flags.StringVar(&o.sessionAffinity, "session-affinity", "", "If non-empty, set the session affinity for the service to this; legal values: 'None', 'ClientIP'")
	cmdutil.AddFilenameOptionFlags(cmd, &o.files, "identifying the resource to expose a service")
	return cmd
}

func (o *exposeOptions) expose(ctx context.Context, args []string) error {
	namespace, explicit, err := o.namespace()
	if err != nil {
		return err
	}
	return o.withFiles(o.typed().ContinueOnError().NamespaceParam(namespace).DefaultNamespace(), explicit, &o.files).
		ResourceTypeOrNameArgs(false, args...).Flatten().Do().
		Visit(func(info *resource.Info, err error) error {
			if err != nil {
				return err
			}
			service, err := o.serviceFor(info)
			if err != nil {
				return err
			}
			return o.run(ctx, service)
		})
}

// serviceFor makes the service; what the flags leave open is read from the object: selector, ports, protocols, labels.
func (o *exposeOptions) serviceFor(info *resource.Info) (*corev1.Service, error) {
	if err := polymorphichelpers.CanBeExposedFn(info.Mapping.GroupVersionKind.GroupKind()); err != nil {
		return nil, err
	}
	service := &corev1.Service{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}}
	service.Name = o.name
	if service.Name == "" {
		service.Name = info.Name[:min(len(info.Name), validation.DNS1035LabelMaxLength)]
	}
	selector, err := o.selector, error(nil)
	if selector == "" {
		if selector, err = polymorphichelpers.MapBasedSelectorForObjectFn(info.Object); err != nil {
			return nil, fmt.Errorf("couldn't retrieve selectors via --selector flag or introspection: %v", err)
		}
	}
	if service.Spec.Selector, err = labels.ConvertSelectorToLabelsMap(selector); err != nil {
		return nil, err
	}
	if o.withLabels != "" {
		if service.Labels, err = labels.ConvertSelectorToLabelsMap(o.withLabels); err != nil {
			return nil, err
		}
	} else if accessor, err := meta.Accessor(info.Object); err == nil {
		service.Labels = accessor.GetLabels()
	}
	if service.Spec.Ports, err = o.ports(info); err != nil {
		return nil, err
	}
	service.Spec.Type, service.Spec.ClusterIP = corev1.ServiceType(o.kind), o.clusterIP
	service.Spec.LoadBalancerIP, service.Spec.SessionAffinity = o.loadBalancerIP, corev1.ServiceAffinity(o.sessionAffinity)
	if o.externalIP != "" {
		service.Spec.ExternalIPs = []string{o.externalIP}
	}
	return service, nil
}

func (o *exposeOptions) ports(info *resource.Info) ([]corev1.ServicePort, error) {
	numbers := strings.Split(o.port, ",")
	if o.port == "" {
		var err error
		if numbers, err = polymorphichelpers.PortsForObjectFn(info.Object); err != nil {
			return nil, fmt.Errorf("couldn't find port via --port flag or introspection: %v", err)
		}
		if len(numbers) == 0 && o.clusterIP != corev1.ClusterIPNone {
			return nil, errors.New("couldn't find port via --port flag or introspection")
		}
	}
	protocols, err := polymorphichelpers.MultiProtocolsForObjectFn(info.Object)
	if err != nil {
		return nil, fmt.Errorf("couldn't find protocol via introspection: %v", err)
	}
	var ports []corev1.ServicePort
	for _, number := range numbers {
		n, err := strconv.Atoi(number)
		if err != nil {
			return nil, err
		}
		using := protocols[number]
		if o.protocol != "" || len(using) == 0 {
			using = []string{o.protocol}
		}
		for _, protocol := range using {
			if protocol == "" {
				protocol = string(corev1.ProtocolTCP)
			}
			port := corev1.ServicePort{Port: int32(n), Protocol: corev1.Protocol(protocol), TargetPort: intstr.FromInt32(int32(n))}
			if o.targetPort != "" {
				port.TargetPort = intstr.Parse(o.targetPort)
			}
			ports = append(ports, port)
		}
	}
	for i := range ports {
		if len(ports) > 1 {
			ports[i].Name = fmt.Sprintf("port-%d", i+1)
		}
	}
	return ports, nil
}
