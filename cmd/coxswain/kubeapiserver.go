package main

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/coxswain-dev/coxswain/apiserver"
	"github.com/coxswain-dev/coxswain/apiserver/authz"
	"github.com/coxswain-dev/coxswain/apiserver/componentstatus"
	"github.com/coxswain-dev/coxswain/apiserver/kubeflags"
	"github.com/coxswain-dev/coxswain/apiserver/pki"
	"github.com/coxswain-dev/coxswain/controllers"
)

// assetsVariable is an environment variable: with the value "full", kube-apiserver also runs controllers, the scheduler
// and a Node, which envtest's kube-apiserver does not.
const assetsVariable = "COXSWAIN_ASSETS"

// ownFlags are flags of serverFlags that kube-apiserver does not have.
var ownFlags = []string{"data-dir", "tls-san", "history-retention", "etcd-defrag-interval", "quota-backend-bytes",
	"max-connections-per-client", "max-watches-per-user", "max-request-memory"}

// kubeAPIServer is this program under the name kube-apiserver: the API server with kube-apiserver's flags. The only
// files it writes are a missing server certificate and its key. Unlike the original, it serves on loopback by default,
// and its default authorization modes are Node and RBAC.
type kubeAPIServer struct {
	server      serverFlags
	nodes       nodeFlags
	controllers controllersFlags
	scheduler   schedulerFlags

	certDir   string
	verbosity int
	format    string
	version   string
}

func newKubeAPIServer() *cobra.Command {
	registry := prometheus.NewRegistry()
	k := &kubeAPIServer{
		server:      serverFlags{metrics: []prometheus.Gatherer{clientMetrics, controllers.Metrics(), registry}},
		controllers: controllersFlags{debug: &controllers.Debug{}},
		scheduler:   schedulerFlags{metrics: registry},
	}
	cmd := &cobra.Command{
		Use: "kube-apiserver",
		Long: "The API server of Coxswain " + apiserver.Version + ", with kube-apiserver's flags. With " +
			assetsVariable + "=full in the environment it runs controllers, the scheduler and a Node as well.",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if k.version != "false" {
				_, err := fmt.Fprintln(cmd.OutOrStdout(), kubeVersion(k.version))
				return err
			}
			return k.run(cmd)
		},
	}
	k.add(cmd.Flags())
	return cmd
}

func (k *kubeAPIServer) add(flags *pflag.FlagSet) {
	own := pflag.NewFlagSet("", pflag.ContinueOnError)
	k.server.add(own)
	own.VisitAll(func(f *pflag.Flag) {
		if !slices.Contains(ownFlags, f.Name) {
			flags.AddFlag(f)
		}
	})
	k.nodes.add(own, 1) // sets the defaults
	k.controllers.addPool(own, "")
	kubeflags.Add(flags)
	flags.StringVar(&k.certDir, "cert-dir", "/var/run/kubernetes",
		"folder of the server certificate, apiserver.crt and apiserver.key, without --tls-cert-file; they are made if "+
			"they are missing")
	flags.IntVarP(&k.verbosity, "v", "v", 0, "how much to log: warnings, from 2 on information, from 4 on all")
	flags.StringVar(&k.format, "logging-format", "text", "form of log lines: text or json")
	flags.StringVar(&k.version, "version", "false", "print the version; with =raw, all its fields")
	flags.Lookup("version").NoOptDefVal = "true"
}

func (k *kubeAPIServer) run(cmd *cobra.Command) error {
	f := &k.server
	f.dataDir = ""
	ignored, err := kubeflags.Check(cmd.Flags())
	ignored = append(ignored, kubeflags.DropPlugins(&f.admission)...)
	if err := errors.Join(checkFlags(cmd.Flags()), err, f.encryption.check(), k.checkOptions()); err != nil {
		return err
	}
	if err := setLogger(cmd.ErrOrStderr(), k.level(), k.format); err != nil {
		return err
	}
	if len(ignored) > 0 {
		slog.Warn("flags of kube-apiserver have no effect here", "flags", strings.Join(ignored, " "))
	}
	if err := k.useCertDir(); err != nil {
		return fmt.Errorf("--cert-dir: %w", err)
	}
	rest := func(ctx context.Context, _ *running) error { <-ctx.Done(); return nil }
	switch set := os.Getenv(assetsVariable); set {
	case "":
	case "full":
		k.runFull()
		rest = func(ctx context.Context, r *running) error {
			return r.runComponents(ctx, f, &k.nodes, &k.controllers, &k.scheduler, nil)
		}
	default:
		return fmt.Errorf(`%s=%s: must be "full" or empty`, assetsVariable, set)
	}
	return runServer(cmd.Context(), f, rest)
}

