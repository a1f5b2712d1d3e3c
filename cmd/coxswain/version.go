package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/coxswain-dev/coxswain/apiserver"
)

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version: of Kubernetes' API, and of this program",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "coxswain %s (%s %s/%s)\n", apiserver.Version, runtime.Version(),
				runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}

// newHelp returns a help command like cobra's, except that an unknown command is an error.
func newHelp() *cobra.Command {
	return &cobra.Command{
		Use:   "help [command]",
		Short: "Help about any command",
		RunE: func(cmd *cobra.Command, args []string) error {
			target, rest, err := cmd.Root().Find(args)
			if err != nil {
				return err
			}
			if len(rest) > 0 {
				return fmt.Errorf("unknown command %q for %q; --help lists them", rest[0], target.CommandPath())
			}
			target.InitDefaultHelpFlag() // cobra adds it only when it runs the command
			return target.Help()
		},
	}
}
