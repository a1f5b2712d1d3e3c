package envtest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"k8s.io/client-go/rest"

	"github.com/coxswain-dev/coxswain/testenv"
)

// User names a user of Kubernetes.
type User struct {
	Name   string
	Groups []string
}

// Authn makes users that the API server accepts. Its methods are called in the order given here, AddUser any number
// of times.
type Authn interface {
	// Configure sets the flags that make the API server accept the users. workDir is a folder for their files.
	Configure(workDir string, args *Arguments) error
	// Start is called before the API server starts.
	Start() error
	// AddUser makes a user, and returns a copy of a configuration with its credentials.
	AddUser(user User, base *rest.Config) (*rest.Config, error)
	// Stop is called when the API server has ended.
	Stop() error
}

// certificates makes users with client certificates of the environment's CA.
type certificates struct{ env *testenv.Environment }

func (certificates) Configure(string, *Arguments) error { return nil }
func (certificates) Start() error                       { return nil }
func (certificates) Stop() error                        { return nil }

func (c certificates) AddUser(user User, base *rest.Config) (*rest.Config, error) {
	config := rest.CopyConfig(base)
	config.TLSClientConfig = c.env.User(user.Name, user.Groups...).TLSClientConfig
	return config, nil
}

// startAuthn starts the suite's Authn, if it has one.
func (s *APIServer) startAuthn() error {
	if s.Authn == nil {
		return nil
	}
	if s.CertDir == "" {
		folder, err := os.MkdirTemp("", "envtest-authn-")
		if err != nil {
			return fmt.Errorf("envtest: %w", err)
		}
		s.CertDir, s.workDir = folder, folder
	}
	if err := s.Authn.Configure(s.CertDir, s.Configure()); err != nil {
		return fmt.Errorf("envtest: Authn: %w", err)
	}
	s.started = s.Authn
	if err := s.Authn.Start(); err != nil {
		return fmt.Errorf("envtest: Authn: %w", err)
	}
	return nil
}

// AddUser makes a user, in its groups. The configuration has the settings of base except credentials and address;
// base may be nil. The control plane must run.
func (c *ControlPlane) AddUser(user User, base *rest.Config) (*AuthenticatedUser, error) {
	if c.env == nil {
		return nil, errors.New("envtest: the control plane does not run: no API server accepts a user")
	}
	if base == nil {
		base = &rest.Config{}
	}
	config, err := c.APIServer.Authn.AddUser(user, base)
	if err != nil {
		return nil, fmt.Errorf("envtest: user %s: %w", user.Name, err)
	}
	config.Host, config.CAData = c.env.Config.Host, c.APIServer.CA
	return &AuthenticatedUser{plane: c, config: config}, nil
}

// AuthenticatedUser is a user that the API server accepts.
type AuthenticatedUser struct {
	plane   *ControlPlane
	config  *rest.Config
	kubectl *KubeCtl
}

// Config returns the user's configuration.
func (u *AuthenticatedUser) Config() *rest.Config { return u.config }

// KubeConfig returns the user's kubeconfig.
func (u AuthenticatedUser) KubeConfig() ([]byte, error) { return testenv.KubeConfig(u.config) }

// Kubectl returns a kubectl that runs as the user. Its kubeconfig exists until the control plane stops.
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
	// Path is the program: by default the one of TEST_ASSET_KUBECTL or in KUBEBUILDER_ASSETS, or kubectl of the
	// PATH.
	Path string
	// Opts come before all arguments.
	Opts []string
}

// Run runs kubectl, and returns its output.
func (k *KubeCtl) Run(args ...string) (stdout, stderr io.Reader, err error) {
	path := k.Path
	if path == "" {
		path = kubectlPath("")
	}
	if path == "" {
		path = "kubectl"
	}
	var out, errs bytes.Buffer
	command := exec.Command(path, slices.Concat(k.Opts, args)...)
	command.Stdout, command.Stderr = &out, &errs
	err = command.Run()
	return &out, &errs, err
}

// kubectlPath returns the kubectl that the environment variables name or, if it exists, the one in a folder; "" if
// there is none.
func kubectlPath(folder string) string {
	if path := os.Getenv("TEST_ASSET_KUBECTL"); path != "" {
		return path
	}
	if assets := os.Getenv("KUBEBUILDER_ASSETS"); assets != "" {
		return filepath.Join(assets, "kubectl")
	}
	if folder == "" {
		return ""
	}
	path := filepath.Join(folder, "kubectl")
	if _, err := os.Stat(path); err != nil {
		return ""
	}
	return path
}

// emptyFolder reports whether a path does not exist, or is a folder without content.
func emptyFolder(path string) bool {
	entries, err := os.ReadDir(path)
	return len(entries) == 0 && (err == nil || os.IsNotExist(err))
}
