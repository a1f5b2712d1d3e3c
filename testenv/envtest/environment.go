// Package envtest has the API of controller-runtime's package of the same name, on package testenv: a suite that
// starts envtest.Environment changes an import, and then downloads no programs and starts in milliseconds.
//
//	import "github.com/coxswain-dev/coxswain/testenv/envtest" // was sigs.k8s.io/controller-runtime/pkg/envtest
//
//	env := &envtest.Environment{CRDDirectoryPaths: []string{"config/crd/bases"}, ErrorIfCRDPathMissing: true}
//	cfg, err := env.Start()
//
// As in envtest there is an API server alone, unless Full is set: then controllers, the scheduler and a Node run as
// well. Environment.Testenv is the underlying testenv.Environment, with snapshots, faults and all other features.
//
// All of envtest's exported names exist. Fields about programs (paths, downloads) exist so that suites compile, and
// have no effect. A flag of kube-apiserver or etcd acts in the test's process, is ignored because no behavior
// depends on it there, or makes Start fail; see APIServer.Configure and Etcd.Configure.
//
//	environment.go   Environment
//	controlplane.go  ControlPlane and Etcd
//	apiserver.go     APIServer
//	users.go         users and their kubectl
//	arguments.go     flags, as a suite sets them
//	flags.go         the flags that have an effect
//	crds.go          CustomResourceDefinitions
//	webhooks.go      webhooks and conversions
package envtest

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/coxswain-dev/coxswain/testenv"
)

// The time-outs of specs of Ginkgo, in seconds.
const (
	StartTimeout = 60
	StopTimeout  = 60
)

// Environment is a control plane for a suite, with definitions and webhooks installed. It is not safe for concurrent
// use.
type Environment struct {
	// ControlPlane has the API server's address, users and flags.
	ControlPlane ControlPlane
	// Scheme selects the kinds that a webhook converts: one version must be a Hub and the others Convertible, as in
	// controller-runtime. The default is client-go's.
	Scheme *kruntime.Scheme
	// Config is an administrator's. With UseExistingCluster it may be set before Start.
	Config *rest.Config
	// KubeConfig is a kubeconfig with the content of Config.
	KubeConfig []byte

	CRDInstallOptions     CRDInstallOptions
	WebhookInstallOptions WebhookInstallOptions
	// ErrorIfCRDPathMissing, CRDs and CRDDirectoryPaths are added to CRDInstallOptions.
	ErrorIfCRDPathMissing bool
	CRDs                  []*apiextensionsv1.CustomResourceDefinition
	CRDDirectoryPaths     []string

	// UseExistingCluster makes Start use the cluster of Config or, if that is nil, of the usual kubeconfig. By
	// default the environment variable USE_EXISTING_CLUSTER decides.
	UseExistingCluster *bool
	// AttachControlPlaneOutput writes the control plane's log to standard error. So does the environment variable
	// KUBEBUILDER_ATTACH_CONTROL_PLANE_OUTPUT.
	AttachControlPlaneOutput bool

	// Full runs controllers, the scheduler and a simulated Node beside the API server. So does
	// COXSWAIN_ASSETS=full.
	Full bool
	// Options are further options of testenv.
	Options []testenv.Option
	// Testenv is the environment that Start has started; nil with UseExistingCluster.
	Testenv *testenv.Environment

	// ControlPlaneStartTimeout and ControlPlaneStopTimeout limit the start and the stop of the control plane. If
	// they are zero, the environment variables KUBEBUILDER_CONTROLPLANE_START_TIMEOUT and
	// KUBEBUILDER_CONTROLPLANE_STOP_TIMEOUT decide; the default is 20 s.
	ControlPlaneStartTimeout time.Duration
	ControlPlaneStopTimeout  time.Duration
	// BinaryAssetsDirectory is the folder of kubectl, if it contains one. No other program is needed.
	BinaryAssetsDirectory string

	// No effect: the control plane is part of the test's program, and is not downloaded.
	DownloadBinaryAssets         bool
	DownloadBinaryAssetsVersion  string
	DownloadBinaryAssetsIndexURL string
}

// DefaultBinaryAssetsIndexURL is where envtest finds programs to download. It has no effect.
var DefaultBinaryAssetsIndexURL = "https://raw.githubusercontent.com/kubernetes-sigs/controller-tools/HEAD/" +
	"envtest-releases.yaml"

