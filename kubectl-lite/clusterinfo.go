package kubectllite

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/printers"
)

// The colours of cluster-info: a name, an address.
const (
	green  = "\x1b[0;32m"
	yellow = "\x1b[0;33m"
	plain  = "\x1b[0m"
)

func newClusterInfo(s *session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "cluster-info", Short: "Display cluster information", Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			config, err := s.ToRESTConfig()
			if err != nil {
				return err
			}
			client, err := s.KubernetesClientSet()
			if err != nil {
				return err
			}
			namespace := metav1.NamespaceSystem
			if *s.flags.Namespace != "" {
				namespace = *s.flags.Namespace
			}
			services, err := client.CoreV1().Services(namespace).List(contextOf(cmd), metav1.ListOptions{LabelSelector: "kubernetes.io/cluster-service=true"})
			if err != nil {
				return err
			}
			s.printEndpoint("Kubernetes control plane", config.Host)
			for _, service := range services.Items {
				name := service.Labels["kubernetes.io/name"]
				if name == "" {
					name = service.Name
				}
				s.printEndpoint(name, serviceLink(config.Host, service))
			}
			fmt.Fprintf(s.Out, "\nTo further debug and diagnose cluster problems, use '%s cluster-info dump'.\n", Name)
			return nil
		},
	}
	cmd.AddCommand(newClusterInfoDump(s))
	return cmd
}

func (s *session) printEndpoint(name, link string) {
	name, link = oneLine(name), oneLine(link)
	if printers.AllowsColorOutput(s.verbatim.Out) {
		name, link = green+name+plain, yellow+link+plain
	}
	fmt.Fprintf(s.verbatim.Out, "%s is running at %s\n", name, link)
}

// serviceLink is a service's address outside, or through the API server's proxy.
func serviceLink(host string, service corev1.Service) string {
	if ingress := service.Status.LoadBalancer.Ingress; len(ingress) > 0 {
		at := ingress[0].IP
		if at == "" {
			at = ingress[0].Hostname
		}
		var links []string
		for _, port := range service.Spec.Ports {
			links = append(links, fmt.Sprintf("http://%s:%d", at, port.Port))
		}
		return strings.Join(links, " ")
	}
	name := service.Name
	if ports := service.Spec.Ports; len(ports) > 0 {
		scheme := ""
		if ports[0].Name == "https" || ports[0].Port == 443 {
			scheme = "https"
		}
		name = strings.TrimPrefix(scheme+":"+name+":"+ports[0].Name, ":")
		if scheme == "" && ports[0].Name == "" {
			name = service.Name
		}
	}
	return strings.TrimSuffix(host, "/") + "/api/v1/namespaces/" + service.Namespace + "/services/" + name + "/proxy"
}
