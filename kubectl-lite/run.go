package kubectllite

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
	"k8s.io/utils/exec"
)

// imageReference is the form of an image's name: host:port/path:tag@digest, of which the path alone is needed.
var imageReference = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^([a-zA-Z0-9.\-]+(:[0-9]+)?/|\[[0-9a-fA-F:]+\](:[0-9]+)?/)?` +
		`[a-z0-9]+(([._]|__|-+)[a-z0-9]+)*(/[a-z0-9]+(([._]|__|-+)[a-z0-9]+)*)*` +
		`(:\w[\w.\-]{0,127})?(@[A-Za-z][A-Za-z0-9]*([-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,})?$`)
})

type runOptions struct {
	*session
	writing
	cmdutil.OverrideOptions
	image, pullPolicy, restart, port, labels, detach string
	annotations, env                                 []string
	remove, stdin, tty, attach, leaveOpen, asCommand bool
	expose, quiet, privileged, saveConfig            bool
	timeout                                          time.Duration
	grace                                            int
	dashAt                                           int
}

func newRun(s *session) *cobra.Command {
	o := &runOptions{session: s}
	cmd := &cobra.Command{
		Use:   "run NAME --image=image [--env=\"key=value\"] [--port=port] [--dry-run=server|client] [--overrides=inline-json] [--command] -- [COMMAND] [args...]",
		Short: "Run a particular image on the cluster",
		Example: `  kubectl-lite run web --image=nginx --port=80 --expose
  kubectl-lite run -it shell --image=busybox --restart=Never --rm -- sh`,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if err := o.complete(cmd); err != nil {
				return err
			}
			if o.timeout, err = cmdutil.GetPodRunningTimeoutFlag(cmd); err != nil {
				return err
			}
			if !cmd.Flags().Changed("attach") && o.stdin {
				o.attach = true
			}
			o.dashAt = cmd.ArgsLenAtDash()
			if err := o.validate(args); err != nil {
				return err
			}
			return o.run(contextOf(cmd), args[0], args[1:])
		},
	}
	o.writing.addFlags(cmd, "kubectl-run")
	cmdutil.AddApplyAnnotationVarFlags(cmd, &o.saveConfig)
	cmdutil.AddPodRunningTimeoutFlag(cmd, podTimeout)
	o.AddOverrideFlags(cmd)
	flags := cmd.Flags()
	flags.StringVar(&o.image, "image", "", "The image for the container to run.")
	cmd.MarkFlagRequired("image") //nolint:errcheck // the flag is declared in the line above
	flags.StringArrayVar(&o.annotations, "annotations", nil, "Annotations to apply to the pod.")
	flags.StringVar(&o.pullPolicy, "image-pull-policy", "", "The image pull policy for the container.  If left empty, this value will not be specified by the client and defaulted by the server.")
	flags.BoolVar(&o.remove, "rm", false, "If true, delete the pod after it exits.  Only valid when attaching to the container, e.g. with '--attach' or with '-i/--stdin'.")
	flags.StringArrayVar(&o.env, "env", nil, "Environment variables to set in the container.")
	flags.StringVar(&o.port, "port", "", "The port that this container exposes.")
	flags.StringVarP(&o.labels, "labels", "l", "", "Comma separated labels to apply to the pod. Will override previous values.")
	flags.BoolVarP(&o.stdin, "stdin", "i", false, "Keep stdin open on the container in the pod, even if nothing is attached.")
	flags.BoolVarP(&o.tty, "tty", "t", false, "Allocate a TTY for the container in the pod.")
	flags.BoolVar(&o.attach, "attach", false, "If true, wait for the Pod to start running, and then attach to the Pod as if 'kubectl-lite attach ...' were called.  Default false, unless '-i/--stdin' is set, in which case the default is true. With '--restart=Never' the exit code of the container process is returned.")
	flags.BoolVar(&o.leaveOpen, "leave-stdin-open", false, "If the pod is started in interactive mode or with stdin, leave stdin open after the first attach completes. By default, stdin will be closed after the first attach completes.")
	flags.StringVar(&o.restart, "restart", "Always", "The restart policy for this Pod.  Legal values [Always, OnFailure, Never].")
	flags.BoolVar(&o.asCommand, "command", false, "If true and extra arguments are present, use them as the 'command' field in the container, rather than the 'args' field which is the default.")
	flags.BoolVar(&o.expose, "expose", false, "If true, create a ClusterIP service associated with the pod.  Requires `--port`.")
	flags.BoolVarP(&o.quiet, "quiet", "q", false, "If true, suppress prompt messages.")
	flags.BoolVar(&o.privileged, "privileged", false, "If true, run the container in privileged mode.")
	flags.StringVar(&o.detach, "detach-keys", detachKeys, "Override the key sequence for detaching a container.")
	flags.IntVar(&o.grace, "grace-period", -1, "Period of time in seconds given to the pod to terminate gracefully, with --rm. Ignored if negative.")
	return cmd
}

func (o *runOptions) validate(args []string) error {
	switch o.restart {
	case "":
		o.restart = string(corev1.RestartPolicyAlways)
		if o.stdin {
			o.restart = string(corev1.RestartPolicyOnFailure)
		}
	case "Always", "OnFailure", "Never":
	default:
		return fmt.Errorf("invalid restart policy: %s, valid values are: Always, OnFailure, Never", o.restart)
	}
	switch corev1.PullPolicy(o.pullPolicy) {
	case "", corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever:
	default:
		return fmt.Errorf("invalid image pull policy: %s, valid values are: Always, IfNotPresent, Never", o.pullPolicy)
	}
	switch {
	case len(args) == 0 || o.dashAt == 0:
		return errors.New("NAME is required for run")
	case o.image == "":
		return errors.New("--image is required")
	case !imageReference().MatchString(o.image):
		return fmt.Errorf("invalid image name %q: invalid reference format", o.image)
	case o.tty && !o.stdin:
		return errors.New("-i/--stdin is required for containers with -t/--tty=true")
	case o.expose && o.port == "":
		return errors.New("--port must be set when exposing a service")
	case o.remove && !o.attach:
		return errors.New("--rm should only be used for attached containers")
	case o.attach && o.dryRun != cmdutil.DryRunNone:
		return errors.New("--dry-run=[server|client] can't be used with attached containers options (--attach, --stdin, or --tty)")
	}
	if _, err := strconv.Atoi(o.port); o.port != "" && err != nil {
		return errors.New("--port must be a number")
	}
	return nil
}

func (o *runOptions) run(ctx context.Context, name string, command []string) error {
	pod, err := o.pod(name, command)
	if err != nil {
		return err
	}
	made, err := o.NewOverrider(&corev1.Pod{}).Apply(pod)
	if err != nil {
		return err
	}
	if err := o.make(ctx, "pods", made); err != nil {
		return err
	}
	if o.expose {
		if err := o.make(ctx, "services", o.service(name, pod.Labels)); err != nil {
			return err
		}
	}
	if !o.attach {
		return nil
	}
	err = o.attachTo(ctx, name)
	if o.remove {
		if failed := o.removeAll(name); err == nil {
			return failed
		}
	}
	return err // it has the exit code
}

// make creates an object the way that create's generators do. It is told of where nobody looks on.
func (o *runOptions) make(ctx context.Context, resource string, obj runtime.Object) error {
	g := generateOptions{session: o.session, writing: o.writing, generator: generator{resource: coreResource(resource)}, annotate: o.saveConfig, silent: o.attach}
	return g.run(ctx, obj)
}

func (o *runOptions) pod(name string, command []string) (*corev1.Pod, error) {
	annotations, _, err := cmdutil.ParsePairs(o.annotations, "annotations", false)
	if err != nil {
		return nil, err
	}
	labels, err := o.parsedLabels()
	if err != nil {
		return nil, err
	}
	if len(labels) == 0 {
		labels = map[string]string{"run": name}
	}
	container := corev1.Container{
		Name: name, Image: o.image, ImagePullPolicy: corev1.PullPolicy(o.pullPolicy),
		Stdin: o.stdin, StdinOnce: o.stdin && !o.leaveOpen, TTY: o.tty, Args: command,
	}
	if o.asCommand {
		container.Command, container.Args = command, nil
	}
	for _, pair := range o.env {
		key, value, ok := strings.Cut(pair, "=")
		if !ok || key == "" {
			return nil, fmt.Errorf("invalid env: %v", pair)
		}
		container.Env = append(container.Env, corev1.EnvVar{Name: key, Value: value})
	}
	if o.port != "" {
		number, _ := strconv.Atoi(o.port) // validate has seen it
		container.Ports = []corev1.ContainerPort{{ContainerPort: int32(number)}}
	}
	if o.privileged {
		container.SecurityContext = &corev1.SecurityContext{Privileged: &o.privileged}
	}
	if len(annotations) == 0 {
		annotations = nil
	}
	return &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels, Annotations: annotations},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{container}, DNSPolicy: corev1.DNSClusterFirst, RestartPolicy: corev1.RestartPolicy(o.restart),
		},
	}, nil
}

func (o *runOptions) parsedLabels() (map[string]string, error) {
	labels := map[string]string{}
	if o.labels == "" {
		return labels, nil
	}
	for _, pair := range strings.Split(o.labels, ",") {
		key, value, ok := strings.Cut(pair, "=")
		switch {
		case !ok || strings.Contains(value, "="):
			return nil, fmt.Errorf("unexpected label spec: %s", pair)
		case key == "":
			return nil, errors.New("unexpected empty label key")
		}
		labels[key] = value
	}
	return labels, nil
}

func (o *runOptions) service(name string, selector map[string]string) *corev1.Service {
	number, _ := strconv.Atoi(o.port)
	labels, _ := o.parsedLabels()
	if len(labels) == 0 {
		labels = nil
	}
	return &corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec: corev1.ServiceSpec{Selector: selector, Ports: []corev1.ServicePort{{
			Port: int32(number), Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt(number),
		}}},
	}
}

// attachTo waits until the pod runs, joins it, and returns its exit code where it ends for good.
func (o *runOptions) attachTo(ctx context.Context, name string) error {
	pod, err := o.awaitPod(ctx, name, func(pod *corev1.Pod) bool {
		return pod.Status.Phase == corev1.PodRunning || isOver(pod)
	})
	if err != nil {
		return err
	}
	if err = o.join(ctx, pod); err != nil || o.leaveOpen || o.restart == string(corev1.RestartPolicyAlways) {
		return err
	}
	if pod, err = o.awaitPod(ctx, name, func(pod *corev1.Pod) bool {
		return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed && o.restart == string(corev1.RestartPolicyNever)
	}); err != nil {
		return err
	}
	return exitOf(pod)
}

// join shows what the pod has written so far and attaches to it. One that is over, or that cannot be attached to, has logs.
func (o *runOptions) join(ctx context.Context, pod *corev1.Pod) error {
	if isOver(pod) {
		return o.copyLogs(ctx, pod, corev1.PodLogOptions{})
	}
	var seen *metav1.Time
	before, cancel := context.WithTimeout(ctx, 5*time.Second)
	if err := o.copyLogs(before, pod, corev1.PodLogOptions{}); err != nil {
		fmt.Fprintf(o.ErrOut, "warning: couldn't fetch pre-attach logs: %v\n", err)
	} else {
		now := metav1.Now()
		seen = &now
	}
	cancel()
	attach := &attachOptions{detach: o.detach, streaming: streaming{session: o.session, stdin: o.stdin, tty: o.tty, quiet: o.quiet}}
	if err := attach.run(ctx, pod); err != nil {
		fmt.Fprintf(o.ErrOut, "warning: couldn't attach to pod/%s, falling back to streaming logs: %v\n", pod.Name, err)
		return o.copyLogs(ctx, pod, corev1.PodLogOptions{SinceTime: seen, Follow: true})
	}
	return nil
}

func isOver(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

func exitOf(pod *corev1.Pod) error {
	if pod.Status.Phase == corev1.PodSucceeded {
		return nil
	}
	states := pod.Status.ContainerStatuses
	if len(states) == 0 || states[0].State.Terminated == nil || states[0].State.Terminated.ExitCode == 0 {
		return fmt.Errorf("pod %s/%s failed with unknown exit code", pod.Namespace, pod.Name)
	}
	ended := states[0].State.Terminated
	return exec.CodeExitError{
		Err:  fmt.Errorf("pod %s/%s terminated (%s)\n%s", pod.Namespace, pod.Name, ended.Reason, ended.Message),
		Code: int(ended.ExitCode),
	}
}

func (o *runOptions) awaitPod(ctx context.Context, name string, reached func(*corev1.Pod) bool) (*corev1.Pod, error) {
	namespace, _, err := o.namespace()
	if err != nil {
		return nil, err
	}
	client, err := o.DynamicClient()
	if err != nil {
		return nil, err
	}
	ctx, cancel := withOptionalTimeout(ctx, o.timeout)
	defer cancel()
	pod := &corev1.Pod{}
	err = observe(ctx, client.Resource(coreResource("pods")).Namespace(namespace), name, func(obj *unstructured.Unstructured) (bool, error) {
		if obj == nil {
			return false, fmt.Errorf("pods %q not found", name)
		}
		*pod = corev1.Pod{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(obj.Object, pod); err != nil {
			return false, err
		}
		return reached(pod), nil
	})
	return pod, timedOut(err)
}

// copyLogs prints what the pod's first container wrote.
func (o *runOptions) copyLogs(ctx context.Context, pod *corev1.Pod, options corev1.PodLogOptions) error {
	client, err := o.KubernetesClientSet()
	if err != nil {
		return err
	}
	options.Container = pod.Spec.Containers[0].Name
	logs := &logsOptions{session: o.session}
	return logs.copy(ctx, client.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &options), o.verbatim.Out)
}

// removeAll is --rm. It happens also where the session ended in an error, and after the user gave up.
func (o *runOptions) removeAll(name string) error {
	deletion := &deleteOptions{session: o.session, ignoreNotFound: true, grace: o.grace, quiet: o.quiet, propagation: metav1.DeletePropagationBackground}
	names := []string{"pod/" + name}
	if o.expose {
		names = append(names, "service/"+name)
	}
	return deletion.run(context.Background(), names)
}
