package envtest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"k8s.io/client-go/rest"

	"github.com/coxswain-dev/coxswain/testenv"
)

// ControlPlane is the API server and where its objects are.
type ControlPlane struct {
	APIServer *APIServer
	// Etcd is there so that suites compile: objects are kept in memory.
	Etcd *Etcd
	// KubectlPath is the kubectl of AuthenticatedUser.Kubectl.
	KubectlPath string

	options []testenv.Option
	env     *testenv.Environment
}

// APIServer is the API server.
type APIServer struct {
	SecureServing
	// URL is its address, once it runs.
	URL *url.URL
	// Out and Err are where the log goes. Nil: nowhere.
	Out, Err io.Writer

	// Without effect.
	Path                      string
	CertDir                   string
	EtcdURL                   *url.URL
	StartTimeout, StopTimeout time.Duration

	args *Arguments
}

// SecureServing is the API server's address, once it runs, and the CA in PEM that its certificate is verified by.
type SecureServing struct {
	ListenAddr
	CA []byte
}

// ListenAddr is an address.
type ListenAddr struct{ Address, Port string }

// HostPort is the address with its port.
func (l *ListenAddr) HostPort() string { return net.JoinHostPort(l.Address, l.Port) }

// URL is a path at the address.
func (l *ListenAddr) URL(scheme, path string) *url.URL {
	return &url.URL{Scheme: scheme, Host: l.HostPort(), Path: path}
}

// Configure returns the flags of kube-apiserver. Of those that a suite sets, the admission plugins have effect; feature
// gates, runtime-config, tuning and those about files and addresses do nothing; any other makes Start fail.
func (s *APIServer) Configure() *Arguments {
	if s.args == nil {
		s.args = EmptyArguments()
	}
	return s.args
}

// Etcd is without effect.
type Etcd struct {
	URL                       *url.URL
	Path, DataDir             string
	Out, Err                  io.Writer
	StartTimeout, StopTimeout time.Duration

	args *Arguments
}

// Configure returns flags that nobody reads.
func (e *Etcd) Configure() *Arguments {
	if e.args == nil {
		e.args = EmptyArguments()
	}
	return e.args
}

// GetAPIServer returns the APIServer, which it makes if there is none.
func (c *ControlPlane) GetAPIServer() *APIServer {
	if c.APIServer == nil {
		c.APIServer = &APIServer{}
	}
	return c.APIServer
}

// Start starts the API server.
func (c *ControlPlane) Start() error {
	if c.env != nil {
		return errors.New("envtest: the control plane runs")
	}
	server := c.GetAPIServer()
	options, err := server.Configure().options()
	if err != nil {
		return err
	}
	if c.env, err = testenv.NewEnvironment(append(options, c.options...)...); err != nil {
		return fmt.Errorf("envtest: %w", err)
	}
	if server.URL, err = url.Parse(c.env.Config.Host); err != nil {
		return fmt.Errorf("envtest: %w", err)
	}
	server.Address, server.Port = server.URL.Hostname(), server.URL.Port()
	server.CA = c.env.Config.CAData
	return nil
}

// Stop ends the API server, if it runs.
func (c *ControlPlane) Stop() error {
	if c.env == nil {
		return nil
	}
	env := c.env
	c.env = nil
	return env.Stop()
}

// User is a user of Kubernetes.
type User struct {
	Name   string
	Groups []string
}

// AddUser makes a user, in the groups and with all that base says besides credentials and address; it may be nil. The
// control plane must run.
func (c *ControlPlane) AddUser(user User, base *rest.Config) (*AuthenticatedUser, error) {
	if c.env == nil {
		return nil, errors.New("envtest: the control plane does not run: there is nobody to know a user")
	}
	config := &rest.Config{}
	if base != nil {
		config = rest.CopyConfig(base)
	}
	made := c.env.User(user.Name, user.Groups...)
	config.Host, config.TLSClientConfig = made.Host, made.TLSClientConfig
	return &AuthenticatedUser{plane: c, config: config}, nil
}

// AuthenticatedUser is a user that the API server knows.
type AuthenticatedUser struct {
	plane   *ControlPlane
	config  *rest.Config
	kubectl *KubeCtl
}

// Config is the user's configuration.
func (u *AuthenticatedUser) Config() *rest.Config { return u.config }

// KubeConfig is the user's kubeconfig.
func (u *AuthenticatedUser) KubeConfig() ([]byte, error) { return testenv.KubeConfig(u.config) }

// Kubectl is kubectl as the user. Its kubeconfig is there until the control plane stops.
func (u *AuthenticatedUser) Kubectl() (*KubeCtl, error) {
	if u.kubectl != nil {
		return u.kubectl, nil
	}
	if u.plane.env == nil {
		return nil, errors.New("envtest: the control plane does not run")
	}
	path, err := u.plane.env.KubeConfigFile(u.config)
	if err != nil {
		return nil, err
	}
	u.kubectl = &KubeCtl{Path: u.plane.KubectlPath, Opts: []string{"--kubeconfig=" + path}}
	return u.kubectl, nil
}

// KubeCtl runs kubectl.
type KubeCtl struct {
	// Path is the program: by default that of TEST_ASSET_KUBECTL or in KUBEBUILDER_ASSETS, or kubectl of the PATH.
	Path string
	// Opts come before all arguments.
	Opts []string
}

// Run runs it, and returns what it writes.
func (k *KubeCtl) Run(args ...string) (stdout, stderr io.Reader, err error) {
	path := k.Path
	if path == "" {
		path = os.Getenv("TEST_ASSET_KUBECTL")
	}
	if folder := os.Getenv("KUBEBUILDER_ASSETS"); path == "" && folder != "" {
		path = filepath.Join(folder, "kubectl")
	}
	if path == "" {
		path = "kubectl"
	}
	var out, errs bytes.Buffer
	command := exec.Command(path, append(k.Opts[:len(k.Opts):len(k.Opts)], args...)...)
	command.Stdout, command.Stderr = &out, &errs
	err = command.Run()
	return &out, &errs, err
}
