package kubectllite

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/tools/clientcmd/api/latest"
)

func newConfig(s *session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "config SUBCOMMAND", Short: "Modify kubeconfig files",
		Example: `  kubectl-lite config get-contexts
  kubectl-lite config use-context staging
  kubectl-lite config set-context --current --namespace=shop`,
		RunE: s.needsSubcommand,
	}
	cmd.AddCommand(newConfigView(s), newCurrentContext(s), newUseContext(s), newGetContexts(s), newSetContext(s), newRenameContext(s),
		newSetProperty(s), newUnsetProperty(s), newSetCluster(s), newSetCredentials(s),
		newListNames(s, "get-clusters", "Display clusters defined in the kubeconfig", func(c *clientcmdapi.Config) []string { return slices.Sorted(maps.Keys(c.Clusters)) }),
		newListNames(s, "get-users", "Display users defined in the kubeconfig", func(c *clientcmdapi.Config) []string { return slices.Sorted(maps.Keys(c.AuthInfos)) }),
		newForget(s, "delete-context", "context", func(c *clientcmdapi.Config, name string) bool {
			_, there := c.Contexts[name]
			delete(c.Contexts, name)
			return there
		}),
		newForget(s, "delete-cluster", "cluster", func(c *clientcmdapi.Config, name string) bool {
			_, there := c.Clusters[name]
			delete(c.Clusters, name)
			return there
		}),
		newForget(s, "delete-user", "user", func(c *clientcmdapi.Config, name string) bool {
			_, there := c.AuthInfos[name]
			delete(c.AuthInfos, name)
			return there
		}))
	return cmd
}

// kubeconfig is where the kubeconfig is read from and written to: --kubeconfig, $KUBECONFIG, or the file at home.
func (s *session) kubeconfig() clientcmd.ConfigAccess {
	return s.ToRawKubeConfigLoader().ConfigAccess()
}

func newConfigView(s *session) *cobra.Command {
	var raw, flatten, minify bool
	print := genericclioptions.NewPrintFlags("").WithTypeSetter(clientcmdScheme()).WithDefaultOutput("yaml")
	cmd := &cobra.Command{
		Use: "view", Short: "Display merged kubeconfig settings or a specified kubeconfig file", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			config, err := s.kubeconfig().GetStartingConfig()
			if err != nil {
				return err
			}
			if *s.flags.Context != "" {
				config.CurrentContext = *s.flags.Context
			}
			if minify {
				if err := clientcmdapi.MinifyConfig(config); err != nil {
					return err
				}
			}
			if flatten {
				if err := clientcmdapi.FlattenConfig(config); err != nil {
					return err
				}
			} else if !raw {
				if err := clientcmdapi.RedactSecrets(config); err != nil {
					return err
				}
				clientcmdapi.ShortenConfig(config)
			}
			versioned, err := latest.Scheme.ConvertToVersion(config, latest.ExternalVersion)
			if err != nil {
				return err
			}
			printer, err := print.ToPrinter()
			if err != nil {
				return err
			}
			return printer.PrintObj(versioned, s.outFor(print))
		},
	}
	print.AddFlags(cmd)
	cmd.Flags().BoolVar(&raw, "raw", false, "Display raw byte data and sensitive data")
	cmd.Flags().BoolVar(&flatten, "flatten", false, "Flatten the resulting kubeconfig file into self-contained output (useful for creating portable kubeconfig files)")
	cmd.Flags().BoolVar(&minify, "minify", false, "Remove all information not used by current-context from the output")
	return cmd
}

func clientcmdScheme() *runtime.Scheme { return latest.Scheme }

func newCurrentContext(s *session) *cobra.Command {
	return &cobra.Command{
		Use: "current-context", Short: "Display the current-context", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			config, err := s.kubeconfig().GetStartingConfig()
			if err != nil {
				return err
			}
			if config.CurrentContext == "" {
				return errors.New("current-context is not set")
			}
			fmt.Fprintln(s.Out, config.CurrentContext)
			return nil
		},
	}
}

func newUseContext(s *session) *cobra.Command {
	return &cobra.Command{
		Use: "use-context CONTEXT_NAME", Short: "Set the current-context in a kubeconfig file", Aliases: []string{"use"},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return helpErrorf(cmd, "Unexpected args: %v", args)
			}
			config, err := s.kubeconfig().GetStartingConfig()
			if err != nil {
				return err
			}
			if _, there := config.Contexts[args[0]]; !there {
				return fmt.Errorf("no context exists with the name: %q", args[0])
			}
			config.CurrentContext = args[0]
			if err := clientcmd.ModifyConfig(s.kubeconfig(), *config, true); err != nil {
				return err
			}
			fmt.Fprintf(s.Out, "Switched to context %q.\n", args[0])
			return nil
		},
	}
}