// Start starts the control plane, and returns when definitions and webhooks are installed.
func (te *Environment) Start() (*rest.Config, error) {
	var err error
	if te.useExistingCluster() {
		err = te.useCluster()
	} else {
		err = te.startControlPlane()
	}
	if err != nil {
		return nil, err
	}
	if len(te.KubeConfig) == 0 {
		if te.KubeConfig, err = testenv.KubeConfig(te.Config); err != nil {
			return nil, err
		}
	}
	if te.Scheme == nil {
		te.Scheme = scheme.Scheme
	}
	if err := te.WebhookInstallOptions.PrepWithoutInstalling(); err != nil {
		return nil, err
	}
	if te.CRDInstallOptions.Scheme == nil {
		te.CRDInstallOptions.Scheme = te.Scheme
	}
	te.CRDInstallOptions.CRDs = append(te.CRDInstallOptions.CRDs, te.CRDs...)
	te.CRDInstallOptions.Paths = append(te.CRDInstallOptions.Paths, te.CRDDirectoryPaths...)
	te.CRDInstallOptions.ErrorIfPathMissing = te.CRDInstallOptions.ErrorIfPathMissing || te.ErrorIfCRDPathMissing
	te.CRDInstallOptions.WebhookOptions = te.WebhookInstallOptions
	if te.CRDs, err = InstallCRDs(te.Config, te.CRDInstallOptions); err != nil {
		return te.Config, fmt.Errorf("envtest: installing CustomResourceDefinitions: %w", err)
	}
	if err := te.WebhookInstallOptions.Install(te.Config); err != nil {
		return nil, fmt.Errorf("envtest: installing webhooks: %w", err)
	}
	return te.Config, nil
}

// Stop ends the control plane. From an existing cluster it removes the definitions, if CleanUpAfterUse is set.
func (te *Environment) Stop() error {
	if te.CRDInstallOptions.CleanUpAfterUse && te.Config != nil {
		if err := UninstallCRDs(te.Config, te.CRDInstallOptions); err != nil {
			return err
		}
	}
	if err := te.WebhookInstallOptions.Cleanup(); err != nil {
		return err
	}
	if te.useExistingCluster() {
		return nil
	}
	te.KubeConfig = nil // another start is another control plane
	return te.ControlPlane.Stop()
}

// AddUser makes a user of the control plane, in its groups. The configuration has the settings of base except
// credentials and address; base may be nil.
func (te *Environment) AddUser(user User, base *rest.Config) (*AuthenticatedUser, error) {
	return te.ControlPlane.AddUser(user, base)
}

func (te *Environment) useExistingCluster() bool {
	if te.UseExistingCluster != nil {
		return *te.UseExistingCluster
	}
	return strings.EqualFold(os.Getenv("USE_EXISTING_CLUSTER"), "true")
}

func (te *Environment) useCluster() (err error) {
	if te.Config != nil {
		return nil
	}
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	te.Config, err = clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return fmt.Errorf("envtest: the existing cluster: %w", err)
	}
	return nil
}

func (te *Environment) startControlPlane() error {
	plane := &te.ControlPlane
	options := te.Options
	if !te.Full && os.Getenv("COXSWAIN_ASSETS") != "full" {
		options = append([]testenv.Option{testenv.APIServerOnly()}, options...)
	}
	if err := te.configure(plane.GetAPIServer()); err != nil {
		return err
	}
	if plane.KubectlPath == "" {
		plane.KubectlPath = kubectlPath(te.BinaryAssetsDirectory)
	}
	plane.options = options
	if err := plane.Start(); err != nil {
		return err
	}
	te.Testenv = plane.env
	// envtest sets these limits, and suites may read them.
	admin, err := plane.AddUser(User{Name: "admin", Groups: []string{"system:masters"}},
		&rest.Config{QPS: 1000, Burst: 2000})
	if err != nil {
		return err
	}
	te.Config = admin.Config()
	return nil
}

// configure passes on the time-outs and the destination of the log.
func (te *Environment) configure(server *APIServer) error {
	for variable, limit := range map[string]*time.Duration{
		"KUBEBUILDER_CONTROLPLANE_START_TIMEOUT": &te.ControlPlaneStartTimeout,
		"KUBEBUILDER_CONTROLPLANE_STOP_TIMEOUT":  &te.ControlPlaneStopTimeout,
	} {
		set := os.Getenv(variable)
		if *limit != 0 || set == "" {
			continue
		}
		var err error
		if *limit, err = time.ParseDuration(set); err != nil {
			return fmt.Errorf("envtest: %s: %w", variable, err)
		}
	}
	server.StartTimeout, server.StopTimeout = te.ControlPlaneStartTimeout, te.ControlPlaneStopTimeout
	if os.Getenv("KUBEBUILDER_ATTACH_CONTROL_PLANE_OUTPUT") == "true" {
		te.AttachControlPlaneOutput = true
	}
	if te.AttachControlPlaneOutput && server.Out == nil && server.Err == nil {
		server.Err = os.Stderr
	}
	return nil
}

// SetupEnvtestDefaultBinaryAssetsDirectory returns the folder of setup-envtest's programs, which are not needed
// here.
func SetupEnvtestDefaultBinaryAssetsDirectory() (string, error) {
	if data := os.Getenv("XDG_DATA_HOME"); data != "" && runtime.GOOS != "darwin" {
		return filepath.Join(data, "kubebuilder-envtest"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("envtest: %w", err)
	}
	if runtime.GOOS == "darwin" {
		return filepath.Join(home, "Library", "Application Support", "io.kubebuilder.envtest"), nil
	}
	return filepath.Join(home, ".local", "share", "kubebuilder-envtest"), nil
}
