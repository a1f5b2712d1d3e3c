package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/spf13/pflag"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/coxswain-dev/coxswain/apiserver/controlplane"
	"github.com/coxswain-dev/coxswain/internal/backoff"
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
	fs.BoolVar(&f.enabled, "ingress", true, "run the ingress controller (docs/ingress.md), which listens once there is "+
		"an Ingress; with --runtime simulated it only writes the status of Ingresses")
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
	if err := awaitIngress(ctx, client); err != nil {
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

// awaitIngress creates the class of the controller, as the default one, and returns once there is an Ingress.
func awaitIngress(ctx context.Context, client kubernetes.Interface) error {
	wait := backoff.Doubling(100*time.Millisecond, 30*time.Second)
	for {
		found, err := findIngress(ctx, client)
		if found || ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			slog.Warn("failed to watch Ingresses", "err", err)
		} else {
			wait = backoff.Doubling(100*time.Millisecond, 30*time.Second)
		}
		timer := time.NewTimer(wait.Step())
		select {
		case <-ctx.Done():
			timer.Stop()
		case <-timer.C:
		}
	}
}

// findIngress reports whether there is an Ingress, and waits for one for as long as a watch lasts.
func findIngress(ctx context.Context, client kubernetes.Interface) (bool, error) {
	if err := createDefaultClass(ctx, client); err != nil {
		return false, fmt.Errorf("create the IngressClass %s: %w", ingress.ClassName, err)
	}
	all, err := client.NetworkingV1().Ingresses("").List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil || len(all.Items) > 0 {
		return err == nil, err
	}
	events, err := client.NetworkingV1().Ingresses("").Watch(ctx, metav1.ListOptions{
		ResourceVersion: all.ResourceVersion, AllowWatchBookmarks: true})
	if err != nil {
		return false, err
	}
	defer events.Stop()
	for event := range events.ResultChan() {
		switch event.Type {
		case watch.Added:
			return true, nil
		case watch.Error:
			return false, apierrors.FromObject(event.Object)
		}
	}
	return false, nil
}

// createDefaultClass creates the IngressClass of Ingresses without a class, unless a class of the name exists.
func createDefaultClass(ctx context.Context, client kubernetes.Interface) error {
	_, err := client.NetworkingV1().IngressClasses().Create(ctx, &networkingv1.IngressClass{
		ObjectMeta: metav1.ObjectMeta{Name: ingress.ClassName,
			Annotations: map[string]string{networkingv1.AnnotationIsDefaultIngressClass: "true"}},
		Spec: networkingv1.IngressClassSpec{Controller: ingress.ControllerName},
	}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}
