package envtest

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"strings"
	"time"

	"k8s.io/client-go/rest"

	"github.com/coxswain-dev/coxswain/testenv"
)

// ControlPlane is the API server with its store. It is not safe for concurrent use.
type ControlPlane struct {
	APIServer *APIServer
	// Etcd exists so that suites compile: objects are kept in memory.
	Etcd *Etcd
	// KubectlPath is the path of kubectl for AuthenticatedUser.Kubectl.
	KubectlPath string

	options []testenv.Option
	env     *testenv.Environment
	late    chan struct{} // closed when a start that took too long has been undone; nil if there is none
	user    *AuthenticatedUser
}

// defaultTimeout limits the start and the stop if no other limit is set.
const defaultTimeout = 20 * time.Second

// GetAPIServer returns the APIServer, and makes it if there is none.
func (c *ControlPlane) GetAPIServer() *APIServer {
	if c.APIServer == nil {
		c.APIServer = &APIServer{}
	}
	return c.APIServer
}

// Start starts the API server. It is an error if a setting cannot work in the test's process, or if the start takes
// longer than APIServer.StartTimeout; then the started parts are stopped.
func (c *ControlPlane) Start() error {
	if c.env != nil {
		return errors.New("envtest: the control plane runs")
	}
	if c.Etcd == nil {
		c.Etcd = &Etcd{}
	}
	server := c.GetAPIServer()
	if err := errors.Join(c.Etcd.check(), server.check()); err != nil {
		return err
	}
	options, err := server.prepare()
	if err == nil {
		err = c.startWithin(orDefault(server.StartTimeout), append(options, c.options...))
	}
	if err == nil {
		err = server.serves(c.env)
	}
	if err != nil {
		return errors.Join(err, c.Stop())
	}
	return nil
}

// startWithin starts the environment, or returns an error when the limit has passed. In that case the environment
// is stopped as soon as it has started, and Stop waits for that.
func (c *ControlPlane) startWithin(limit time.Duration, options []testenv.Option) error {
	type result struct {
		env *testenv.Environment
		err error
	}
	started := make(chan result, 1)
	go func() {
		env, err := testenv.NewEnvironment(options...)
		started <- result{env, err}
	}()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case r := <-started:
		if r.err != nil {
			return fmt.Errorf("envtest: %w", r.err)
		}
		c.env = r.env
		return nil
	case <-timer.C:
		late := make(chan struct{})
		c.late = late
		go func() {
			defer close(late)
			if r := <-started; r.err == nil {
				_ = r.env.Stop() // no caller has seen it
			}
		}()
		return fmt.Errorf("envtest: the control plane has not started within %s", limit)
	}
}

// Stop ends the API server, if it runs. It is an error if that takes longer than APIServer.StopTimeout; then it is
// ended in the background.
func (c *ControlPlane) Stop() error {
	err := c.stopWithin(orDefault(c.GetAPIServer().StopTimeout))
	return errors.Join(err, c.APIServer.release())
}

func (c *ControlPlane) stopWithin(limit time.Duration) error {
	env, late := c.env, c.late
	c.env, c.late, c.user = nil, nil, nil
	stopped := make(chan error, 1)
	go func() {
		if late != nil {
			<-late
		}
		if env == nil {
			stopped <- nil
			return
		}
		stopped <- env.Stop()
	}()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case err := <-stopped:
		return err
	case <-timer.C:
		return fmt.Errorf("envtest: the control plane has not stopped within %s", limit)
	}
}

func orDefault(limit time.Duration) time.Duration {
	if limit == 0 {
		return defaultTimeout
	}
	return limit
}

// APIURL returns the API server's address, nil before Start.
//
// Deprecated: use AddUser, or APIServer.SecureServing.URL.
func (c *ControlPlane) APIURL() *url.URL { return c.GetAPIServer().URL }

// RESTClientConfig returns the configuration of an administrator.
//
// Deprecated: use AddUser.
func (c *ControlPlane) RESTClientConfig() (*rest.Config, error) {
	if c.user == nil {
		user, err := c.AddUser(User{Name: "default", Groups: []string{"system:masters"}}, nil)
		if err != nil {
			return nil, err
		}
		c.user = user
	}
	return c.user.Config(), nil
}

// KubeCtl returns an administrator's kubectl, nil if the control plane does not run.
//
// Deprecated: use AddUser and AuthenticatedUser.Kubectl.
func (c *ControlPlane) KubeCtl() *KubeCtl {
	if _, err := c.RESTClientConfig(); err != nil {
		return nil
	}
	kubectl, err := c.user.Kubectl()
	if err != nil {
		return nil
	}
	return kubectl
}

// Etcd has the settings of an etcd server. There is none: objects are kept in the test's process. A setting that
// expects an etcd server at some place makes ControlPlane.Start fail.
type Etcd struct {
	// URL must not be set before the start: no server answers there.
	URL *url.URL
	// DataDir may be an empty folder. A folder with data is an error, since they would not be read.
	DataDir string
	// Args are flags.
	//
	// Deprecated: use Configure.
	Args []string

	// Path, Out, Err and the time-outs have no effect, as no program is run.
	Path                      string
	Out, Err                  io.Writer
	StartTimeout, StopTimeout time.Duration

	args *Arguments
}

// Configure returns etcd's flags. Flags about sizes, logs and the speed of its disk have no effect; any other one
// makes ControlPlane.Start fail.
func (e *Etcd) Configure() *Arguments {
	if e.args == nil {
		e.args = EmptyArguments()
	}
	return e.args
}

// Start returns an error: objects are kept by the ControlPlane.
func (e *Etcd) Start() error {
	return errors.New("envtest: there is no etcd to start: objects are kept in the test's process")
}

// Stop has no effect, as no etcd runs.
func (e *Etcd) Stop() error { return nil }

// check rejects settings that need an etcd server.
func (e *Etcd) check() error {
	if e.URL != nil {
		return fmt.Errorf("envtest: Etcd.URL %s: objects are kept in the test's process, and no etcd serves there",
			e.URL)
	}
	if e.DataDir != "" && !emptyFolder(e.DataDir) {
		return fmt.Errorf("envtest: Etcd.DataDir %s has data, which would not be read: objects are kept in the test's "+
			"process", e.DataDir)
	}
	flags := EmptyArguments()
	if err := flags.appendRendered(e.Args, e); err != nil {
		return err
	}
	return checkEtcdFlags(append(e.Configure().AsStrings(nil), flags.AsStrings(nil)...))
}

// logger returns a logger that writes to the API server's output, and reports whether there is one.
func (s *APIServer) logger() (*slog.Logger, bool) {
	out := s.Err
	if out == nil {
		out = s.Out
	}
	if out == nil {
		return nil, false
	}
	return slog.New(slog.NewTextHandler(out, nil)), true
}

// warn logs the flags that have no effect.
func warn(log *slog.Logger, ignored []string) {
	if len(ignored) > 0 {
		log.Warn("flags of kube-apiserver have no effect here", "flags", strings.Join(ignored, " "))
	}
}
