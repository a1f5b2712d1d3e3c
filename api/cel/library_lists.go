package cel

import (
	"fmt"

	celgo "github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
)

// The list library: isSorted, sum, min, max, indexOf, lastIndexOf, and for stored expressions includes.

type elementType struct {
	name string
	typ  *celgo.Type
	// zero is the sum of an empty list, or nil if lists of the type have no sum.
	zero ref.Val
}

var elementTypes = []elementType{
	{"int", celgo.IntType, types.Int(0)},
	{"uint", celgo.UintType, types.Uint(0)},
	{"double", celgo.DoubleType, types.Double(0)},
	{"duration", celgo.DurationType, types.Duration{}},
	{"bool", celgo.BoolType, nil},
	{"timestamp", celgo.TimestampType, nil},
	{"string", celgo.StringType, nil},
	{"bytes", celgo.BytesType, nil},
}

var listLibrary = library{name: "kubernetes.lists", functions: listFunctions()}

var includesLibrary = library{name: "kubernetes.lists.includes", storedOnly: true,
	functions: map[string][]celgo.FunctionOpt{
		"includes": {member("list_includes_dyn_dyn", args(celgo.DynType, celgo.DynType), celgo.BoolType,
			celgo.BinaryBinding(includes))},
	}}

func listFunctions() map[string][]celgo.FunctionOpt {
	f := map[string][]celgo.FunctionOpt{}
	for _, e := range elementTypes {
		list := args(celgo.ListType(e.typ))
		f["isSorted"] = append(f["isSorted"], member(fmt.Sprintf("list_%s_is_sorted_bool", e.name), list,
			celgo.BoolType, celgo.UnaryBinding(isSorted)))
		f["min"] = append(f["min"], member(fmt.Sprintf("list_%s_min_%[1]s", e.name), list, e.typ,
			celgo.UnaryBinding(extreme("min", types.IntOne))))
		f["max"] = append(f["max"], member(fmt.Sprintf("list_%s_max_%[1]s", e.name), list, e.typ,
			celgo.UnaryBinding(extreme("max", types.IntNegOne))))
		if e.zero != nil {
			f["sum"] = append(f["sum"], member(fmt.Sprintf("list_%s_sum_%[1]s", e.name), list, e.typ,
				celgo.UnaryBinding(sum(e.zero))))
		}
	}
	a := celgo.TypeParamType("A")
	f["indexOf"] = []celgo.FunctionOpt{member("list_a_index_of_int", args(celgo.ListType(a), a), celgo.IntType,
		celgo.BinaryBinding(func(list, item ref.Val) ref.Val { return index(list, item, false) }))}
	f["lastIndexOf"] = []celgo.FunctionOpt{member("list_a_last_index_of_int", args(celgo.ListType(a), a), celgo.IntType,
		celgo.BinaryBinding(func(list, item ref.Val) ref.Val { return index(list, item, true) }))}
	return f
}

// each calls f with each element until f returns a value.
func each(list ref.Val, f func(ref.Val) ref.Val) ref.Val {
	elements, ok := list.(traits.Iterable)
	if !ok {
		return types.MaybeNoSuchOverloadErr(list)
	}
	for it := elements.Iterator(); it.HasNext() == types.True; {
		if found := f(it.Next()); found != nil {
			return found
		}
	}
	return nil
}

func isSorted(list ref.Val) ref.Val {
	var before traits.Comparer
	found := each(list, func(next ref.Val) ref.Val {
		comparer, ok := next.(traits.Comparer)
		if !ok {
			return types.MaybeNoSuchOverloadErr(next)
		}
		if before != nil && before.Compare(next) == types.IntOne {
			return types.False
		}
		before = comparer
		return nil
	})
	if found != nil {
		return found
	}
	return types.True
}

func sum(zero ref.Val) func(ref.Val) ref.Val {
	return func(list ref.Val) ref.Val {
		total := zero
		found := each(list, func(next ref.Val) ref.Val {
			adder, ok := total.(traits.Adder)
			if !ok {
				return types.MaybeNoSuchOverloadErr(total)
			}
			if total = adder.Add(next); types.IsUnknownOrError(total) {
				return total
			}
			return nil
		})
		if found != nil {
			return found
		}
		return total
	}
}

// extreme returns min or max. It replaces the best element so far if comparing that to the next one yields away.
func extreme(name string, away ref.Val) func(ref.Val) ref.Val {
	return func(list ref.Val) ref.Val {
		var best ref.Val
		found := each(list, func(next ref.Val) ref.Val {
			if _, ok := next.(traits.Comparer); !ok {
				return types.MaybeNoSuchOverloadErr(next)
			}
			if best == nil || best.(traits.Comparer).Compare(next) == away {
				best = next
			}
			return nil
		})
		switch {
		case found != nil:
			return found
		case best == nil:
			return types.NewErr("%s called on empty list", name)
		}
		return best
	}
}

func index(list, item ref.Val, last bool) ref.Val {
	lister, ok := list.(traits.Lister)
	if !ok {
		return types.MaybeNoSuchOverloadErr(list)
	}
	position, n := types.Int(-1), lister.Size().(types.Int)
	for i := types.Int(0); i < n && (last || position < 0); i++ {
		if lister.Get(i).Equal(item) == types.True {
			position = i
		}
	}
	return position
}

func includes(target, item ref.Val) ref.Val {
	if _, ok := target.(traits.Lister); !ok {
		return types.Bool(target.Equal(item) == types.True)
	}
	found := each(target, func(next ref.Val) ref.Val {
		if next.Equal(item) == types.True {
			return types.True
		}
		return nil
	})
	return types.Bool(found == types.True)
}
