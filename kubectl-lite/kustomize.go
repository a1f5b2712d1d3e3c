package kubectllite

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

func newKustomize(s *session) *cobra.Command {
	var output, restrictor string
	cmd := &cobra.Command{
		Use: "kustomize DIR", Short: "Build a kustomization target from a directory or URL",
		Example: `  kubectl-lite kustomize overlays/production
  kubectl-lite kustomize . -o all.yaml`,
		DisableFlagsInUseLine: true,
		RunE: func(_ *cobra.Command, args []string) error {
			folder := "."
			switch len(args) {
			case 0:
			case 1:
				folder = args[0]
			default:
				return errors.New("specify one path to kustomization.yaml")
			}
			options := krusty.MakeDefaultOptions()
			options.Reorder = krusty.ReorderOptionUnspecified
			switch restrictor {
			case types.LoadRestrictionsNone.String():
				options.LoadRestrictions = types.LoadRestrictionsNone
			case types.LoadRestrictionsRootOnly.String():
			default:
				return fmt.Errorf("illegal flag value --load-restrictor %s; legal values: %v", restrictor,
					[]string{types.LoadRestrictionsRootOnly.String(), types.LoadRestrictionsNone.String()})
			}
			built, err := krusty.MakeKustomizer(options).Run(filesys.MakeFsOnDisk(), folder)
			if err != nil {
				return err
			}
			text, err := built.AsYaml()
			if err != nil {
				return err
			}
			if output != "" {
				return os.WriteFile(output, text, 0o644)
			}
			_, err = s.verbatim.Out.Write(text)
			return err
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "If specified, write output to this path.")
	cmd.Flags().StringVar(&restrictor, "load-restrictor", types.LoadRestrictionsRootOnly.String(), "if set to 'LoadRestrictionsNone', local kustomizations may load files from outside their root. This does, however, break the relocatability of the kustomization.")
	return cmd
}

func newOptions(s *session) *cobra.Command {
	return &cobra.Command{
		Use: "options", Short: "Print the list of flags inherited by all commands",
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(s.Out, "The following options can be passed to any command:\n\n%s", cmd.InheritedFlags().FlagUsages())
			return err
		},
	}
}
