package kubectllite

import (
	"strings"

	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/cli-runtime/pkg/resource"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
)

// canStream reports whether a list can be printed page by page: it has one kind and the server's order.
func (o *getOptions) canStream(args []string) bool {
	if len(args) != 1 || strings.ContainsAny(args[0], ",/") || o.format.sortBy != "" || !o.format.human() ||
		!o.serverPrint {
		return false
	}
	if !cmdutil.IsFilenameSliceEmpty(o.files.Filenames, o.files.Kustomize) {
		return false
	}
	_, err := o.MappingFor(args[0]) // a category has no mapping
	return err == nil
}

// streamTable prints each page as it arrives. A column is as wide as its widest cell so far, so that a page only lines
// up with the pages before it.
func (o *getOptions) streamTable(namespace string, found *resource.Result) error {
	o.ForgetPages()
	out := &paragraphs{out: o.Out}
	tabs := printers.GetNewTabWriter(out)
	inNamespace := !o.allNamespaces
	var printer printers.ResourcePrinter
	err := found.Visit(func(info *resource.Info, err error) error {
		if err != nil {
			return err
		}
		if printer == nil {
			inNamespace = inNamespace && info.Namespaced()
			printer = o.format.table(info.Mapping, o.allNamespaces && info.Namespaced(), false)
		}
		if err := printer.PrintObj(info.Object, tabs); err != nil {
			return err
		}
		return tabs.Flush()
	})
	if err == nil && out.written == 0 && !o.ignoreNotFound {
		sayNothingFound(o.Session, namespace, inNamespace)
	}
	return err
}
