// Command operator runs the operator of package sites against the cluster of a kubeconfig: the one that --kubeconfig
// or KUBECONFIG names, or the one that it runs in.
package main

import (
	"crypto/tls"
	"flag"
	"fmt"
	"log/slog"
	"os"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/coxswain-dev/coxswain/examples/operator/certs"
	"github.com/coxswain-dev/coxswain/examples/operator/sites"
	"github.com/coxswain-dev/coxswain/examples/operator/sites/v1alpha1"
)

// The webhooks listen on loopback: this command runs beside the API server. In a cluster they would listen on all
// addresses, with a certificate for the name of the operator's Service.
const host = "127.0.0.1"

var port = flag.Int("webhook-port", 9443, "port of the webhooks")

func main() {
	flag.Parse() // controller-runtime has the flag --kubeconfig
	ctrl.SetLogger(logr.FromSlogHandler(slog.NewTextHandler(os.Stderr, nil)))
	if err := run(); err != nil {
		slog.Error("the operator ended", "error", err)
		os.Exit(1)
	}
}

func run() error {
	config, err := ctrl.GetConfig()
	if err != nil {
		return err
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, sites.AddToScheme,
		v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return err
		}
	}
	cert, ca, err := certs.New(host)
	if err != nil {
		return err
	}
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:  scheme,
		Metrics: server.Options{BindAddress: "0"},
		WebhookServer: webhook.NewServer(webhook.Options{Host: host, Port: *port, TLSOpts: []func(*tls.Config){
			func(tc *tls.Config) {
				tc.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return cert, nil }
			}}}),
	})
	if err != nil {
		return err
	}
	for _, register := range []func(ctrl.Manager) error{sites.Register, sites.RegisterWebhooks} {
		if err := register(mgr); err != nil {
			return err
		}
	}
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return err
	}
	ctx := ctrl.SetupSignalHandler()
	if err := sites.Install(ctx, c, fmt.Sprintf("https://%s:%d", host, *port), ca); err != nil {
		return err
	}
	return mgr.Start(ctx)
}
