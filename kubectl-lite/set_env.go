package kubectllite

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/cli-runtime/pkg/resource"
	"k8s.io/kubectl/pkg/cmd/set/env"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
	"k8s.io/kubectl/pkg/polymorphichelpers"
)

type setEnvOptions struct {
	setOptions
	pattern   string
	from      string
	prefix    string
	keys      []string
	variables []string
	list      bool
	resolve   bool
	overwrite bool
}

func newSetEnv(s *session) *cobra.Command {
	o := &setEnvOptions{setOptions: setOptions{session: s, done: "env updated"}}
	cmd := &cobra.Command{
		Use: "env RESOURCE/NAME KEY_1=VAL_1 ... KEY_N=VAL_N", Short: "Update environment variables on a pod template",
		Example: `  kubectl-lite set env deployment/web MODE=fast DEBUG-
  kubectl-lite set env deployment/web --from=configmap/settings --prefix=APP_
  kubectl-lite set env deployment/web --list --resolve`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.complete(cmd); err != nil {
				return err
			}
			return o.run(args)
		},
	}
	o.addFlags(cmd)
	flags := cmd.Flags()
	flags.StringVarP(&o.pattern, "containers", "c", "*", "The names of containers in the selected pod templates to change - may use wildcards")
	flags.StringVar(&o.from, "from", "", "The name of a resource from which to inject environment variables")
	flags.StringVar(&o.prefix, "prefix", "", "Prefix to append to variable names")
	flags.StringSliceVar(&o.keys, "keys", nil, "Comma-separated list of keys to import from specified resource")
	flags.StringArrayVarP(&o.variables, "env", "e", nil, "Specify a key-value pair for an environment variable to set into each container.")
	flags.BoolVar(&o.list, "list", false, "If true, display the environment and any changes in the standard format. this flag will removed when we have kubectl view env.")
	flags.BoolVar(&o.resolve, "resolve", false, "If true, show secret or configmap references when listing variables")
	flags.BoolVar(&o.overwrite, "overwrite", true, "If true, allow environment to be overwritten, otherwise reject updates that overwrite existing environment.")
	return cmd
}

func (o *setEnvOptions) run(args []string) error {
	resources, changes, ok := env.SplitEnvironmentFromResources(args)
	switch {
	case o.all && o.selector != "":
		return errors.New("cannot set --all and --selector at the same time")
	case !ok:
		return fmt.Errorf("all resources must be specified before environment changes: %s", strings.Join(args, " "))
	case len(resources) == 0 && cmdutil.IsFilenameSliceEmpty(o.files.Filenames, o.files.Kustomize):
		return errors.New("one or more resources must be specified as <resource> <name> or <resource>/<name>")
	case o.list && *o.print.OutputFormat != "":
		return errors.New("--list and --output may not be specified together")
	case len(o.keys) > 0 && o.from == "":
		return errors.New("when specifying --keys, a configmap or secret must be provided with --from")
	}
	set, removed, _, err := env.ParseEnv(slices.Concat(o.variables, changes), o.In)
	if err != nil {
		return err
	}
	if o.from != "" {
		more, err := o.imported()
		if err != nil {
			return err
		}
		set = append(set, more...)
	}
	for i := range set {
		set[i].Name = o.prefix + set[i].Name
	}
	if len(set)+len(removed) == 0 && !o.list {
		return errors.New("at least one environment variable must be provided")
	}
	infos, err := o.find(resources)
	if err != nil {
		return err
	}
	if o.list {
		return o.printAll(infos, set, removed)
	}
	errs := newErrorSet(nil)
	for _, info := range infos {
		errs.add(withName(info, o.one(info, func(spec *corev1.PodSpec) error {
			chosen := o.chosen(spec)
			if len(chosen) == 0 {
				o.warn(fmt.Sprintf("%s/%s does not have any containers matching %q", info.Mapping.GroupVersionKind.Kind, info.Name, o.pattern))
			}
			for _, c := range chosen {
				if err := o.update(c, set, removed); err != nil {
					return err
				}
			}
			return nil
		})))
	}
	return errs.err()
}

// chosen are the containers whose variables are meant, those that start first last.
func (o *setEnvOptions) chosen(spec *corev1.PodSpec) []*corev1.Container {
	return append(containers(spec, o.pattern, false), containers(&corev1.PodSpec{Containers: spec.InitContainers}, o.pattern, false)...)
}

