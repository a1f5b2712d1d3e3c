package kubectllite

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/cli-runtime/pkg/resource"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
	"k8s.io/kubectl/pkg/polymorphichelpers"
	"k8s.io/kubectl/pkg/scheme"

	"github.com/coxswain-dev/coxswain/bounds"
)

func newSet(s *session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "set SUBCOMMAND", Short: "Set specific features on objects",
		Example: `  kubectl-lite set image deployment/web nginx=nginx:1.29
  kubectl-lite set env deployment/web MODE=fast DEBUG-
  kubectl-lite set resources deployment/web --limits=cpu=200m,memory=512Mi`,

		RunE: s.needsSubcommand,
	}
	cmd.AddCommand(newSetImage(s), newSetEnv(s), newSetResources(s), newSetSelector(s), newSetSubject(s), newSetServiceAccount(s))
	return cmd
}

// setOptions is what the verbs have in common that change a pod or the pod template in a workload.
type setOptions struct {
	*session
	writing
	files    resource.FilenameOptions
	selector string
	all      bool
	local    bool
	done     string
	// showUnchanged prints also what was as it should be.
	showUnchanged bool
	// nameInErrors says which object could not be changed.
	nameInErrors bool
}

func (o *setOptions) addFlags(cmd *cobra.Command) {
	o.writing.addFlags(cmd, "kubectl-set")
	cmd.DisableFlagsInUseLine = true
	cmd.Flags().BoolVar(&o.all, "all", false, "Select all resources in the namespace of the specified resource types")
	cmd.Flags().BoolVar(&o.local, "local", false, "If true, the verb will NOT contact api-server but run locally.")
	cmdutil.AddFilenameOptionFlags(cmd, &o.files, "identifying the resource to get from a server.")
	cmdutil.AddLabelSelectorFlagVar(cmd, &o.selector)
}

// find reads the objects to change.
func (o *setOptions) find(resources []string) ([]*resource.Info, error) {
	namespace, explicit, err := o.namespace()
	if err != nil {
		return nil, err
	}
	b := o.withFiles(o.typed().LocalParam(o.local).ContinueOnError().
		NamespaceParam(namespace).DefaultNamespace(), explicit, &o.files).Flatten()
	if !o.local {
		b = b.LabelSelectorParam(o.selector).ResourceTypeOrNameArgs(o.all, resources...).Latest()
	}
	return b.Do().Infos()
}

// each changes the pod spec of every object and sends the difference. An object that mutate leaves as it was is passed over.
func (o *setOptions) each(infos []*resource.Info, mutate func(*corev1.PodSpec) error) error {
	var errs []error
	for _, info := range infos {
		err := o.one(info, mutate)
		if o.nameInErrors {
			err = withName(info, err)
		}
		errs = append(errs, err)
	}
	return utilerrors.NewAggregate(errs)
}

// withName begins an error with the object that it is about.
func withName(info *resource.Info, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %w", info.ObjectName(), err)
}

func (o *setOptions) one(info *resource.Info, mutate func(*corev1.PodSpec) error) error {
	patch, err := patchFor(info.Object, func(obj runtime.Object) ([]byte, error) {
		supported, err := polymorphichelpers.UpdatePodSpecForObjectFn(obj, mutate)
		if !supported && err == nil {
			err = fmt.Errorf("%s has no pod template", info.ObjectName())
		}
		if err != nil {
			return nil, err
		}
		return runtime.Encode(scheme.DefaultJSONEncoder(), obj)
	})
	if err != nil {
		return err
	}
	if patch == nil && !o.showUnchanged {
		return nil
	}
	if o.local || o.onlyPretend() {
		return o.show(o.session, info.Object, o.done)
	}
	if patch == nil {
		patch = []byte("{}")
	}
	obj, err := o.helper(info).Patch(info.Namespace, info.Name, types.StrategicMergePatchType, patch, nil)
	if err != nil {
		return fmt.Errorf("failed to patch %s update to pod template: %v", strings.TrimSuffix(o.done, " updated"), err)
	}
	return o.show(o.session, obj, o.done)
}

// containers are the containers of a pod whose name matches the pattern, in which * stands for anything.
func containers(spec *corev1.PodSpec, pattern string, withInit bool) []*corev1.Container {
	var found []*corev1.Container
	lists := [][]corev1.Container{spec.Containers}
	if withInit {
		lists = [][]corev1.Container{spec.InitContainers, spec.Containers}
	}
	for _, list := range lists {
		for i := range list {
			if matchesPattern(pattern, list[i].Name) {
				found = append(found, &list[i])
			}
		}
	}
	return found
}

func matchesPattern(pattern, name string) bool {
	head, tail, wild := strings.Cut(pattern, "*")
	if !wild {
		return pattern == name
	}
	rest, ok := strings.CutPrefix(name, head)
	if !ok {
		return false
	}
	for i := range len(rest) + 1 {
		if matchesPattern(tail, rest[i:]) {
			return true
		}
	}
	return false
}

