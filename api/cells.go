package api

import (
	"time"

	"k8s.io/apimachinery/pkg/util/duration"
)

// Elapsed is a cell that depends on when a table is made, such as an object's age.
type Elapsed func(now time.Time) string

// Since is the time from then on, as kubectl prints ages.
func Since(then time.Time) Elapsed {
	return func(now time.Time) string { return duration.HumanDuration(now.Sub(then)) }
}

// CellsAt is an object's row in a table that is made at a time: Cells with all text written out.
func (r *Resource) CellsAt(now time.Time, obj Object) []any {
	cells := r.Cells(obj)
	for i, cell := range cells {
		if elapsed, ok := cell.(Elapsed); ok {
			cells[i] = elapsed(now)
		}
	}
	return cells
}
