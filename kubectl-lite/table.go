package kubectllite

import (
	"fmt"
	"io"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/printers"
)

// tablePrinter prints tables that a server made. An object that is no table gets the name and age that any object has:
// servers may decline to make one.
type tablePrinter struct {
	columns printers.ResourcePrinter
}

func (p *tablePrinter) PrintObj(obj runtime.Object, w io.Writer) error {
	if event, ok := obj.(*metav1.WatchEvent); ok {
		table, err := decodeTable(event.Object.Object)
		if err != nil {
			return err
		}
		if table != nil {
			event.Object.Object = table
		}
		return p.columns.PrintObj(event, w)
	}
	table, err := decodeTable(obj)
	if err != nil {
		return err
	}
	if table == nil {
		return p.columns.PrintObj(obj, w)
	}
	return p.columns.PrintObj(table, w)
}

// decodeTable is the table that obj is, or nil where it is something else.
func decodeTable(obj runtime.Object) (*metav1.Table, error) {
	raw, ok := obj.(*unstructured.Unstructured)
	if !ok || !isTable(raw) {
		return nil, nil
	}
	table := &metav1.Table{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(raw.Object, table); err != nil {
		return nil, fmt.Errorf("read the server's table: %w", err)
	}
	tame(table)
	for i := range table.Rows {
		row := &table.Rows[i].Object
		if row.Raw == nil || row.Object != nil {
			continue
		}
		decoded, err := runtime.Decode(unstructured.UnstructuredJSONScheme, row.Raw)
		if err != nil {
			return nil, fmt.Errorf("read row %d of the server's table: %w", i, err)
		}
		row.Object = decoded
	}
	return table, nil
}

const (
	// mostColumns is how many columns of a server's table are shown. Real ones have a dozen.
	mostColumns = 1000
	// widestCell is how many characters of a cell are shown: every other row of the column is filled up with
	// spaces to its width.
	widestCell = 16 << 10
)

// tame bounds a table that the server made, and keeps its cells within their columns.
func tame(table *metav1.Table) {
	if len(table.ColumnDefinitions) > mostColumns {
		table.ColumnDefinitions = table.ColumnDefinitions[:mostColumns] // and so the cells of every row
	}
	for i := range table.ColumnDefinitions {
		table.ColumnDefinitions[i].Name = cellText(table.ColumnDefinitions[i].Name)
	}
	for _, row := range table.Rows {
		for i, cell := range row.Cells {
			if text, ok := cell.(string); ok {
				row.Cells[i] = cellText(text)
			}
		}
	}
}

// cellText is text that does not begin another column of a table, and is no wider than a cell may be. Where
// it has several lines, that is the printer's matter.
func cellText(text string) string {
	text = betweenColumns.Replace(text)
	if len(text) <= widestCell {
		return text
	}
	runes := 0
	for i := range text {
		if runes == widestCell {
			return text[:i] + "…"
		}
		runes++
	}
	return text
}

var betweenColumns = strings.NewReplacer("\t", " ", "\v", " ")

func isTable(obj *unstructured.Unstructured) bool {
	kind := obj.GroupVersionKind()
	return kind.Kind == "Table" && kind.Group == metav1.GroupName && (kind.Version == "v1" || kind.Version == "v1beta1")
}

// table prints objects of one kind in columns.
func (f *readFormat) table(mapping *meta.RESTMapping, withNamespace, withKind bool) printers.ResourcePrinter {
	options := printers.PrintOptions{
		NoHeaders:     f.noHeaders,
		WithNamespace: withNamespace,
		WithKind:      withKind || f.showKind,
		Wide:          f.output() == "wide",
		ShowLabels:    f.showLabels,
		ColumnLabels:  f.labelColumns,
		SortBy:        f.sortBy,
	}
	if mapping != nil {
		options.Kind = mapping.GroupVersionKind.GroupKind()
	}
	return &tablePrinter{columns: printers.NewTablePrinter(options)}
}

// paragraphs writes an empty line before what comes after next, if something came before and something does come.
type paragraphs struct {
	to      io.Writer
	written int
	pending bool
}

func (p *paragraphs) next() { p.pending = p.written > 0 }

func (p *paragraphs) Write(b []byte) (int, error) {
	if p.pending && len(b) > 0 {
		p.pending = false
		if _, err := p.to.Write([]byte("\n")); err != nil {
			return 0, err
		}
	}
	n, err := p.to.Write(b)
	p.written += n
	return n, err
}