func newGetContexts(s *session) *cobra.Command {
	var output string
	var noHeaders bool
	cmd := &cobra.Command{
		Use: "get-contexts [(-o|--output=)name)]", Short: "Describe one or many contexts",
		RunE: func(_ *cobra.Command, args []string) error {
			if output != "" && output != "name" {
				return fmt.Errorf("output must be one of '' or 'name': %v", output)
			}
			config, err := s.kubeconfig().GetStartingConfig()
			if err != nil {
				return err
			}
			names := args
			if len(names) == 0 {
				names = slices.Sorted(maps.Keys(config.Contexts))
			}
			w := printers.GetNewTabWriter(s.Out)
			if output == "" && !noHeaders {
				fmt.Fprintln(w, "CURRENT\tNAME\tCLUSTER\tAUTHINFO\tNAMESPACE")
			}
			errs := newErrorSet(nil)
			for _, name := range names {
				c, there := config.Contexts[name]
				switch {
				case !there:
					errs.add(fmt.Errorf("context %v not found", name))
				case output == "name":
					fmt.Fprintln(w, name)
				default:
					current := ""
					if name == config.CurrentContext {
						current = "*"
					}
					fmt.Fprintln(w, strings.Join([]string{current, name, c.Cluster, c.AuthInfo, c.Namespace}, "\t"))
				}
			}
			errs.add(w.Flush())
			return errs.err()
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "Output format. One of: (name).")
	cmd.Flags().BoolVar(&noHeaders, "no-headers", false, "When using the default or custom-column output format, don't print headers (default print headers).")
	return cmd
}

func newSetContext(s *session) *cobra.Command {
	var current bool
	cmd := &cobra.Command{
		Use: "set-context [NAME | --current] [--cluster=cluster_nickname] [--user=user_nickname] [--namespace=namespace]", Short: "Set a context entry in kubeconfig",
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			config, err := s.kubeconfig().GetStartingConfig()
			if err != nil {
				return err
			}
			name := config.CurrentContext
			switch {
			case current && len(args) > 0:
				return errors.New("you cannot specify both a context name and --current")
			case !current && len(args) != 1:
				return errors.New("you must specify a non-empty context name or --current")
			case !current:
				name = args[0]
			case name == "":
				return errors.New("no current context is set")
			}
			done := "modified"
			c := config.Contexts[name]
			if c == nil {
				c, done = clientcmdapi.NewContext(), "created"
			}
			for flag, field := range map[string]*string{"cluster": &c.Cluster, "user": &c.AuthInfo, "namespace": &c.Namespace} {
				if f := cmd.Flag(flag); f != nil && f.Changed {
					*field = f.Value.String()
				}
			}
			config.Contexts[name] = c
			if err := clientcmd.ModifyConfig(s.kubeconfig(), *config, true); err != nil {
				return err
			}
			fmt.Fprintf(s.Out, "Context %q %s.\n", name, done)
			return nil
		},
	}
	cmd.Flags().BoolVar(&current, "current", false, "Modify the current context")
	return cmd
}

func newListNames(s *session, verb, short string, names func(*clientcmdapi.Config) []string) *cobra.Command {
	return &cobra.Command{
		Use: verb, Short: short, Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			config, err := s.kubeconfig().GetStartingConfig()
			if err != nil {
				return err
			}
			fmt.Fprintln(s.Out, "NAME")
			for _, name := range names(config) {
				fmt.Fprintln(s.Out, name)
			}
			return nil
		},
	}
}

func newForget(s *session, verb, noun string, remove func(*clientcmdapi.Config, string) bool) *cobra.Command {
	return &cobra.Command{
		Use: verb + " NAME", Short: "Delete the specified " + noun + " from the kubeconfig",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return helpErrorf(cmd, "Unexpected args: %v", args)
			}
			config, err := s.kubeconfig().GetStartingConfig()
			if err != nil {
				return err
			}
			file := s.kubeconfig().GetDefaultFilename()
			if !remove(config, args[0]) {
				return fmt.Errorf("cannot delete %s %s, not in %s", noun, args[0], file)
			}
			if noun == "context" && config.CurrentContext == args[0] {
				fmt.Fprintf(s.ErrOut, "warning: this removed your active context, use \"%s config use-context\" to select a different one\n", Name)
			}
			if err := clientcmd.ModifyConfig(s.kubeconfig(), *config, true); err != nil {
				return err
			}
			fmt.Fprintf(s.Out, "deleted %s %s from %s\n", noun, args[0], file)
			return nil
		},
	}
}
