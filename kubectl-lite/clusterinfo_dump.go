package kubectllite

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
	"k8s.io/kubectl/pkg/polymorphichelpers"
	"k8s.io/kubectl/pkg/scheme"
)

type dumpOptions struct {
	*session
	print         *genericclioptions.PrintFlags
	printer       printers.ResourcePrinter // one for all, for it separates documents
	folder        string
	namespaces    []string
	allNamespaces bool
	timeout       time.Duration
}

func newClusterInfoDump(s *session) *cobra.Command {
	o := &dumpOptions{session: s, print: genericclioptions.NewPrintFlags("").WithTypeSetter(scheme.Scheme).WithDefaultOutput("json")}
	cmd := &cobra.Command{
		Use: "dump", Short: "Dump relevant information for debugging and diagnosis",
		Long: `Prints nodes, events, services, workloads, pods and their logs, of the current namespace and kube-system unless told
otherwise; with --output-directory into files, which only you may read, for logs tell secrets.`,
		Example: `  kubectl-lite cluster-info dump -n shop
  kubectl-lite cluster-info dump -A --output-directory=state`,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if o.timeout, err = cmdutil.GetPodRunningTimeoutFlag(cmd); err != nil {
				return err
			}
			return o.run(contextOf(cmd))
		},
	}
	o.print.AddFlags(cmd)
	cmd.Flags().StringVar(&o.folder, "output-directory", "", "Where to output the files.  If empty or '-' uses stdout, otherwise creates a directory hierarchy in that directory")
	cmd.Flags().StringSliceVar(&o.namespaces, "namespaces", nil, "A comma separated list of namespaces to dump.")
	cmd.Flags().BoolVarP(&o.allNamespaces, "all-namespaces", "A", false, "If true, dump all namespaces.  If true, --namespaces is ignored.")
	cmdutil.AddPodRunningTimeoutFlag(cmd, 20*time.Second)
	return cmd
}

func (o *dumpOptions) run(ctx context.Context) error {
	client, err := o.KubernetesClientSet()
	if err != nil {
		return err
	}
	if o.printer, err = o.print.ToPrinter(); err != nil {
		return err
	}
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	if err := o.dump("nodes", nodes); err != nil {
		return err
	}
	namespaces, err := o.chosen(ctx, client)
	if err != nil {
		return err
	}
	for _, namespace := range namespaces {
		if err := o.dumpNamespace(ctx, client, namespace); err != nil {
			return err
		}
	}
	if o.toFiles() {
		fmt.Fprintf(o.Out, "Cluster info dumped to %s\n", o.folder)
	}
	return nil
}

func (o *dumpOptions) chosen(ctx context.Context, client kubernetes.Interface) ([]string, error) {
	if o.allNamespaces {
		list, err := client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, err
		}
		var names []string
		for i := range list.Items {
			names = append(names, list.Items[i].Name)
		}
		return names, nil
	}
	if len(o.namespaces) > 0 {
		return o.namespaces, nil
	}
	current, _, err := o.namespace()
	return []string{metav1.NamespaceSystem, current}, err
}

func (o *dumpOptions) dumpNamespace(ctx context.Context, client kubernetes.Interface, namespace string) error {
	core, apps, all := client.CoreV1(), client.AppsV1(), metav1.ListOptions{}
	for _, kind := range []struct {
		name string
		list func() (runtime.Object, error)
	}{
		{"events", func() (runtime.Object, error) { return core.Events(namespace).List(ctx, all) }},
		{"replication-controllers", func() (runtime.Object, error) { return core.ReplicationControllers(namespace).List(ctx, all) }},
		{"services", func() (runtime.Object, error) { return core.Services(namespace).List(ctx, all) }},
		{"daemonsets", func() (runtime.Object, error) { return apps.DaemonSets(namespace).List(ctx, all) }},
		{"deployments", func() (runtime.Object, error) { return apps.Deployments(namespace).List(ctx, all) }},
		{"replicasets", func() (runtime.Object, error) { return apps.ReplicaSets(namespace).List(ctx, all) }},
	} {
		found, err := kind.list()
		if err != nil {
			return err
		}
		if err := o.dump(filepath.Join(namespace, kind.name), found); err != nil {
			return err
		}
	}
	pods, err := core.Pods(namespace).List(ctx, all)
	if err != nil {
		return err
	}
	if err := o.dump(filepath.Join(namespace, "pods"), pods); err != nil {
		return err
	}
	for i := range pods.Items {
		if name := pods.Items[i].Name; len(rest.IsValidPathSegmentName(name)) > 0 && o.toFiles() {
			return fmt.Errorf("the server has a pod of the name %q, which cannot be the name of a folder", name)
		}
		err := o.write(filepath.Join(namespace, pods.Items[i].Name, "logs.txt"), func(w io.Writer) error {
			o.writeLogs(ctx, w, &pods.Items[i])
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (o *dumpOptions) toFiles() bool { return o.folder != "" && o.folder != "-" }

func (o *dumpOptions) dump(name string, obj runtime.Object) error {
	ending := ".txt"
	if format := *o.print.OutputFormat; format == "json" || format == "yaml" {
		ending = "." + format
	}
	return o.write(name+ending, func(w io.Writer) error { return o.printer.PrintObj(obj, w) })
}

func (o *dumpOptions) write(name string, content func(io.Writer) error) error {
	if !o.toFiles() {
		return content(o.verbatim.Out)
	}
	path := filepath.Join(o.folder, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	if err := content(file); err != nil {
		file.Close() //nolint:errcheck // the first error says more
		return err
	}
	return file.Close()
}

// writeLogs writes the logs of all containers of a pod, or why there is none.
func (o *dumpOptions) writeLogs(ctx context.Context, w io.Writer, pod *corev1.Pod) {
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		fmt.Fprintf(w, "==== START logs for container %s of pod %s/%s ====\n", oneLine(c.Name), oneLine(pod.Namespace), oneLine(pod.Name))
		requests, err := polymorphichelpers.LogsForObjectFn(o.Factory, pod, &corev1.PodLogOptions{Container: c.Name}, o.timeout, false)
		if err != nil {
			fmt.Fprintf(w, "Create log request error: %s\n", visible(err.Error()))
		}
		for _, request := range requests {
			if err := copyLog(ctx, w, request); err != nil {
				fmt.Fprintf(w, "Request log error: %s\n", visible(err.Error()))
				break
			}
		}
		fmt.Fprintf(w, "==== END logs for container %s of pod %s/%s ====\n", oneLine(c.Name), oneLine(pod.Namespace), oneLine(pod.Name))
	}
}

func copyLog(ctx context.Context, to io.Writer, log rest.ResponseWrapper) error {
	stream, err := log.Stream(ctx)
	if err != nil {
		return err
	}
	defer stream.Close() //nolint:errcheck // it was only read
	_, err = io.Copy(to, stream)
	return err
}
