package kubectllite

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/cli-runtime/pkg/resource"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
	"k8s.io/kubectl/pkg/cmd/util/podcmd"
	"k8s.io/kubectl/pkg/polymorphichelpers"
)

// podTimeout is for how long verbs that need a running pod wait for one.
const podTimeout = 60 * time.Second

type execOptions struct {
	streaming
	files resource.FilenameOptions
}

func newExec(s *session) *cobra.Command {
	o := &execOptions{streaming: streaming{session: s}}
	cmd := &cobra.Command{
		Use:   "exec (POD | TYPE/NAME) [-c CONTAINER] [flags] -- COMMAND [args...]",
		Short: "Execute a command in a container",
		Example: `  kubectl-lite exec web-0 -- date
  kubectl-lite exec -it deploy/web -c nginx -- sh
  tar cf - src | kubectl-lite exec -i web-0 -- tar xf - -C /tmp`,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			timeout, err := cmdutil.GetPodRunningTimeoutFlag(cmd)
			if err != nil {
				return usageErrorf(cmd, "%s", err.Error())
			}
			name, command, err := o.split(cmd, args)
			if err != nil {
				return err
			}
			pod, err := o.pod(name, timeout)
			if err != nil {
				return err
			}
			return o.run(contextOf(cmd), pod, command)
		},
	}
	o.streaming.addFlags(cmd)
	cmdutil.AddPodRunningTimeoutFlag(cmd, podTimeout)
	cmdutil.AddJsonFilenameFlag(cmd.Flags(), &o.files.Filenames, "to use to exec into the resource")
	return cmd
}

// split tells the pod from the command, which follows "--".
func (o *execOptions) split(cmd *cobra.Command, args []string) (name string, command []string, err error) {
	dash := cmd.ArgsLenAtDash()
	if len(args) > 0 && dash != 0 {
		name = args[0]
	}
	switch {
	case dash == 0 || dash == 1:
		command = args[dash:]
	case len(args) > 1 || len(args) > 0 && len(o.files.Filenames) > 0:
		return "", nil, usageErrorf(cmd, "exec [POD] [COMMAND] is not supported anymore. Use exec [POD] -- [COMMAND] instead")
	}
	switch {
	case name == "" && len(o.files.Filenames) == 0:
		return "", nil, errors.New("pod, type/name or --filename must be specified")
	case len(command) == 0:
		return "", nil, errors.New("you must specify at least one command for the container")
	}
	return name, command, nil
}

// pod is the pod that is named, or one of those that the named workload or service has.
func (o *execOptions) pod(name string, timeout time.Duration) (*corev1.Pod, error) {
	namespace, explicit, err := o.namespace()
	if err != nil {
		return nil, err
	}
	b := o.withFiles(o.typed().NamespaceParam(namespace).DefaultNamespace(), explicit, &o.files)
	if name != "" {
		b = b.ResourceNames("pods", name)
	}
	obj, err := b.Do().Object()
	if err != nil {
		return nil, err
	}
	if meta.IsListType(obj) {
		return nil, errors.New("cannot exec into multiple objects at a time")
	}
	return polymorphichelpers.AttachablePodForObjectFn(o.Factory, obj, timeout)
}

// run starts a command beside the container's own process and stays until it ends. Its exit code becomes this process's.
func (o *streaming) run(ctx context.Context, pod *corev1.Pod, command []string) error {
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return fmt.Errorf("cannot exec into a container in a completed pod; current phase is %s", pod.Status.Phase)
	}
	if container, _ := podcmd.FindContainerByName(pod, o.container); o.container != "" && container == nil {
		return fmt.Errorf("container %s is not valid for pod %s out of: %s", o.container, pod.Name, podcmd.AllContainerNames(pod))
	}
	container, err := o.inContainer(pod)
	if err != nil {
		return err
	}
	t := o.terminal()
	target, err := o.podURL(pod, "exec", &corev1.PodExecOptions{
		Container: container.Name, Command: command,
		Stdin: t.In != nil, Stdout: true, Stderr: !t.Raw, TTY: t.Raw,
	})
	if err != nil {
		return err
	}
	return o.join(ctx, t, t.MonitorSize(t.GetSize()), target, "")
}
