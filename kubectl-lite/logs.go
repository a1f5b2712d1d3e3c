package kubectllite

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
	"k8s.io/kubectl/pkg/cmd/util/podcmd"
	"k8s.io/kubectl/pkg/polymorphichelpers"
	kubectlutil "k8s.io/kubectl/pkg/util"
	"k8s.io/kubectl/pkg/util/podutils"

	"github.com/coxswain-dev/coxswain/kubectl-lite/session"
	"github.com/coxswain-dev/coxswain/kubectl-lite/terminal"
)

type logsOptions struct {
	*session.Session
	options       corev1.PodLogOptions
	selector      string
	allContainers bool
	allPods       bool
	prefix        bool
	ignoreErrors  bool
	tail          int64
	since         time.Duration
	sinceTime     string
	limitBytes    int64
	maxStreams    int
	podTimeout    time.Duration
}

func newLogs(s *session.Session) *cobra.Command {
	o := &logsOptions{Session: s}
	cmd := &cobra.Command{
		Use:   "logs [-f] [-p] (POD | TYPE/NAME) [-c CONTAINER]",
		Short: "Print the logs for a container in a pod",
		Example: `  kubectl-lite logs web-0 -c nginx
  kubectl-lite logs -f deploy/web --all-containers
  kubectl-lite logs -l app=web --tail=20 --prefix`,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.complete(cmd, args); err != nil {
				return err
			}
			return o.run(cmd.Context(), args)
		},
	}
	flags := cmd.Flags()
	flags.BoolVarP(&o.options.Follow, "follow", "f", false, "Specify if the logs should be streamed.")
	flags.BoolVarP(&o.options.Previous, "previous", "p", false,
		"If true, print the logs for the previous instance of the container in a pod if it exists.")
	flags.BoolVar(&o.options.Timestamps, "timestamps", false, "Include timestamps on each line in the log output")
	flags.StringVarP(&o.options.Container, "container", "c", "", "Print the logs of this container")
	flags.BoolVar(&o.options.InsecureSkipTLSVerifyBackend, "insecure-skip-tls-verify-backend", false,
		"Skip verifying the identity of the kubelet that logs are requested from.")
	flags.BoolVar(&o.allContainers, "all-containers", false, "Get all containers' logs in the pod(s).")
	flags.BoolVar(&o.allPods, "all-pods", false, "Get logs from all pod(s). Sets prefix to true.")
	flags.BoolVar(&o.prefix, "prefix", false, "Prefix each log line with the log source (pod name and container name)")
	flags.BoolVar(&o.ignoreErrors, "ignore-errors", false,
		"If watching / following pod logs, allow for any errors that occur to be non-fatal")
	flags.Int64Var(&o.tail, "tail", -1, "Lines of recent log file to display. Defaults to -1 with no selector, "+
		"showing all log lines otherwise 10, if a selector is provided.")
	flags.DurationVar(&o.since, "since", 0, "Only return logs newer than a relative duration like 5s, 2m, or 3h. "+
		"Defaults to all logs. Only one of since-time / since may be used.")
	flags.StringVar(&o.sinceTime, "since-time", "", "Only return logs after a specific date (RFC3339). Defaults "+
		"to all logs. Only one of since-time / since may be used.")
	flags.Int64Var(&o.limitBytes, "limit-bytes", 0, "Maximum bytes of logs to return. Defaults to no limit.")
	flags.IntVar(&o.maxStreams, "max-log-requests", 5,
		"Specify maximum number of concurrent logs to follow when using by a selector. Defaults to 5.")
	cmdutil.AddPodRunningTimeoutFlag(cmd, 20*time.Second)
	cmdutil.AddLabelSelectorFlagVar(cmd, &o.selector)
	return cmd
}

func (o *logsOptions) complete(cmd *cobra.Command, args []string) (err error) {
	switch {
	case len(args) == 0 && o.selector == "", len(args) > 2:
		return session.UsageErrorf(cmd, "expected 'logs [-f] [-p] (POD | TYPE/NAME) [-c CONTAINER]'.\nPOD or "+
			"TYPE/NAME is a required argument for the logs command")
	case len(args) > 0 && o.selector != "":
		return session.UsageErrorf(cmd, "only a selector (-l) or a POD name is allowed")
	case len(args) == 2 && o.options.Container != "":
		return errors.New("only one of -c or an inline [CONTAINER] arg is allowed")
	case o.allContainers && o.options.Container != "":
		return fmt.Errorf("--all-containers=true should not be specified with container name %s", o.options.Container)
	case o.since != 0 && o.sinceTime != "":
		return errors.New("at most one of `sinceTime` or `sinceSeconds` may be specified")
	case o.since < 0:
		return errors.New("--since must be greater than 0")
	case o.limitBytes < 0:
		return errors.New("--limit-bytes must be greater than 0")
	case o.tail < -1:
		return errors.New("--tail must be greater than or equal to -1")
	}
	if len(args) == 2 {
		o.options.Container = args[1]
	}
	if o.podTimeout, err = cmdutil.GetPodRunningTimeoutFlag(cmd); err != nil {
		return err
	}
	return o.limit(cmd.Flags().Changed("tail"))
}

