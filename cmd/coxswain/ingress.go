package main

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coxswain-dev/coxswain/network/ingress"
)

// ingressFlags are the flags of the ingress controller.
type ingressFlags struct {
	http, https, health    string
	class, controllerClass string
	createClass            bool
	namespace              string
	hostPerNamespace       bool
	publishAddresses       []string
	publishService         string
	clearStatus            bool
	certificate            string
	trusted                []string
	accessLog              string
	delay, grace           time.Duration
	metrics                prometheus.Registerer
}

func newIngress() *cobra.Command {
	registry := prometheus.NewRegistry()
	f, p := &ingressFlags{metrics: registry}, &processFlags{}
	cmd := &cobra.Command{
		Use:   "ingress",
		Short: "Run an ingress controller: HTTP and HTTPS from outside, by Ingresses",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.run(cmd.Context(), registry, f.run)
		},
	}
	p.add(cmd.Flags(), "coxswain-ingress", "127.0.0.1:10255")
	f.add(cmd.Flags())
	return cmd
}

func (f *ingressFlags) add(fs *pflag.FlagSet) {
	fs.StringVar(&f.http, "http-address", ":80", `where to serve HTTP; "" for nowhere`)
	fs.StringVar(&f.https, "https-address", ":443", `where to serve HTTPS; "" for nowhere`)
	fs.StringVar(&f.health, "healthz-address", ":10254",
		`where to serve /healthz over HTTP, for probes and load balancers; "" for nowhere`)
	fs.StringVar(&f.class, "ingress-class", ingress.ClassName, "class of the Ingresses to serve")
	fs.StringVar(&f.controllerClass, "controller-class", ingress.ControllerName,
		"spec.controller of the IngressClasses to serve")
	fs.BoolVar(&f.createClass, "create-ingress-class", true,
		"create the IngressClass of --ingress-class if there is none")
	fs.StringVar(&f.namespace, "watch-namespace", "", "the only namespace with Ingresses to serve; all if empty")
	fs.BoolVar(&f.hostPerNamespace, "host-per-namespace", false,
		"reserve a host for the namespace of its oldest Ingress; otherwise other namespaces can add paths to it")
	fs.StringSliceVar(&f.publishAddresses, "publish-address", nil,
		"IP addresses or host names to write to the status of Ingresses")
	fs.StringVar(&f.publishService, "publish-service", "",
		"Service (NAMESPACE/NAME) whose addresses to write to the status of Ingresses")
	fs.BoolVar(&f.clearStatus, "clear-status-on-shutdown", false,
		"remove the addresses from the status at the end; not for several processes that serve the class")
	fs.StringVar(&f.certificate, "default-ssl-certificate", "",
		"Secret (NAMESPACE/NAME) with the certificate of hosts without one; a self-signed one if empty")
	fs.StringSliceVar(&f.trusted, "forwarded-headers-from", nil,
		"networks (CIDRs) of the proxies with trusted X-Forwarded-* headers; none if empty")
	fs.StringVar(&f.accessLog, "access-log", "-", `file for the access log; "-" for stdout, "" for none`)
	fs.DurationVar(&f.delay, "shutdown-delay", 0,
		"how long to continue serving after /healthz starts to fail, so that load balancers notice")
	fs.DurationVar(&f.grace, "shutdown-grace-period", 30*time.Second, "how long requests may take after that")
}

func (f *ingressFlags) run(ctx context.Context, as identities) error {
	o := ingress.Options{
		ClassName: f.class, ControllerName: f.controllerClass, CreateClass: f.createClass, WatchNamespace: f.namespace,
		HostPerNamespace: f.hostPerNamespace, PublishAddresses: f.publishAddresses, ClearStatus: f.clearStatus,
		ShutdownDelay: f.delay, ShutdownGracePeriod: f.grace, Metrics: f.metrics,
	}
	for _, text := range f.trusted {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return fmt.Errorf("--forwarded-headers-from: %w", err)
		}
		o.TrustedProxies = append(o.TrustedProxies, prefix)
	}
	var err error
	if o.PublishService, err = objectFlag("publish-service", f.publishService); err != nil {
		return err
	}
	if o.DefaultCertificate, err = objectFlag("default-ssl-certificate", f.certificate); err != nil {
		return err
	}
	log, closeLog, err := openAccessLog(f.accessLog)
	if err != nil {
		return err
	}
	defer closeLog()
	o.AccessLog = log
	if err := f.listen(&o); err != nil {
		return err
	}
	return ingress.Run(ctx, as.main, o)
}

// listen opens the listeners. If one fails, it closes the others.
func (f *ingressFlags) listen(o *ingress.Options) (err error) {
	if f.http != "" {
		if o.HTTP, err = listen("http-address", f.http); err != nil {
			return err
		}
	}
	if f.https != "" {
		if o.HTTPS, err = listen("https-address", f.https); err != nil {
			o.Close()
			return err
		}
	}
	if f.health != "" {
		if o.Health, err = listen("healthz-address", f.health); err != nil {
			o.Close()
			return err
		}
	}
	return nil
}

// objectFlag parses a flag's value of the form NAMESPACE/NAME.
func objectFlag(flag, text string) (key types.NamespacedName, err error) {
	if text == "" {
		return key, nil
	}
	namespace, name, ok := strings.Cut(text, "/")
	if !ok || namespace == "" || name == "" {
		return key, fmt.Errorf("--%s: %q is not NAMESPACE/NAME", flag, text)
	}
	return types.NamespacedName{Namespace: namespace, Name: name}, nil
}

func openAccessLog(path string) (w io.Writer, done func(), err error) {
	switch path {
	case "":
		return nil, func() {}, nil
	case "-":
		return os.Stdout, func() {}, nil
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o640)
	if err != nil {
		return nil, nil, fmt.Errorf("--access-log: %w", err)
	}
	return file, func() { _ = file.Close() }, nil
}
