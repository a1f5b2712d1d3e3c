package kubectllite

import (
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/resource"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
	"k8s.io/kubectl/pkg/scheme"

	"github.com/coxswain-dev/coxswain/kubectl-lite/session"
)

// writing has the flags of all verbs that change objects: --dry-run, --field-manager, --validate and -o.
type writing struct {
	print        *genericclioptions.PrintFlags
	fieldManager string

	dryRun     cmdutil.DryRunStrategy
	validation string
}

// addFlags declares the common flags. Verbs that send whole documents also declare --validate.
func (w *writing) addFlags(cmd *cobra.Command, fieldManager string) {
	w.addPrintFlags(cmd)
	cmdutil.AddDryRunFlag(cmd)
	cmdutil.AddFieldManagerFlagVar(cmd, &w.fieldManager, fieldManager)
}

// addPrintFlags declares -o alone, for verbs without --dry-run.
func (w *writing) addPrintFlags(cmd *cobra.Command) {
	w.addNamePrinter()
	w.print.AddFlags(cmd)
}

// addNamePrinter prepares show for a verb without -o.
func (w *writing) addNamePrinter() {
	w.print = genericclioptions.NewPrintFlags("").WithTypeSetter(scheme.Scheme)
}

// complete reads the parsed flags.
func (w *writing) complete(cmd *cobra.Command) (err error) {
	if w.dryRun, err = cmdutil.GetDryRunStrategy(cmd); err != nil {
		return err
	}
	if cmd.Flags().Lookup("validate") != nil {
		w.validation, err = cmdutil.GetValidationDirective(cmd)
	}
	return err
}

// onlyPretend reports whether no change may be sent to the server (--dry-run=client).
func (w *writing) onlyPretend() bool { return w.dryRun == cmdutil.DryRunClient }

// helper returns a client for the object's kind with the options of the flags.
func (w *writing) helper(info *resource.Info) *resource.Helper {
	return resource.NewHelper(info.Client, info.Mapping).
		DryRun(w.dryRun == cmdutil.DryRunServer).
		WithFieldManager(w.fieldManager).
		WithFieldValidation(w.validation)
}

// operation returns kubectl's words for a change: "created", "created (dry run)", "created (server dry run)".
func (w *writing) operation(done string) string {
	switch w.dryRun {
	case cmdutil.DryRunClient:
		return done + " (dry run)"
	case cmdutil.DryRunServer:
		return done + " (server dry run)"
	}
	return done
}

// show prints the object in the format of -o, or "kind.group/name done" without one.
func (w *writing) show(s *session.Session, obj runtime.Object, done string) error {
	w.print.NamePrintFlags.Operation = w.operation(done)
	printer, err := w.print.ToPrinter()
	if err != nil {
		return err
	}
	return printer.PrintObj(obj, s.OutFor(w.print))
}
