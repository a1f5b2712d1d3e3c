package kubectllite

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/cli-runtime/pkg/resource"
	"k8s.io/kubectl/pkg/polymorphichelpers"
)

type setEnvOptions struct {
	setOptions
	pattern   string
	list      bool
	overwrite bool
}

func newSetEnv(s *session) *cobra.Command {
	o := &setEnvOptions{setOptions: setOptions{session: s, done: "env updated"}}
	cmd := &cobra.Command{
		Use: "env RESOURCE/NAME KEY_1=VAL_1 ... KEY_N=VAL_N", Short: "Update environment variables on a pod template",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.complete(cmd); err != nil {
				return err
			}
			return o.run(args)
		},
	}
	o.addFlags(cmd)
	cmd.Flags().StringVarP(&o.pattern, "containers", "c", "*", "The names of containers in the selected pod templates to change - may use wildcards")
	cmd.Flags().BoolVar(&o.list, "list", false, "If true, display the environment and any changes in the standard format. this flag will removed when we have kubectl view env.")
	cmd.Flags().BoolVar(&o.overwrite, "overwrite", true, "If true, allow environment to be overwritten, otherwise reject updates that overwrite existing environment.")
	return cmd
}

func (o *setEnvOptions) run(args []string) error {
	resources, changes := splitEnv(args)
	set, removed, err := parseEnv(changes)
	if err != nil {
		return err
	}
	if len(changes) == 0 && !o.list {
		return errors.New("at least one environment variable must be provided")
	}
	infos, err := o.find(resources)
	if err != nil {
		return err
	}
	if o.list {
		return o.print(infos)
	}
	return o.each(infos, func(spec *corev1.PodSpec) error {
		chosen := containers(spec, o.pattern, false)
		if len(chosen) == 0 {
			return fmt.Errorf("unable to find container named %s", o.pattern)
		}
		for _, c := range chosen {
			if err := o.update(c, set, removed); err != nil {
				return err
			}
		}
		return nil
	})
}

// splitEnv tells resources from variables: KEY=value and KEY- are variables.
func splitEnv(args []string) (resources, changes []string) {
	for _, arg := range args {
		if strings.Contains(arg, "=") || strings.HasSuffix(arg, "-") {
			changes = append(changes, arg)
			continue
		}
		resources = append(resources, arg)
	}
	return resources, changes
}

func parseEnv(changes []string) (set []corev1.EnvVar, removed []string, err error) {
	for _, change := range changes {
		if key, ok := strings.CutSuffix(change, "-"); ok && !strings.Contains(change, "=") {
			removed = append(removed, key)
			continue
		}
		key, value, _ := strings.Cut(change, "=")
		if faults := validation.IsEnvVarName(key); len(faults) > 0 {
			return nil, nil, fmt.Errorf("%q is not a valid key name: %s", key, strings.Join(faults, ";"))
		}
		set = append(set, corev1.EnvVar{Name: key, Value: value})
	}
	return set, removed, nil
}

func (o *setEnvOptions) update(c *corev1.Container, set []corev1.EnvVar, removed []string) error {
	at := func(name string) int {
		return slices.IndexFunc(c.Env, func(v corev1.EnvVar) bool { return v.Name == name })
	}
	for _, v := range set {
		switch i := at(v.Name); {
		case i < 0:
			c.Env = append(c.Env, v)
		case !o.overwrite:
			return fmt.Errorf("'%s' already has a value (%s), and --overwrite is false", v.Name, c.Env[i].Value)
		default:
			c.Env[i] = v
		}
	}
	c.Env = slices.DeleteFunc(c.Env, func(v corev1.EnvVar) bool { return slices.Contains(removed, v.Name) })
	return nil
}

func (o *setEnvOptions) print(infos []*resource.Info) error {
	for _, info := range infos {
		_, err := polymorphichelpers.UpdatePodSpecForObjectFn(info.Object, func(spec *corev1.PodSpec) error {
			for _, c := range containers(spec, o.pattern, false) {
				fmt.Fprintf(o.Out, "# %s %s, container %s\n", info.Mapping.GroupVersionKind.Kind, info.Name, c.Name)
				for _, v := range c.Env {
					if v.ValueFrom != nil {
						fmt.Fprintf(o.Out, "# %s is taken from elsewhere\n", v.Name)
						continue
					}
					fmt.Fprintf(o.Out, "%s=%s\n", v.Name, v.Value)
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
