package envtest

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/coxswain-dev/coxswain/apiserver/admission"
	"github.com/coxswain-dev/coxswain/apiserver/audit"
	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/kubeflags"
	"github.com/coxswain-dev/coxswain/apiserver/pki"
	"github.com/coxswain-dev/coxswain/testenv"
)

// elsewhere are flags about places and sizes. The API server in the test's process has its own, on loopback and in
// memory, which does not change a test's result.
var elsewhere = []string{
	"advertise-address", "bind-address", "cert-dir", "enable-priority-and-fairness", "etcd-cafile", "etcd-certfile",
	"etcd-compaction-interval", "etcd-keyfile", "etcd-prefix", "etcd-servers", "logging-format",
	"max-mutating-requests-inflight", "max-requests-inflight", "profiling", "secure-port", "service-cluster-ip-range",
	"v",
}

// serverFlags are the flags of kube-apiserver that have an effect in the test's process.
type serverFlags struct {
	admission       admission.Options
	admissionConfig string
	audit           audit.Options

	anonymous      bool
	clientCAFile   string
	tokenFile      string
	issuers        []string
	audiences      []string
	signingKeyFile string
	keyFiles       []string

	modes []string
}

func (f *serverFlags) add(fs *pflag.FlagSet) {
	fs.StringSliceVar(&f.admission.Enable, "enable-admission-plugins", nil, "")
	fs.StringSliceVar(&f.admission.Disable, "disable-admission-plugins", nil, "")
	fs.StringVar(&f.admissionConfig, "admission-control-config-file", "", "")
	fs.Int64Var(&f.admission.NotReadySeconds, "default-not-ready-toleration-seconds", 0, "")
	fs.Int64Var(&f.admission.UnreachableSeconds, "default-unreachable-toleration-seconds", 0, "")
	f.audit.AddFlags(fs)
	fs.BoolVar(&f.anonymous, "anonymous-auth", true, "")
	fs.StringVar(&f.clientCAFile, "client-ca-file", "", "")
	fs.StringVar(&f.tokenFile, "token-auth-file", "", "")
	fs.StringSliceVar(&f.issuers, "service-account-issuer", nil, "")
	fs.StringSliceVar(&f.audiences, "api-audiences", nil, "")
	fs.StringVar(&f.signingKeyFile, "service-account-signing-key-file", "", "")
	fs.StringSliceVar(&f.keyFiles, "service-account-key-file", nil, "")
	fs.StringSliceVar(&f.modes, "authorization-mode", []string{"RBAC"}, "")
	var ignored []string
	for _, name := range elsewhere {
		fs.StringArrayVar(&ignored, name, nil, "")
		fs.Lookup(name).NoOptDefVal = "true"
	}
}

// parseFlags returns the options of testenv for kube-apiserver's flags, and the flags that were ignored because no
// behavior depends on them.
func parseFlags(args []string) (options []testenv.Option, ignored []string, err error) {
	var f serverFlags
	fs := pflag.NewFlagSet("kube-apiserver", pflag.ContinueOnError)
	f.add(fs)
	kubeflags.Add(fs)
	if err := fs.Parse(args); err != nil {
		return nil, nil, fmt.Errorf("envtest: kube-apiserver in process: %w (for all flags, run the suite on the "+
			"programs of `coxswain assets`, or on kube-apiserver)", err)
	}
	if ignored, err = kubeflags.Check(fs); err != nil {
		return nil, nil, fmt.Errorf("envtest: %w", err)
	}
	if rest := fs.Args(); len(rest) > 0 {
		return nil, nil, fmt.Errorf("envtest: kube-apiserver takes no arguments: %q", rest)
	}
	ignored = append(ignored, kubeflags.DropPlugins(&f.admission)...)
	if options, err = f.options(); err != nil {
		return nil, nil, fmt.Errorf("envtest: %w", err)
	}
	return options, ignored, nil
}

func (f *serverFlags) options() (_ []testenv.Option, err error) {
	others := func(mode string) bool { return mode != "RBAC" && mode != "Node" }
	if slices.ContainsFunc(f.modes, others) || !slices.Contains(f.modes, "RBAC") {
		return nil, fmt.Errorf("--authorization-mode=%s: in process the API server authorizes by Node and RBAC",
			strings.Join(f.modes, ","))
	}
	if f.admissionConfig != "" {
		if f.admission.Config, err = admission.ReadConfig(f.admissionConfig); err != nil {
			return nil, fmt.Errorf("--admission-control-config-file: %w", err)
		}
	}
	credentials, err := f.credentials()
	if err != nil {
		return nil, err
	}
	return []testenv.Option{testenv.WithAdmission(f.admission), testenv.WithAuthentication(credentials),
		testenv.WithAudit(f.audit)}, nil
}

// credentials returns the credentials that the API server accepts besides the environment's own certificates.
func (f *serverFlags) credentials() (a authn.Options, err error) {
	a.NoAnonymous, a.TokenFile = !f.anonymous, f.tokenFile
	if f.clientCAFile != "" {
		pem, err := os.ReadFile(f.clientCAFile)
		if err != nil {
			return a, fmt.Errorf("--client-ca-file: %w", err)
		}
		a.ClientCAs = authn.PublishedCAs(pem)
	}
	if len(f.issuers)+len(f.audiences)+len(f.signingKeyFile)+len(f.keyFiles) == 0 {
		return a, nil // the environment makes an issuer, with its own clock
	}
	a.ServiceAccounts, err = f.issuer()
	return a, err
}

// issuer returns the issuer of service account tokens.
func (f *serverFlags) issuer() (*authn.Issuer, error) {
	o := authn.IssuerOptions{Issuers: f.issuers, Audiences: f.audiences}
	if err := o.ReadKeys(f.signingKeyFile, f.keyFiles); err != nil {
		return nil, err
	}
	if o.SigningKey == nil {
		var err error
		if o.SigningKey, err = pki.NewKey(); err != nil {
			return nil, err
		}
	}
	return authn.NewIssuer(o)
}

// safeForEtcd are prefixes of etcd's flags that do not change where objects are stored.
var safeForEtcd = []string{"auto-compaction-", "backend-", "data-dir", "election-timeout", "experimental-",
	"heartbeat-interval", "log", "max-", "name", "quota-backend-bytes", "snapshot-count", "unsafe-no-fsync", "wal-dir"}

// checkEtcdFlags rejects flags that need an etcd server.
func checkEtcdFlags(args []string) error {
	for _, arg := range args {
		safe := func(prefix string) bool { return strings.HasPrefix(arg, "--"+prefix) }
		if !slices.ContainsFunc(safeForEtcd, safe) {
			return fmt.Errorf("envtest: etcd's flag %s: objects are kept in the test's process, and there is no etcd",
				arg)
		}
	}
	return nil
}