// notInNames is what keys may have in them and variables that a shell knows may not.
var notInNames = regexp.MustCompile("[^a-zA-Z0-9_]")

// imported are variables that refer to the keys of a ConfigMap or Secret, by name.
func (o *setEnvOptions) imported() ([]corev1.EnvVar, error) {
	infos, err := (&setOptions{session: o.session}).find([]string{o.from})
	if err != nil {
		return nil, err
	}
	var all []corev1.EnvVar
	add := func(key string, source corev1.EnvVarSource) {
		if len(o.keys) > 0 && !slices.Contains(o.keys, key) {
			return
		}
		name := strings.ToUpper(notInNames.ReplaceAllString(key, "_"))
		if name != key {
			o.warn(fmt.Sprintf("key %s transferred to %s", key, name))
		}
		all = append(all, corev1.EnvVar{Name: name, ValueFrom: &source})
	}
	for _, info := range infos {
		object := corev1.LocalObjectReference{Name: info.Name}
		switch from := info.Object.(type) {
		case *corev1.ConfigMap:
			for _, key := range slices.Sorted(maps.Keys(from.Data)) {
				add(key, corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: object, Key: key}})
			}
		case *corev1.Secret:
			for _, key := range slices.Sorted(maps.Keys(from.Data)) {
				add(key, corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: object, Key: key}})
			}
		default:
			return nil, errors.New("unsupported resource specified in --from")
		}
	}
	return all, nil
}

func (o *setEnvOptions) update(c *corev1.Container, set []corev1.EnvVar, removed []string) error {
	at := func(name string) int {
		return slices.IndexFunc(c.Env, func(v corev1.EnvVar) bool { return v.Name == name })
	}
	for _, v := range set {
		switch i := at(v.Name); {
		case i < 0:
			c.Env = append(c.Env, v)
		case !o.overwrite && c.Env[i].Value != v.Value:
			return fmt.Errorf("'%s' already has a value (%s), and --overwrite is false", v.Name, c.Env[i].Value)
		default:
			c.Env[i] = v
		}
	}
	c.Env = slices.DeleteFunc(c.Env, func(v corev1.EnvVar) bool { return slices.Contains(removed, v.Name) })
	return nil
}

// printAll is --list: the variables as they are, or would be with the changes.
func (o *setEnvOptions) printAll(infos []*resource.Info, set []corev1.EnvVar, removed []string) error {
	for _, info := range infos {
		_, err := polymorphichelpers.UpdatePodSpecForObjectFn(info.Object, func(spec *corev1.PodSpec) error {
			for _, c := range o.chosen(spec) {
				if err := o.update(c, set, removed); err != nil {
					return err
				}
				fmt.Fprintf(o.Out, "# %s %s, container %s\n", info.Mapping.GroupVersionKind.Kind, info.Name, c.Name)
				o.printContainer(info, c)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// printContainer prints the variables of one container, with --resolve those too whose values are elsewhere.
func (o *setEnvOptions) printContainer(info *resource.Info, c *corev1.Container) {
	store, unresolved := env.NewResourceStore(), map[string][]string{}
	for _, v := range c.Env {
		if v.ValueFrom == nil {
			fmt.Fprintf(o.Out, "%s=%s\n", v.Name, v.Value)
			continue
		}
		if o.resolve {
			value, err := o.valueOf(store, info, v, c)
			if err == nil {
				fmt.Fprintf(o.Out, "%s=%s\n", v.Name, value)
				continue
			}
			unresolved[err.Error()] = append(unresolved[err.Error()], v.Name)
		}
		fmt.Fprintf(o.Out, "# %s from %s\n", v.Name, env.GetEnvVarRefString(v.ValueFrom))
	}
	for _, why := range slices.Sorted(maps.Keys(unresolved)) {
		fmt.Fprintf(o.ErrOut, "error retrieving reference for %s: %v\n", strings.Join(slices.Sorted(slices.Values(unresolved[why])), ", "), why)
	}
}

func (o *setEnvOptions) valueOf(store *env.ResourceStore, info *resource.Info, v corev1.EnvVar, c *corev1.Container) (string, error) {
	client, err := o.KubernetesClientSet()
	if err != nil {
		return "", err
	}
	accessor, err := meta.Accessor(info.Object)
	if err != nil {
		return "", err
	}
	return env.GetEnvVarRefValue(client, accessor.GetNamespace(), store, v.ValueFrom, info.Object, c)
}
