package kubectllite

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/resource"
	"k8s.io/client-go/scale"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"

	"github.com/coxswain-dev/coxswain/bounds"
)

type autoscaleOptions struct {
	generateOptions
	files       resource.FilenameOptions
	name        string
	least, most int32
	percent     int32
	cpu, memory string
}

func newAutoscale(s *session) *cobra.Command {
	o := &autoscaleOptions{generateOptions: generateOptions{session: s, done: "autoscaled", generator: generator{
		resource: autoscalingv2.SchemeGroupVersion.WithResource("horizontalpodautoscalers"),
	}}}
	cmd := &cobra.Command{
		Use:   "autoscale (-f FILENAME | TYPE NAME | TYPE/NAME) [--min=MINPODS] --max=MAXPODS [--cpu=CPU] [--memory=MEMORY]",
		Short: "Auto-scale a deployment, replica set, stateful set, or replication controller",
		Example: `  kubectl-lite autoscale deployment web --min=2 --max=10 --cpu=70%
  kubectl-lite autoscale statefulset db --max=5 --memory=500Mi`,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.complete(cmd); err != nil {
				return err
			}
			if o.onlyPretend() {
				o.done = "created"
			}
			return o.autoscale(contextOf(cmd), args)
		},
	}
	o.addFlags(cmd, "kubectl-autoscale")
	cmdutil.AddApplyAnnotationVarFlags(cmd, &o.annotate)
	cmdutil.AddFilenameOptionFlags(cmd, &o.files, "identifying the resource to autoscale.")
	flags := cmd.Flags()
	flags.Int32Var(&o.least, "min", -1, "The lower limit for the number of pods that can be set by the autoscaler. If it's not specified or negative, the server will apply a default value.")
	flags.Int32Var(&o.most, "max", -1, "The upper limit for the number of pods that can be set by the autoscaler. Required.")
	cmd.MarkFlagRequired("max") //nolint:errcheck // the flag is declared in the line above
	flags.Int32Var(&o.percent, "cpu-percent", -1, "The target average CPU utilization (represented as a percent of requested CPU) over all the pods. If it's not specified or negative, a default autoscaling policy will be used.")
	flags.MarkDeprecated("cpu-percent", "Use --cpu with percentage or resource quantity format (e.g., '70%' for utilization or '500m' for milliCPU).") //nolint:errcheck // the flag is declared in the line above
	flags.StringVar(&o.cpu, "cpu", "", `Target CPU utilization over all the pods: a percentage of what is requested ("70%") or an average ("500m"). A number alone is in thousandths of a CPU.`)
	flags.StringVar(&o.memory, "memory", "", `Target memory utilization over all the pods: a percentage of what is requested ("60%") or an average ("200Mi"). A number alone is in mebibytes.`)
	flags.StringVar(&o.name, "name", "", "The name for the newly created object. If not specified, the name of the input resource will be used.")
	return cmd
}

func (o *autoscaleOptions) autoscale(ctx context.Context, args []string) error {
	metrics, err := o.metrics()
	switch {
	case o.most < 1:
		return fmt.Errorf("--max=MAXPODS is required and must be at least 1, max: %d", o.most)
	case o.most < o.least:
		return fmt.Errorf("--max=MAXPODS must be larger or equal to --min=MINPODS, max: %d, min: %d", o.most, o.least)
	case o.percent > 0 && o.cpu != "":
		return errors.New("--cpu-percent and --cpu are mutually exclusive")
	case err != nil:
		return err
	}
	namespace, explicit, err := o.namespace()
	if err != nil {
		return err
	}
	discovery, err := o.ToDiscoveryClient()
	if err != nil {
		return err
	}
	scalable := scale.NewDiscoveryScaleKindResolver(discovery)
	count := 0
	err = o.withFiles(o.NewBuilder().Unstructured().ContinueOnError().NamespaceParam(namespace).DefaultNamespace(), explicit, &o.files).
		ResourceTypeOrNameArgs(false, args...).Flatten().Do().
		Visit(func(info *resource.Info, err error) error {
			if err != nil {
				return err
			}
			kind := info.Mapping.GroupVersionKind
			if _, err := scalable.ScaleForResource(info.Mapping.Resource); err != nil {
				return fmt.Errorf("cannot autoscale a %s: %w", kind.Kind, err)
			}
			count++
			scaler := &autoscalingv2.HorizontalPodAutoscaler{
				TypeMeta:   metav1.TypeMeta{APIVersion: autoscalingv2.SchemeGroupVersion.String(), Kind: "HorizontalPodAutoscaler"},
				ObjectMeta: metav1.ObjectMeta{Name: cmp.Or(o.name, info.Name)},
				Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
					ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: kind.GroupVersion().String(), Kind: kind.Kind, Name: info.Name},
					MaxReplicas:    o.most, Metrics: metrics,
				},
			}
			if o.least > 0 {
				scaler.Spec.MinReplicas = &o.least
			}
			return o.run(ctx, scaler)
		})
	if err == nil && count == 0 {
		return errors.New("no objects passed to autoscale")
	}
	return err
}

func (o *autoscaleOptions) metrics() ([]autoscalingv2.MetricSpec, error) {
	var all []autoscalingv2.MetricSpec
	add := func(name corev1.ResourceName, text string) error {
		if text == "" {
			return nil
		}
		target, err := scaleTarget(name, text)
		all = append(all, autoscalingv2.MetricSpec{
			Type:     autoscalingv2.ResourceMetricSourceType,
			Resource: &autoscalingv2.ResourceMetricSource{Name: name, Target: target},
		})
		return err
	}
	if o.percent > 0 {
		o.cpu, o.percent = cmp.Or(o.cpu, fmt.Sprintf("%d%%", o.percent)), 0
	}
	return all, errors.Join(add(corev1.ResourceCPU, o.cpu), add(corev1.ResourceMemory, o.memory))
}

// scaleTarget reads "70%", "500m" or a number, which counts in the unit that is usual for the resource.
func scaleTarget(name corev1.ResourceName, text string) (autoscalingv2.MetricTarget, error) {
	if share, ok := strings.CutSuffix(text, "%"); ok {
		percent, err := strconv.ParseInt(share, 10, 32)
		if err != nil {
			return autoscalingv2.MetricTarget{}, fmt.Errorf("failed to convert percentage value: %w", err)
		}
		utilization := int32(percent)
		return autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType, AverageUtilization: &utilization}, nil
	}
	if _, err := strconv.Atoi(text); err == nil {
		text += map[corev1.ResourceName]string{corev1.ResourceCPU: "m", corev1.ResourceMemory: "Mi"}[name]
	}
	average, err := bounds.ParseQuantity(text)
	if err != nil {
		return autoscalingv2.MetricTarget{}, fmt.Errorf("invalid resource %s value: %s", name, text)
	}
	return autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: &average}, nil
}
