package kubectllite

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
	"k8s.io/kubectl/pkg/polymorphichelpers"
	"k8s.io/kubectl/pkg/util/term"
)

// detachKeys leave a session without ending the process.
const detachKeys = "ctrl-p,ctrl-q"

type attachOptions struct {
	streaming
	detach string
}

func newAttach(s *session) *cobra.Command {
	o := &attachOptions{streaming: streaming{session: s}}
	cmd := &cobra.Command{
		Use:   "attach (POD | TYPE/NAME) -c CONTAINER",
		Short: "Attach to a running container",
		Example: `  kubectl-lite attach web-0
  kubectl-lite attach -it deploy/shell`,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			timeout, err := cmdutil.GetPodRunningTimeoutFlag(cmd)
			if err != nil {
				return usageErrorf(cmd, "%s", err.Error())
			}
			switch {
			case len(args) == 0:
				return errors.New("at least 1 argument is required for attach")
			case len(args) > 2:
				return fmt.Errorf("expected POD, TYPE/NAME, or TYPE NAME, (at most 2 arguments) saw %d: %v", len(args), args)
			case timeout <= 0:
				return errors.New("--pod-running-timeout must be higher than zero")
			}
			pod, err := o.pod(args, timeout)
			if err != nil {
				return err
			}
			return o.run(contextOf(cmd), pod)
		},
	}
	o.streaming.addFlags(cmd)
	cmdutil.AddPodRunningTimeoutFlag(cmd, podTimeout)
	cmd.Flags().StringVar(&o.detach, "detach-keys", detachKeys, "Override the key sequence for detaching a container.")
	return cmd
}

func (o *attachOptions) pod(args []string, timeout time.Duration) (*corev1.Pod, error) {
	namespace, _, err := o.namespace()
	if err != nil {
		return nil, err
	}
	kind := "pods"
	if len(args) == 2 {
		kind = args[0]
	}
	obj, err := o.typed().NamespaceParam(namespace).DefaultNamespace().ResourceNames(kind, args[len(args)-1]).Do().Object()
	if err != nil {
		return nil, err
	}
	pod, err := polymorphichelpers.AttachablePodForObjectFn(o.Factory, obj, timeout)
	if err != nil {
		return nil, err
	}
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return nil, fmt.Errorf("cannot attach a container in a completed pod; current phase is %s", pod.Status.Phase)
	}
	return pod, nil
}

// run joins the streams of the container's own process.
func (o *attachOptions) run(ctx context.Context, pod *corev1.Pod) error {
	container, err := o.inContainer(pod)
	if err != nil {
		return fmt.Errorf("cannot attach to the container: %v", err)
	}
	if o.tty && !container.TTY && !o.quiet {
		fmt.Fprintf(o.ErrOut, "error: Unable to use a TTY - container %s did not allocate one\n", container.Name)
	}
	o.tty = container.TTY
	t := o.terminal()
	target, err := o.podURL(pod, "attach", &corev1.PodAttachOptions{
		Container: container.Name, Stdin: t.In != nil, Stdout: true, Stderr: !t.Raw, TTY: t.Raw,
	})
	if err != nil {
		return err
	}
	if !o.quiet {
		fmt.Fprintln(o.ErrOut, "All commands and output from this session will be recorded in container logs, including credentials and sensitive information passed through the command prompt.")
		fmt.Fprintln(o.ErrOut, "If you don't see a command prompt, try pressing enter.")
	}
	if err := o.join(ctx, t, redrawing(t), target, o.detach); err != nil {
		return err
	}
	if !o.quiet && t.Raw {
		fmt.Fprintln(o.Out, resumeHint(pod, container.Name))
	}
	return nil
}

// redrawing tells a size that is one too large before the right one, which makes a program at the other end draw its screen
// again for who attaches a second time.
func redrawing(t *term.TTY) term.TerminalSizeQueue {
	size := t.GetSize()
	if !t.Raw || size == nil {
		return nil
	}
	larger := *size
	larger.Width++
	larger.Height++
	return t.MonitorSize(&larger, size)
}

func resumeHint(pod *corev1.Pod, container string) string {
	again := fmt.Sprintf("'%s attach %s -c %s -n %s -i -t'", Name, pod.Name, container, pod.Namespace)
	for _, c := range pod.Spec.EphemeralContainers {
		if c.Name == container {
			return "Session ended, the ephemeral container will not be restarted but may be reattached using " + again + " if it is still running"
		}
	}
	return "Session ended, resume using " + again + " command"
}
