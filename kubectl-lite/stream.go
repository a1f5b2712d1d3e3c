package kubectllite

import (
	"context"
	"fmt"
	"net/url"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
	"k8s.io/kubectl/pkg/cmd/util/podcmd"
	"k8s.io/kubectl/pkg/scheme"
	"k8s.io/kubectl/pkg/util/term"
	"k8s.io/streaming/pkg/httpstream"
)

// streaming joins this process's streams to those of a process in a container: exec, attach, run -i, cp.
type streaming struct {
	*session
	container string
	stdin     bool
	tty       bool
	quiet     bool
}

func (o *streaming) addFlags(cmd *cobra.Command) {
	cmdutil.AddContainerVarFlags(cmd, &o.container, "")
	cmd.Flags().BoolVarP(&o.stdin, "stdin", "i", false, "Pass stdin to the container")
	cmd.Flags().BoolVarP(&o.tty, "tty", "t", false, "Stdin is a TTY")
	cmd.Flags().BoolVarP(&o.quiet, "quiet", "q", false, "Only print output from the remote session")
}

// inContainer is the container that -c names, else the pod's default one.
func (o *streaming) inContainer(pod *corev1.Pod) (*corev1.Container, error) {
	return podcmd.FindOrDefaultContainerByName(pod, o.container, o.quiet, o.ErrOut)
}

// terminal prepares this end. Where a TTY is wanted and standard input is a terminal, that is put into raw mode while the
// session lasts, so that keys such as Ctrl-C reach the other end.
func (o *streaming) terminal() *term.TTY {
	t := &term.TTY{Out: o.verbatim.Out}
	if !o.stdin {
		return t
	}
	t.In = o.verbatim.In
	if !o.tty {
		return t
	}
	if !t.IsTerminalIn() {
		if !o.quiet {
			fmt.Fprintln(o.ErrOut, "Unable to use a TTY - input is not a terminal or the right kind of file")
		}
		return t
	}
	t.Raw = true
	return t
}

// join runs a session until the other end closes it. On a TTY its two outputs are one. The keys detach leave a session on a
// TTY without ending it.
func (o *streaming) join(ctx context.Context, t *term.TTY, sizes term.TerminalSizeQueue, target *url.URL, detach string) error {
	options := remotecommand.StreamOptions{Stdout: t.Out, Tty: t.Raw}
	if t.In != nil {
		options.Stdin = t.In
	}
	if t.Raw && detach != "" {
		reader, err := term.NewDetachableReader(t.In, detach)
		if err != nil {
			return fmt.Errorf("could not bind detach keys: %w", err)
		}
		options.Stdin = reader
	}
	if t.Raw {
		options.TerminalSizeQueue = terminalSizes{sizes}
	} else {
		options.Stderr = o.verbatim.ErrOut
	}
	executor, err := o.executor(target)
	if err != nil {
		return err
	}
	return t.Safe(func() error { return executor.StreamWithContext(ctx, options) })
}

// executor speaks WebSocket, and SPDY with servers and proxies that know no better.
func (s *session) executor(target *url.URL) (remotecommand.Executor, error) {
	config, err := s.ToRESTConfig()
	if err != nil {
		return nil, err
	}
	spdy, err := remotecommand.NewSPDYExecutor(config, "POST", target)
	if err != nil || cmdutil.RemoteCommandWebsockets.IsDisabled() {
		return spdy, err
	}
	socket, err := remotecommand.NewWebSocketExecutor(config, "GET", target.String())
	if err != nil {
		return nil, err
	}
	return remotecommand.NewFallbackExecutor(socket, spdy, cannotUpgrade)
}

func cannotUpgrade(err error) bool {
	return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
}

// podURL is where a pod's subresource is reached.
func (s *session) podURL(pod *corev1.Pod, subresource string, options runtime.Object) (*url.URL, error) {
	config, err := s.ToRESTConfig()
	if err != nil {
		return nil, err
	}
	client, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, err
	}
	req := client.Post().Resource("pods").Namespace(pod.Namespace).Name(pod.Name).SubResource(subresource)
	if options != nil {
		req = req.VersionedParams(options, scheme.ParameterCodec)
	}
	return req.URL(), nil
}

// terminalSizes hands the sizes that one library notices to the other that sends them.
type terminalSizes struct{ from term.TerminalSizeQueue }

func (q terminalSizes) Next() *remotecommand.TerminalSize {
	if q.from == nil {
		return nil
	}
	size := q.from.Next()
	if size == nil {
		return nil
	}
	return &remotecommand.TerminalSize{Width: size.Width, Height: size.Height}
}
