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

// tablePrinter prints tables of a server. A server may answer with objects instead; they get columns for name and age.
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

// decodeTable returns obj as a table, or nil if it is another object.
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
	// maxColumns limits the columns of a server's table. Real ones have a dozen.
	maxColumns = 1000
	// widestCell limits the characters of a cell: the printer pads all other rows of the column to the same width.
	widestCell = 16 << 10
)

// tame limits the size of a server's table, and replaces characters that would begin another column.
func tame(table *metav1.Table) {
	if len(table.ColumnDefinitions) > maxColumns {
		// The printer ignores the further cells of each row.
		table.ColumnDefinitions = table.ColumnDefinitions[:maxColumns]
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

// cellText returns text without characters that begin another column, cut to widestCell. The printer handles newlines.
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

// table returns a printer of tables for one kind.
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

// paragraphs separates paragraphs by an empty line. next begins a paragraph; the empty line is written with its first
// text, and not before the first paragraph.
type paragraphs struct {
	out     io.Writer
	written int
	pending bool // an empty line is due
}

func (p *paragraphs) next() { p.pending = p.written > 0 }

func (p *paragraphs) Write(b []byte) (int, error) {
	if p.pending && len(b) > 0 {
		p.pending = false
		if _, err := p.out.Write([]byte("\n")); err != nil {
			return 0, err
		}
	}
	n, err := p.out.Write(b)
	p.written += n
	return n, err
}
