package kubectllite

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/printers"
)

// readFormat is the output format of get: -o and the flags for tables.
type readFormat struct {
	print        *genericclioptions.PrintFlags
	noHeaders    bool
	showLabels   bool
	showKind     bool
	labelColumns []string
	sortBy       string
}

func (f *readFormat) addFlags(cmd *cobra.Command) {
	f.print = genericclioptions.NewPrintFlags("")
	f.print.JSONYamlPrintFlags.AddFlags(cmd)
	f.print.TemplatePrinterFlags.AddFlags(cmd)
	flags := cmd.Flags()
	flags.StringVarP(f.print.OutputFormat, "output", "o", "",
		fmt.Sprintf("Output format. One of: (%s).", strings.Join(f.allowed(), ", ")))
	flags.BoolVar(&f.noHeaders, "no-headers", false,
		"When using the default or custom-column output format, don't print headers (default print headers).")
	flags.BoolVar(&f.showLabels, "show-labels", false,
		"When printing, show all labels as the last column (default hide labels column)")
	flags.BoolVar(&f.showKind, "show-kind", false, "If present, list the resource type for the requested object(s).")
	flags.StringSliceVarP(&f.labelColumns, "label-columns", "L", nil, "Accepts a comma separated list of labels "+
		"that are going to be presented as columns. Names are case-sensitive. You can also use multiple flag "+
		"options like -L label1 -L label2...")
	flags.StringVar(&f.sortBy, "sort-by", "", "If non-empty, sort list types using this field specification.  The "+
		"field specification is expressed as a JSONPath expression (e.g. '{.metadata.name}'). The field in the "+
		"API resource specified by this JSONPath expression must be an integer or a string.")
}

// output returns the value of -o.
func (f *readFormat) output() string { return *f.print.OutputFormat }

// human reports whether the output is a table for people.
func (f *readFormat) human() bool {
	template := *f.print.TemplatePrinterFlags.TemplateArgument
	return f.output() == "" && template == "" || f.output() == "wide"
}

func (f *readFormat) allowed() []string {
	all := append(f.print.AllowedFormats(), "wide", "custom-columns", "custom-columns-file")
	slices.Sort(all)
	return all
}

func (f *readFormat) validate() error {
	switch out := f.output(); {
	case f.showLabels && !f.human():
		return fmt.Errorf("--show-labels option cannot be used with %s printer", out)
	case len(f.labelColumns) > 0 && strings.HasPrefix(out, "custom-columns"):
		return fmt.Errorf("--label-columns option cannot be used with %s printer", out)
	}
	if f.human() {
		return nil
	}
	_, err := f.objects()
	return err
}

// objects returns a printer of whole objects in a format for programs, or in custom columns.
func (f *readFormat) objects() (printers.ResourcePrinter, error) {
	format, argument, _ := strings.Cut(f.output(), "=")
	if format == "custom-columns" || format == "custom-columns-file" {
		if argument == "" {
			argument = *f.print.TemplatePrinterFlags.TemplateArgument
		}
		return newColumnPrinter(format, argument, f.noHeaders)
	}
	printer, err := f.print.ToPrinter()
	if genericclioptions.IsNoCompatiblePrinterError(err) {
		return nil, genericclioptions.NoCompatiblePrinterError{OutputFormat: f.print.OutputFormat,
			AllowedFormats: f.allowed()}
	}
	return printer, err
}
