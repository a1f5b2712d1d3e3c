package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/coxswain-dev/coxswain/apiserver/controlplane"
	"github.com/coxswain-dev/coxswain/network/ingress"
)

// upIngress are the flags of the ingress controller in `coxswain up`. It costs a watch until there is an Ingress, and
// only then opens its listeners.
type upIngress struct {
	enabled     bool
	http, https string
	simulated   bool // no program answers in pods: only the status of Ingresses is written
}

func (f *upIngress) add(fs *pflag.FlagSet) {
	fs.BoolVar(&f.enabled, "ingress", true, "run the ingress controller (docs/ingress.md), which listens once there "+
		"is an Ingress; with --runtime simulated it only writes the status of Ingresses")
	fs.StringVar(&f.http, "ingress-http-address", "127.0.0.1:80",
		`where Ingresses of --runtime process are served by HTTP; "" for nowhere`)
	fs.StringVar(&f.https, "ingress-https-address", "127.0.0.1:443", `the same by HTTPS; "" for nowhere`)
}

// simulatedIngress is in the status of Ingresses of simulated pods: an address on loopback at which nothing answers.
const simulatedIngress = "127.96.0.0"

// run runs the controller until ctx ends. The other components work without it, so a failure is only logged.
func (f *upIngress) run(ctx context.Context, as identities) error {
	if f.enabled {
		if err := f.serve(ctx, as.main); err != nil && ctx.Err() == nil {
			slog.Error("cannot serve Ingresses", "err", err)
		}
	}
	<-ctx.Done()
	return nil
}

func (f *upIngress) serve(ctx context.Context, config *rest.Config) error {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	if err := ingress.Await(ctx, client, slog.Default()); err != nil {
		return err
	}
	o := ingress.Options{StatusOnly: f.simulated, PublishAddresses: []string{simulatedIngress},
		ShutdownGracePeriod: time.Second}
	if !f.simulated {
		if err := f.listen(&o); err != nil {
			return err
		}
	}
	return ingress.Run(ctx, config, o)
}

// listen opens the listeners. Where an address cannot be used, such as one of another web server, the other one is.
func (f *upIngress) listen(o *ingress.Options) error {
	var failures []error
	open := func(flag, address string) net.Listener {
		if address == "" {
			return nil
		}
		ln, err := listen(flag, address)
		if err != nil {
			failures = append(failures, err)
			return nil
		}
		slog.Info("serving Ingresses", "address", ln.Addr())
		return ln
	}
	o.HTTP, o.HTTPS = open("ingress-http-address", f.http), open("ingress-https-address", f.https)
	err := errors.Join(failures...)
	var addr net.Addr
	switch {
	case o.HTTP != nil:
		addr = o.HTTP.Addr()
	case o.HTTPS != nil:
		addr = o.HTTPS.Addr()
	default:
		return err
	}
	if err != nil {
		slog.Error("cannot serve Ingresses at one of the addresses", "err", err)
	}
	published := addr.(*net.TCPAddr).AddrPort().Addr().Unmap()
	if host := controlplane.HostAddress(); published.IsUnspecified() && host.IsValid() {
		published = host
	}
	o.PublishAddresses = []string{published.String()}
	return nil
}
