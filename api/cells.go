package api

import (
	"time"

	"k8s.io/apimachinery/pkg/util/duration"
)

// Elapsed is a table cell that is computed when the table is written, such as an object's age at that time.
type Elapsed func(now time.Time) string

// Since returns a cell with the time elapsed since then, as kubectl prints ages.
func Since(then time.Time) Elapsed {
	return func(now time.Time) string { return duration.HumanDuration(now.Sub(then)) }
}

// CellsAt returns the cells of an object's row in a table written at time now: Cells with every Elapsed as text.
func (r *Resource) CellsAt(now time.Time, obj Object) []any {
	cells := r.Cells(obj)
	for i, cell := range cells {
		if elapsed, ok := cell.(Elapsed); ok {
			cells[i] = elapsed(now)
		}
	}
	return cells
}