// limit sets the options for the part of the log that is read. For pods chosen by a label the default is ten lines.
func (o *logsOptions) limit(tailChosen bool) error {
	if o.sinceTime != "" {
		t, err := kubectlutil.ParseRFC3339(o.sinceTime, metav1.Now)
		if err != nil {
			return err
		}
		o.options.SinceTime = &t
	}
	if o.since != 0 {
		seconds := int64(o.since.Round(time.Second).Seconds())
		o.options.SinceSeconds = &seconds
	}
	if o.limitBytes != 0 {
		o.options.LimitBytes = &o.limitBytes
	}
	if o.selector != "" && !tailChosen {
		o.tail = 10
	}
	if o.tail != -1 {
		o.options.TailLines = &o.tail
	}
	return nil
}

func (o *logsOptions) run(ctx context.Context, args []string) error {
	obj, err := o.source(args)
	if err != nil {
		return err
	}
	o.prefix = o.prefix || o.allPods
	requests, err := o.requests(obj)
	if err != nil {
		return err
	}
	sources := make([]corev1.ObjectReference, 0, len(requests))
	for source := range requests {
		sources = append(sources, source)
	}
	slices.SortFunc(sources, func(a, b corev1.ObjectReference) int {
		return strings.Compare(a.Name+a.FieldPath, b.Name+b.FieldPath)
	})
	if !o.options.Follow || len(requests) == 1 {
		for _, source := range sources {
			if err := o.copy(ctx, requests[source], o.prefixed(source, o.Verbatim.Out)); err != nil {
				return err
			}
		}
		return nil
	}
	if len(requests) > o.maxStreams {
		return fmt.Errorf("you are attempting to follow %d log streams, but maximum allowed concurrency is %d, "+
			"use --max-log-requests to increase the limit", len(requests), o.maxStreams)
	}
	return o.copyAll(ctx, sources, requests)
}

// requests returns one request per log. kubectl's library can choose containers and pods too, but it reports its choice
// on the process's error stream, with unfiltered names.
func (o *logsOptions) requests(obj runtime.Object) (map[corev1.ObjectReference]rest.ResponseWrapper, error) {
	pods, err := o.podsOf(obj)
	if err != nil {
		return nil, err
	}
	all := map[corev1.ObjectReference]rest.ResponseWrapper{}
	for _, pod := range pods {
		options := o.options
		if !o.allContainers && options.Container == "" {
			container, err := podcmd.FindOrDefaultContainerByName(pod, "", o.allPods, o.ErrOut)
			if err != nil {
				return nil, err
			}
			options.Container = container.Name
		}
		found, err := polymorphichelpers.LogsForObjectFn(o.Factory, pod, &options, o.podTimeout, o.allContainers)
		if err != nil {
			return nil, err
		}
		maps.Copy(all, found)
	}
	return all, nil
}

// podsOf returns the pods of obj. Of a workload's pods it is the first one in kubectl's order for logs, or all with
// --all-pods.
func (o *logsOptions) podsOf(obj runtime.Object) ([]*corev1.Pod, error) {
	switch found := obj.(type) {
	case *corev1.Pod:
		return []*corev1.Pod{found}, nil
	case *corev1.PodList:
		return pointers(found.Items), nil
	}
	namespace, selector, err := polymorphichelpers.SelectorsForObject(obj)
	if err != nil {
		return nil, fmt.Errorf("cannot get the logs from %T: %v", obj, err)
	}
	client, err := o.KubernetesClientSet()
	if err != nil {
		return nil, err
	}
	likeliest := func(pods []*corev1.Pod) sort.Interface { return podutils.ByLogging(pods) }
	pod, n, err := polymorphichelpers.GetFirstPod(client.CoreV1(), namespace, selector.String(),
		o.podTimeout, likeliest)
	switch {
	case err != nil:
		return nil, err
	case n > 1 && o.allPods:
		list, err := polymorphichelpers.GetPodList(client.CoreV1(), namespace, selector.String(),
			o.podTimeout, likeliest)
		if err != nil {
			return nil, err
		}
		return pointers(list.Items), nil
	case n > 1:
		fmt.Fprintf(o.ErrOut, "Found %v pods, using pod/%v\n", n, pod.Name)
	}
	return []*corev1.Pod{pod}, nil
}