func newSetImage(s *session) *cobra.Command {
	o := &setOptions{session: s, done: "image updated"}
	cmd := &cobra.Command{
		Use: "image (-f FILENAME | TYPE NAME) CONTAINER_NAME_1=CONTAINER_IMAGE_1 ... CONTAINER_NAME_N=CONTAINER_IMAGE_N", Short: "Update the image of a pod template",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.complete(cmd); err != nil {
				return err
			}
			resources, pairs, err := cmdutil.GetResourcesAndPairs(args, "image")
			if err != nil {
				return err
			}
			infos, err := o.find(resources)
			if err != nil {
				return err
			}
			images, err := parseImages(pairs)
			if err != nil {
				return err
			}
			return o.each(infos, func(spec *corev1.PodSpec) error { return setImages(spec, images) })
		},
	}
	o.addFlags(cmd)
	return cmd
}

func parseImages(pairs []string) (map[string]string, error) {
	images, _, err := cmdutil.ParsePairs(pairs, "image", false)
	switch {
	case err != nil:
		return nil, err
	case len(images) == 0:
		return nil, errors.New("at least one image update is required")
	case len(images) > 1 && images["*"] != "":
		return nil, errors.New("all containers are already specified by *, but saw more than one container_name=container_image pairs")
	}
	return images, nil
}

func setImages(spec *corev1.PodSpec, images map[string]string) error {
	for _, name := range slices.Sorted(maps.Keys(images)) {
		chosen := containers(spec, name, true)
		if len(chosen) == 0 && name != "*" {
			return fmt.Errorf("unable to find container named %q", name)
		}
		for _, c := range chosen {
			c.Image = images[name]
		}
	}
	return nil
}

func newSetResources(s *session) *cobra.Command {
	o := &setOptions{session: s, done: "resource requirements updated"}
	var limits, requests, pattern string
	cmd := &cobra.Command{
		Use: "resources (-f FILENAME | TYPE NAME)  ([--limits=LIMITS & --requests=REQUESTS]", Short: "Update resource requests/limits on objects with pod templates",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.complete(cmd); err != nil {
				return err
			}
			infos, err := o.find(args)
			if err != nil {
				return err
			}
			if limits == "" && requests == "" {
				return errors.New("you must specify an update to requests or limits (in the form of --requests/--limits)")
			}
			most, err := parseQuantities(limits)
			if err != nil {
				return err
			}
			least, err := parseQuantities(requests)
			if err != nil {
				return err
			}
			return o.each(infos, func(spec *corev1.PodSpec) error { return setResources(spec, pattern, most, least) })
		},
	}
	o.addFlags(cmd)
	cmd.Flags().StringVar(&limits, "limits", "", "The resource requirement requests for this container.  For example, 'cpu=100m,memory=256Mi'.  Note that server side components may assign requests depending on the server configuration, such as limit ranges.")
	cmd.Flags().StringVar(&requests, "requests", "", "The resource requirement requests for this container.  For example, 'cpu=100m,memory=256Mi'.  Note that server side components may assign requests depending on the server configuration, such as limit ranges.")
	cmd.Flags().StringVarP(&pattern, "containers", "c", "*", "The names of containers in the selected pod templates to change, all containers are selected by default - may use wildcards")
	return cmd
}

func parseQuantities(text string) (corev1.ResourceList, error) {
	list := corev1.ResourceList{}
	if text == "" {
		return list, nil
	}
	for _, pair := range strings.Split(text, ",") {
		name, amount, ok := strings.Cut(pair, "=")
		if !ok {
			return nil, fmt.Errorf("invalid argument syntax %v, expected <resource>=<value>", pair)
		}
		quantity, err := bounds.ParseQuantity(amount)
		if err != nil {
			return nil, err
		}
		list[corev1.ResourceName(name)] = quantity
	}
	return list, nil
}

func setResources(spec *corev1.PodSpec, pattern string, limits, requests corev1.ResourceList) error {
	chosen := containers(spec, pattern, false)
	if len(chosen) == 0 {
		return fmt.Errorf("unable to find container named %s", pattern)
	}
	for _, c := range chosen {
		if len(limits) > 0 {
			if c.Resources.Limits == nil {
				c.Resources.Limits = corev1.ResourceList{}
			}
			maps.Copy(c.Resources.Limits, limits)
		}
		if len(requests) > 0 {
			if c.Resources.Requests == nil {
				c.Resources.Requests = corev1.ResourceList{}
			}
			maps.Copy(c.Resources.Requests, requests)
		}
	}
	return nil
}

func newSetServiceAccount(s *session) *cobra.Command {
	o := &setOptions{session: s, done: "serviceaccount updated", showUnchanged: true}
	cmd := &cobra.Command{
		Use: "serviceaccount (-f FILENAME | TYPE NAME) SERVICE_ACCOUNT", Aliases: []string{"sa"}, Short: "Update the service account of a resource",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.complete(cmd); err != nil {
				return err
			}
			if len(args) == 0 {
				return errors.New("serviceaccount is required")
			}
			last := len(args) - 1
			infos, err := o.find(args[:last])
			if err != nil {
				return err
			}
			return o.each(infos, func(spec *corev1.PodSpec) error {
				spec.ServiceAccountName, spec.DeprecatedServiceAccount = args[last], args[last]
				return nil
			})
		},
	}
	o.addFlags(cmd)
	return cmd
}
