package kubectllite

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
	"k8s.io/kubectl/pkg/polymorphichelpers"
	kubectlutil "k8s.io/kubectl/pkg/util"
	"k8s.io/streaming/pkg/httpstream"
)

type portForwardOptions struct {
	*session
	addresses []string
}

func newPortForward(s *session) *cobra.Command {
	o := &portForwardOptions{session: s}
	cmd := &cobra.Command{
		Use:   "port-forward TYPE/NAME [options] [LOCAL_PORT:]REMOTE_PORT [...[LOCAL_PORT_N:]REMOTE_PORT_N]",
		Short: "Forward one or more local ports to a pod",
		Long: `Forward one or more local ports to a pod. A deployment, a service and the like stand for one of their pods. The session ends
with that pod.`,
		Example: `  kubectl-lite port-forward web-0 8080:80
  kubectl-lite port-forward service/web 8443:https
  kubectl-lite port-forward deploy/web :80`,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) < 2 {
				return usageErrorf(cmd, "TYPE/NAME and list of ports are required for port-forward")
			}
			pod, ports, err := o.target(cmd, args[0], args[1:])
			if err != nil {
				return err
			}
			return o.run(contextOf(cmd), pod, ports)
		},
	}
	cmdutil.AddPodRunningTimeoutFlag(cmd, podTimeout)
	cmd.Flags().StringSliceVar(&o.addresses, "address", []string{"localhost"}, "Addresses to listen on (comma separated). Only accepts IP addresses or localhost as a value. When localhost is supplied, kubectl-lite will try to bind on both 127.0.0.1 and ::1 and will fail if neither of these addresses are available to bind.")
	return cmd
}

// target is the pod, and the ports as numbers of its own: a service's port leads to its target port.
func (o *portForwardOptions) target(cmd *cobra.Command, name string, ports []string) (*corev1.Pod, []string, error) {
	namespace, _, err := o.namespace()
	if err != nil {
		return nil, nil, err
	}
	timeout, err := cmdutil.GetPodRunningTimeoutFlag(cmd)
	if err != nil {
		return nil, nil, usageErrorf(cmd, "%s", err.Error())
	}
	obj, err := o.typed().ContinueOnError().NamespaceParam(namespace).DefaultNamespace().ResourceNames("pods", name).Do().Object()
	if err != nil {
		return nil, nil, err
	}
	pod, err := polymorphichelpers.AttachablePodForObjectFn(o.Factory, obj, timeout)
	if err != nil {
		return nil, nil, err
	}
	translated := make([]string, 0, len(ports))
	for _, port := range ports {
		pair, err := translatePort(port, obj, pod)
		if err != nil {
			return nil, nil, err
		}
		translated = append(translated, pair)
	}
	return pod, translated, nil
}

// translatePort turns "8443:https" into "8443:6443". A name alone is the same number at both ends, as far as the object knows
// that number; ":80" leaves the local port to chance.
func translatePort(port string, obj runtime.Object, pod *corev1.Pod) (string, error) {
	local, remote, two := strings.Cut(port, ":")
	if !two {
		remote = local
	}
	if remote == "" {
		return "", errors.New("remote port cannot be empty")
	}
	service, isService := obj.(*corev1.Service)
	number, err := strconv.Atoi(remote)
	if err != nil {
		var named int32
		if isService {
			named, err = kubectlutil.LookupServicePortNumberByName(*service, remote)
		} else {
			named, err = kubectlutil.LookupContainerPortNumberByName(*pod, remote)
		}
		if err != nil {
			return "", err
		}
		number = int(named)
		if local == remote {
			local = strconv.Itoa(number)
		}
	}
	if onlyUDP(number, obj, pod) {
		return "", fmt.Errorf("UDP protocol is not supported for %s", remote)
	}
	if isService {
		behind, err := kubectlutil.LookupContainerPortNumberByServicePort(*service, *pod, int32(number))
		if err != nil {
			return "", err
		}
		number = int(behind)
	}
	if local == strconv.Itoa(number) {
		return local, nil
	}
	return fmt.Sprintf("%s:%d", local, number), nil
}

// onlyUDP reports whether the port is declared for UDP and not for TCP as well.
func onlyUDP(number int, obj runtime.Object, pod *corev1.Pod) bool {
	protocols := map[corev1.Protocol]bool{}
	if service, ok := obj.(*corev1.Service); ok {
		for _, p := range service.Spec.Ports {
			protocols[p.Protocol] = protocols[p.Protocol] || int(p.Port) == number
		}
	} else {
		for _, c := range pod.Spec.Containers {
			for _, p := range c.Ports {
				protocols[p.Protocol] = protocols[p.Protocol] || int(p.ContainerPort) == number
			}
		}
	}
	return protocols[corev1.ProtocolUDP] && !protocols[corev1.ProtocolTCP]
}

// run forwards until the pod is gone, the connection breaks, or the user has enough of it.
func (o *portForwardOptions) run(ctx context.Context, pod *corev1.Pod, ports []string) error {
	client, err := o.KubernetesClientSet()
	if err != nil {
		return err
	}
	if pod, err = client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{}); err != nil {
		return err
	}
	if pod.Status.Phase != corev1.PodRunning {
		return fmt.Errorf("unable to forward port because pod is not running. Current status=%v", pod.Status.Phase)
	}
	dialer, err := o.dialer(pod)
	if err != nil {
		return err
	}
	ctx, cancel := signal.NotifyContext(ctx, os.Interrupt)
	defer cancel()
	stop := make(chan struct{})
	defer context.AfterFunc(ctx, func() { close(stop) })()
	forwarder, err := portforward.NewOnAddressesForStreaming(dialer, o.addresses, ports, stop, make(chan struct{}), o.Out, o.ErrOut)
	if err != nil {
		return err
	}
	return forwarder.ForwardPorts()
}

// dialer opens SPDY streams through a WebSocket, or directly where the server knows no better.
func (o *portForwardOptions) dialer(pod *corev1.Pod) (httpstream.Dialer, error) {
	config, err := o.ToRESTConfig()
	if err != nil {
		return nil, err
	}
	target, err := o.podURL(pod, "portforward", nil)
	if err != nil {
		return nil, err
	}
	transport, upgrader, err := spdy.RoundTripperFor(config)
	if err != nil {
		return nil, err
	}
	direct := spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: transport}, http.MethodPost, target)
	if cmdutil.PortForwardWebsockets.IsDisabled() {
		return direct, nil
	}
	tunnel, err := portforward.NewSPDYOverWebsocketDialerForStreaming(target, config)
	if err != nil {
		return nil, err
	}
	return portforward.NewFallbackDialerForStreaming(tunnel, direct, cannotUpgrade), nil
}
