package envtest

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/coxswain-dev/coxswain/testenv"
)

// APIServer is the API server. Its methods must not be called while its ControlPlane starts or stops.
type APIServer struct {
	// SecureServing is the server's address, once it runs, and makes its users.
	SecureServing
	// URL is the server's address, once it runs: a free port of loopback. If it is set before, here or in another
	// field, ControlPlane.Start fails.
	URL *url.URL
	// SecurePort is the port of the address.
	//
	// Deprecated: use SecureServing.
	SecurePort int
	// InsecureServing makes ControlPlane.Start fail: as in Kubernetes, every address has TLS.
	//
	// Deprecated: use SecureServing.
	InsecureServing *ListenAddr
	// Args are flags, each --name=value. They are templates, rendered with the APIServer, and are added to
	// Configure.
	//
	// Deprecated: use Configure.
	Args []string

	// Err receives the log, or Out if Err is nil. If both are nil, there is no log.
	Out, Err io.Writer
	// StartTimeout and StopTimeout limit the duration of ControlPlane.Start and Stop; 20 s if zero.
	StartTimeout, StopTimeout time.Duration
	// CertDir is a folder for an Authn. A folder with the API server's certificate is an error: the server uses its
	// own.
	CertDir string

	// Path and EtcdURL have no effect, as no program is run.
	Path    string
	EtcdURL *url.URL

	args    *Arguments
	env     *testenv.Environment
	workDir string // the Authn's, if release must remove it
	started Authn  // the suite's Authn, if release must stop it
}

// SecureServing is the API server's address, once it runs, the CA in PEM that verifies its certificate, and the
// Authn that makes its users.
type SecureServing struct {
	ListenAddr
	CA []byte
	// Authn makes the users. The default, which is set once the API server runs, gives them client certificates.
	Authn
}

// ListenAddr is an address.
type ListenAddr struct{ Address, Port string }

// HostPort returns the address with its port.
func (l *ListenAddr) HostPort() string { return net.JoinHostPort(l.Address, l.Port) }

// URL returns the URL of a path at the address.
func (l *ListenAddr) URL(scheme, path string) *url.URL {
	return &url.URL{Scheme: scheme, Host: l.HostPort(), Path: path}
}

// DefaultKubeAPIServerFlags are flags that a suite may extend with its own in APIServer.Args. They have no effect
// beyond the defaults.
//
// Deprecated: use APIServer.Configure.
var DefaultKubeAPIServerFlags = []string{"--allow-privileged=true", "--disable-admission-plugins=ServiceAccount"}

// Configure returns the flags of kube-apiserver. These have an effect: admission plugins and their configuration
// (--admission-control-config-file, --default-*-toleration-seconds), --anonymous-auth, --client-ca-file,
// --token-auth-file, --api-audiences, and the issuer and the keys of service accounts. Flags that can be ignored
// without harm are logged: feature gates, --runtime-config, tuning. Flags about addresses, files and etcd have no
// effect. Any other flag makes ControlPlane.Start fail, and so does a flag that kube-apiserver does not have.
func (s *APIServer) Configure() *Arguments {
	if s.args == nil {
		s.args = EmptyArguments()
	}
	return s.args
}

// Start starts the API server again after Stop, with the same objects at the same address. ControlPlane.Start
// starts it for the first time.
func (s *APIServer) Start() error {
	if s.env == nil {
		return errors.New("envtest: the API server is started by ControlPlane.Start")
	}
	return s.env.StartAPIServer()
}

// Stop ends the API server as for a restart: clients are refused until Start. ControlPlane.Stop ends it for good.
func (s *APIServer) Stop() error {
	if s.env == nil {
		return nil
	}
	return s.env.StopAPIServer()
}

// check rejects fields that choose the address or the certificate.
func (s *APIServer) check() error {
	var found []error
	chosen := s.URL != nil || s.SecurePort != 0 || s.SecureServing.Address != "" && s.SecureServing.Port != ""
	if chosen {
		found = append(found, errors.New("envtest: the API server's address cannot be chosen: it takes a free port of "+
			"loopback, and has it in SecureServing once it runs"))
	}
	if s.InsecureServing != nil {
		found = append(found, errors.New("envtest: InsecureServing: the API server serves nothing without TLS"))
	}
	if s.CertDir != "" {
		certificate := filepath.Join(s.CertDir, "apiserver.crt")
		if _, err := os.Stat(certificate); !errors.Is(err, fs.ErrNotExist) {
			found = append(found, fmt.Errorf("envtest: %s: the API server serves with a certificate of its own",
				certificate))
		}
	}
	return errors.Join(found...)
}

// prepare lets the suite's Authn configure the server, and returns the options that its flags mean.
func (s *APIServer) prepare() ([]testenv.Option, error) {
	if err := s.startAuthn(); err != nil {
		return nil, err
	}
	flags := s.Configure().clone()
	if err := flags.appendRendered(s.Args, s); err != nil {
		return nil, err
	}
	options, ignored, err := parseFlags(flags.AsStrings(nil))
	if err != nil {
		return nil, err
	}
	if log, ok := s.logger(); ok {
		warn(log, ignored)
		options = append(options, testenv.WithLog(log))
	}
	return options, nil
}

// serves fills in the address of the running server.
func (s *APIServer) serves(env *testenv.Environment) (err error) {
	if s.URL, err = url.Parse(env.Config.Host); err != nil {
		return fmt.Errorf("envtest: %w", err)
	}
	s.env, s.CA = env, env.Config.CAData
	s.Address, s.Port = s.URL.Hostname(), s.URL.Port()
	if s.SecurePort, err = strconv.Atoi(s.Port); err != nil {
		return fmt.Errorf("envtest: %w", err)
	}
	if s.Authn == nil {
		s.Authn = certificates{env}
	}
	return nil
}

// release clears the fields that serves has filled in, so that the server can be started again, and stops the
// suite's Authn.
func (s *APIServer) release() (err error) {
	if s.env != nil {
		s.env, s.URL, s.CA, s.Address, s.Port, s.SecurePort = nil, nil, nil, "", "", 0
	}
	if _, ours := s.Authn.(certificates); ours {
		s.Authn = nil
	}
	if s.started != nil {
		err = s.started.Stop()
		s.started = nil
	}
	if s.workDir != "" {
		err = errors.Join(err, os.RemoveAll(s.workDir))
		s.workDir, s.CertDir = "", ""
	}
	return err
}
