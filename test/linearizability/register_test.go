//go:build e2e

package linearizability

import (
	"cmp"
	"slices"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"
)

// register is the model of one key. Its state is its value, "" if it does not exist. An operation with unknown outcome
// takes effect at some time after its call, if possible; if it takes effect after all other operations, it has no
// effect.
var register = porcupine.Model{
	Init:  func() any { return "" },
	Equal: func(a, b any) bool { return a == b },
	Step: func(state, input, _ any) (bool, any) {
		now, o := state.(string), input.(operation)
		can := o.kind == create && now == "" || o.kind == update && now == o.expected ||
			(o.kind == replace || o.kind == remove) && now != ""
		switch o.outcome {
		case missing:
			return now == "", now
		case exists:
			return o.kind == create && now != "", now
		case conflict:
			return o.kind == update && now != o.expected, now
		case unknown:
			if can {
				return true, o.value // "" of a deletion
			}
			return true, now
		case done:
			if o.kind == get {
				return now == o.value, now
			}
			return can, o.value
		}
		return false, now
	},
	DescribeOperation: func(input, _ any) string { return input.(operation).String() },
}

// checkRegisters searches an order of each key's operations that explains all answers.
func checkRegisters(t *testing.T, operations []operation, truth *history) {
	t.Helper()
	byKey := map[string][]porcupine.Operation{}
	for _, o := range operations {
		if o.kind == get && o.outcome != done && o.outcome != missing {
			continue
		}
		// Values that etcd never stored were not written; leaving them out shortens the search.
		if o.outcome == unknown && o.kind != remove && !truth.has(o.key, o.value) {
			continue
		}
		byKey[o.key] = append(byKey[o.key], porcupine.Operation{Input: o, Call: o.call, Return: o.end})
	}
	for key, operations := range byKey {
		result := porcupine.CheckOperationsTimeout(register, operations, patience)
		if result == porcupine.Ok {
			continue
		}
		slices.SortFunc(operations, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
		for _, o := range operations {
			t.Logf("%12s-%12s %s", time.Duration(o.Call), time.Duration(o.Return), o.Input)
		}
		require.Equal(t, porcupine.Ok, result, "no order explains the answers to clients of %s", key)
	}
}

// checkRevisions checks that an acknowledged revision is larger than all revisions that were acknowledged before its
// request was sent, for any keys.
func checkRevisions(t *testing.T, operations []operation) {
	t.Helper()
	type point struct {
		at, revision int64
		begins       bool
	}
	var points []point
	for _, o := range operations {
		if o.outcome == done && o.kind != get && o.kind != remove {
			points = append(points, point{o.call, o.revision, true}, point{o.end, o.revision, false})
		}
	}
	slices.SortFunc(points, func(a, b point) int { return cmp.Compare(a.at, b.at) })
	newest := int64(0)
	for _, p := range points {
		if p.begins {
			require.Greater(t, p.revision, newest, "a later write has an older revision")
		} else {
			newest = max(newest, p.revision)
		}
	}
}