func pointers(pods []corev1.Pod) []*corev1.Pod {
	all := make([]*corev1.Pod, len(pods))
	for i := range pods {
		all[i] = &pods[i]
	}
	return all
}

// source reads the object of the arguments: a pod, a workload, or all pods that a label selects.
func (o *logsOptions) source(args []string) (runtime.Object, error) {
	namespace, _, err := o.Namespace()
	if err != nil {
		return nil, err
	}
	b := o.Typed().NamespaceParam(namespace).DefaultNamespace().SingleResourceType()
	if o.selector != "" {
		b = b.ResourceTypes("pods").LabelSelectorParam(o.selector)
	} else {
		b = b.ResourceNames("pods", args[0])
	}
	infos, err := b.Do().Infos()
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("error from server (NotFound): %w in namespace %q", err, namespace)
	}
	if err != nil {
		return nil, err
	}
	if list, ok := infos[0].Object.(*corev1.PodList); ok && len(list.Items) == 0 {
		sayNothingFound(o.Session, namespace, true)
	}
	return infos[0].Object, nil
}

// copyAll follows several logs at once, line by line, so that lines of different pods do not mix. An error ends all.
func (o *logsOptions) copyAll(ctx context.Context, sources []corev1.ObjectReference,
	requests map[corev1.ObjectReference]rest.ResponseWrapper) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	out := &lineWriter{out: o.Verbatim.Out}
	failures := make(chan error, len(sources))
	var running sync.WaitGroup
	for _, source := range sources {
		running.Go(func() {
			err := o.copy(ctx, requests[source], o.prefixed(source, out))
			failures <- err
			if err != nil {
				cancel()
			}
		})
	}
	running.Wait()
	close(failures)
	for err := range failures {
		if err != nil && !errors.Is(err, context.Canceled) {
			return err
		}
	}
	return nil
}

// copy copies one log to out.
func (o *logsOptions) copy(ctx context.Context, request rest.ResponseWrapper, out io.Writer) error {
	stream, err := request.Stream(ctx)
	if err == nil {
		defer stream.Close() //nolint:errcheck // it was only read
		err = copyLines(out, stream)
	}
	if err != nil && o.ignoreErrors {
		fmt.Fprintf(o.ErrOut, "error: %v\n", err)
		return nil
	}
	return err
}

// longestLine limits the lines of several logs that are kept whole. A longer line is written in pieces. Runtimes split
// lines at 16 KiB.
const longestLine = 1 << 20

// copyLines writes each line as soon as it is complete, so that a followed log is never delayed.
func copyLines(out io.Writer, in io.Reader) error {
	lines := bufio.NewReaderSize(in, longestLine)
	for {
		line, err := lines.ReadSlice('\n')
		if len(line) > 0 {
			if _, err := out.Write(line); err != nil {
				return err
			}
		}
		switch {
		case err == io.EOF:
			return nil
		case err != nil && !errors.Is(err, bufio.ErrBufferFull):
			return err
		}
	}
}

// prefixed returns a writer that puts the pod and container before each line with --prefix, or out itself.
func (o *logsOptions) prefixed(source corev1.ObjectReference, out io.Writer) io.Writer {
	if !o.prefix || source.FieldPath == "" || source.Name == "" {
		return out
	}
	_, container, _ := strings.Cut(source.FieldPath, "{")
	return &lineWriter{out: out,
		prefix: terminal.OneLine(fmt.Sprintf("[pod/%s/%s] ", source.Name, strings.TrimSuffix(container, "}")))}
}

// lineWriter writes the text of each call in one piece, after the prefix if a line begins with it. It may be used by
// several goroutines.
type lineWriter struct {
	mu     sync.Mutex
	out    io.Writer
	prefix string
	within bool // the last line has not ended
}

func (w *lineWriter) Write(line []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	text := line
	if w.prefix != "" && !w.within {
		text = append([]byte(w.prefix), line...)
	}
	w.within = len(line) > 0 && line[len(line)-1] != '\n'
	if _, err := w.out.Write(text); err != nil {
		return 0, err
	}
	return len(line), nil
}