// runFull configures the components that run beside the server.
func (k *kubeAPIServer) runFull() {
	f, c := &k.server, &k.controllers
	f.debug = debugHandlers(c, &k.scheduler)
	f.peers = map[string]string{"controller-manager": componentstatus.InProcess, "scheduler": componentstatus.InProcess}
	f.authorization.AddNode()
	c.controllers = []string{"*"}
	if authorities := onlyCAs(f.trusted); len(authorities) > 0 {
		f.trusted = authorities
	} else { // a ClusterTrustBundle holds CAs only, and the file has the server certificate without its CA
		c.controllers = append(c.controllers, "-"+trustBundlePublisher)
	}
}

// trustBundlePublisher is the controller that publishes the CA of the server's certificate.
const trustBundlePublisher = "kube-apiserver-serving-clustertrustbundle-publisher-controller"

// onlyCAs returns the CA certificates of a bundle.
func onlyCAs(bundle []byte) (cas []byte) {
	for block, rest := pem.Decode(bundle); block != nil; block, rest = pem.Decode(rest) {
		if cert, err := x509.ParseCertificate(block.Bytes); err == nil && cert.IsCA {
			cas = append(cas, pem.EncodeToMemory(block)...)
		}
	}
	return cas
}

// checkOptions rejects invalid flags that the server would otherwise check only after connecting to etcd.
func (k *kubeAPIServer) checkOptions() error {
	f := &k.server
	if _, err := f.admission.Names(); err != nil {
		return err
	}
	authorization, err := f.authorization.Options()
	if err != nil {
		return err
	}
	if _, err := authz.New(authorization); err != nil {
		return err
	}
	if err := f.audit.Check(); err != nil {
		return err
	}
	if len(f.etcd.Servers) == 0 {
		return errors.New("--etcd-servers must be specified")
	}
	return nil
}

func (k *kubeAPIServer) level() string {
	switch {
	case k.verbosity >= 4:
		return "debug"
	case k.verbosity >= 2:
		return "info"
	}
	return "warn"
}

// useCertDir sets the flags to the certificate of --cert-dir, unless they name another one. Components in this process
// verify the server with it.
func (k *kubeAPIServer) useCertDir() error {
	f := &k.server
	if f.tlsCertFile == "" && f.tlsKeyFile == "" {
		f.tlsCertFile = filepath.Join(k.certDir, "apiserver.crt")
		f.tlsKeyFile = filepath.Join(k.certDir, "apiserver.key")
		if _, err := os.Stat(f.tlsCertFile); errors.Is(err, fs.ErrNotExist) {
			if err := k.makeCertificate(); err != nil {
				return err
			}
		}
	}
	var err error
	f.trusted, err = os.ReadFile(f.tlsCertFile)
	return err
}

// makeCertificate writes a server certificate with its CA, and the key. It discards the CA's key.
func (k *kubeAPIServer) makeCertificate() error {
	f := &k.server
	ca, err := pki.NewNamedCA(fmt.Sprintf("%s-ca@%d", f.bindAddress, time.Now().Unix()))
	if err != nil {
		return err
	}
	cert, key, err := ca.Issue(pki.Leaf{User: f.bindAddress, Hosts: f.certificateHosts()})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(k.certDir, 0o755); err != nil {
		return err
	}
	if err := pki.WriteSecret(f.tlsKeyFile, key); err != nil {
		return err
	}
	return os.WriteFile(f.tlsCertFile, slices.Concat(cert, ca.PEM()), 0o644)
}

// kubeVersion returns the output of --version, in kube-apiserver's format.
func kubeVersion(form string) string {
	if form != "raw" {
		return "Kubernetes " + apiserver.Version
	}
	return fmt.Sprintf("%#v", apiserver.VersionInfo())
}
