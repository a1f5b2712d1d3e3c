package audit

import (
	"io"
	"strings"
	"unicode/utf8"

	"github.com/coxswain-dev/coxswain/kubectl-lite/terminal"
)

const (
	// auditRows is the number of rows that are aligned together.
	auditRows = 500
	// widestColumn limits the width of a column. Longer cells are printed in full, out of line.
	widestColumn = 64
)

// auditTable prints the rows of a table that may have no end. Columns become wider with later rows, never narrower.
type auditTable struct {
	out     io.Writer
	columns []string
	rows    [][]string
	widths  []int
}

// add adds a row, and prints the pending rows if they are enough.
func (t *auditTable) add(cells []string) error {
	if t.widths == nil {
		t.widths = make([]int, len(t.columns))
		t.keep(t.columns)
	}
	t.keep(cells)
	if len(t.rows) < auditRows {
		return nil
	}
	return t.flush()
}

// keep makes the cells of a row visible and adds it to the pending rows.
func (t *auditTable) keep(cells []string) {
	row := make([]string, len(cells))
	for i, cell := range cells {
		row[i] = terminal.OneLine(cell)
		if width := utf8.RuneCountInString(row[i]); width <= widestColumn {
			t.widths[i] = max(t.widths[i], width)
		}
	}
	t.rows = append(t.rows, row)
}

// flush prints the pending rows.
func (t *auditTable) flush() error {
	var b strings.Builder
	for _, row := range t.rows {
		for i, cell := range row {
			b.WriteString(cell)
			if i < len(row)-1 {
				b.WriteString(strings.Repeat(" ", max(t.widths[i]-utf8.RuneCountInString(cell), 0)+2))
			}
		}
		b.WriteByte('\n')
	}
	t.rows = t.rows[:0]
	_, err := io.WriteString(t.out, b.String())
	return err
}
