package cel

import (
	"math"

	"github.com/google/cel-go/common"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
)

// costs counts the cost of calls to Kubernetes' functions as kube-apiserver does. Other functions have the language's
// own costs.
type costs struct{}

// The cost of a permission check allows an expression two of them.
const checkCost = 350_000

// read returns the cost of reading the first argument once, times factor.
func read(args []ref.Val, factor float64) uint64 {
	if len(args) == 0 {
		return 0
	}
	return reading(sizeOf(args[0]), factor)
}

func reading(size uint64, factor float64) uint64 {
	return uint64(math.Ceil(float64(size) * factor * common.StringTraversalCostFactor))
}

// CallCost implements interpreter.ActualCostEstimator.
func (costs) CallCost(function, overload string, args []ref.Val, result ref.Val) *uint64 {
	cost, ok := callCost(function, overload, args, result)
	if !ok {
		return nil
	}
	return &cost
}

func callCost(function, overload string, args []ref.Val, result ref.Val) (uint64, bool) {
	switch function {
	case "check":
		return checkCost, true
	case "serviceAccount", "path", "group", "resource", "subresource", "namespace", "name", "allowed", "reason",
		"error", "errored",
		"masked", "prefixLength", "family", "isUnspecified", "isLoopback", "isLinkLocalMulticast", "isLinkLocalUnicast",
		"isGlobalUnicast",
		"format.named",
		"sign", "asInteger", "isInteger", "asApproximateFloat", "isGreaterThan", "isLessThan", "compareTo", "add",
		"sub", "major", "minor", "patch",
		"getScheme", "getHostname", "getHost", "getPort", "getEscapedPath", "getQuery":
		return 1, true
	case "fieldSelector", "labelSelector":
		return selectorCost(args)
	case "isSorted", "sum", "max", "min", "indexOf", "lastIndexOf", "includes":
		if len(args) == 0 {
			return 0, true
		}
		return traversal(args[0]), true
	case "url", "lowerAscii", "upperAscii", "substring", "trim", "jsonpatch.escapeKey",
		"cidr", "isIP", "isCIDR", "quantity", "isQuantity", "semver", "isSemver":
		return read(args, 1), len(args) > 0
	case "replace", "split", "ip.isCanonical":
		return read(args, 2), len(args) > 0
	case "join":
		return reading(sizeOf(result), 2), len(args) > 0
	case "ip":
		if overload == "cidr_ip" {
			return 1, true
		}
		return read(args, 1), len(args) > 0
	case "matches", "find", "findAll":
		if len(args) < 2 {
			return 0, false
		}
		source, ok := args[1].Value().(string)
		return matching(sizeOf(args[0]), patternSize(source)), ok
	case "validate":
		return formatCost(args)
	case "containsIP", "containsCIDR":
		return containsCost(function, overload, args)
	case "_==_":
		if len(args) == 2 {
			if _, foreign := args[0].(interface{ foreign() }); foreign {
				return 1, true
			}
		}
	}
	return 0, false
}

// selectorCost returns the cost of parsing a selector into a list that has, at worst, a requirement for every second
// character.
func selectorCost(args []ref.Val) (uint64, bool) {
	if len(args) < 2 {
		return 0, false
	}
	length := float64(sizeOf(args[1]))
	parse := math.Ceil(length * common.StringTraversalCostFactor)
	requirements := math.Ceil(length * 0.5)
	return common.ListCreateBaseCost + uint64(parse) +
		uint64(math.Ceil(requirements*(common.ListCreateBaseCost+common.StructCreateBaseCost))), true
}

func matching(text, pattern uint64) uint64 {
	return uint64(math.Ceil((1+float64(text))*common.StringTraversalCostFactor)) * uint64(
		math.Ceil(float64(pattern)*common.RegexStringLengthCostFactor))
}

func formatCost(args []ref.Val) (uint64, bool) {
	if len(args) < 2 {
		return 0, false
	}
	f, ok := args[0].Value().(*format)
	if !ok {
		return 0, false
	}
	return matching(sizeOf(args[1]), uint64(f.pattern)), true
}

// containsCost returns the cost of a byte-by-byte comparison. Another network is masked first, and a string is parsed.
func containsCost(function, overload string, args []ref.Val) (uint64, bool) {
	if len(args) < 2 {
		return 0, false
	}
	network := sizeOf(args[0])
	cost := reading(2*network, 1)
	if function == "containsCIDR" {
		cost += reading(network, 1) + 1
	}
	if overload == "cidr_contains_ip_string" || overload == "cidr_contains_cidr_string" {
		cost += reading(sizeOf(args[1]), 1)
	}
	return cost, true
}

func sizeOf(v ref.Val) uint64 {
	if s, ok := v.(traits.Sizer); ok {
		if n, ok := s.Size().(types.Int); ok {
			return uint64(n)
		}
	}
	return 1
}

// traversal returns the cost of visiting all parts of a value.
func traversal(v ref.Val) uint64 {
	switch v := v.(type) {
	case types.String:
		return uint64(float64(len(v)) * common.StringTraversalCostFactor)
	case types.Bytes:
		return uint64(float64(len(v)) * common.StringTraversalCostFactor)
	case traits.Lister:
		var cost uint64
		for it := v.Iterator(); it.HasNext() == types.True; {
			cost += traversal(it.Next())
		}
		return cost
	case traits.Mapper:
		var cost uint64
		for it := v.Iterator(); it.HasNext() == types.True; {
			key := it.Next()
			cost += traversal(key) + traversal(v.Get(key))
		}
		return cost
	}
	return 1
}
