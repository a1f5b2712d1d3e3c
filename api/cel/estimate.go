package cel

import (
	"math"

	celgo "github.com/google/cel-go/cel"
	"github.com/google/cel-go/checker"
	"github.com/google/cel-go/common"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/types"
)

// Sizes returns the maximum number of elements (characters, items, entries) of the value at a path of an expression:
// ["self", "spec", "list", "@items"] is an item of self.spec.list, "@keys" and "@values" are the keys and values of a
// map. It returns false if the size is unknown. The value then counts as unlimited.
type Sizes func(path []string) (length uint64, ok bool)

// EstimateCost returns the worst-case cost of a compiled expression, in the units of PerCallLimit. It decides whether
// a CustomResourceDefinition may have a rule, so it equals kube-apiserver's estimate to the unit
// (k8s.io/apiserver/pkg/cel/library/cost.go).
func EstimateCost(env *celgo.Env, compiled *celgo.Ast, sizes Sizes) (uint64, error) {
	cost, err := env.EstimateCost(compiled, estimator{sizes})
	return cost.Max, err
}

// estimator implements checker.CostEstimator.
type estimator struct{ sizes Sizes }

// EstimateSize implements checker.CostEstimator.
func (e estimator) EstimateSize(node checker.AstNode) *checker.SizeEstimate {
	if path := node.Path(); len(path) > 0 {
		if length, ok := e.sizes(path); ok {
			return &checker.SizeEstimate{Max: length}
		}
	}
	return nil
}

// size returns the number of elements of a value.
func (e estimator) size(node checker.AstNode) checker.SizeEstimate {
	if size := node.ComputedSize(); size != nil {
		return *size
	}
	if size := e.EstimateSize(node); size != nil {
		return *size
	}
	return checker.SizeEstimate{Max: math.MaxUint64}
}

func constant(cost uint64) *checker.CallEstimate {
	return &checker.CallEstimate{CostEstimate: checker.FixedCostEstimate(cost)}
}

// reads returns the cost of reading a value of that size once, times factor.
func reads(size checker.SizeEstimate, factor float64) checker.CostEstimate {
	return size.MultiplyByCostFactor(factor * common.StringTraversalCostFactor)
}

// EstimateCallCost implements checker.CostEstimator. It estimates callCost as far as the types determine it, and
// returns nil for functions that cel-go estimates.
func (e estimator) EstimateCallCost(function, overload string, target *checker.AstNode,
	args []checker.AstNode) *checker.CallEstimate {
	switch function {
	case "check":
		return constant(checkCost)
	case "serviceAccount", "path", "group", "resource", "subresource", "namespace", "name", "allowed", "reason",
		"error", "errored",
		"masked", "prefixLength", "family", "isUnspecified", "isLoopback", "isLinkLocalMulticast", "isLinkLocalUnicast",
		"isGlobalUnicast",
		"format.named",
		"sign", "asInteger", "isInteger", "asApproximateFloat", "isGreaterThan", "isLessThan", "compareTo", "add",
		"sub", "major", "minor", "patch",
		"getScheme", "getHostname", "getHost", "getPort", "getEscapedPath", "getQuery":
		return constant(1)
	case "_==_":
		return equality(args)
	}
	if target != nil {
		return e.methodCost(function, overload, *target, args)
	}
	return e.functionCost(function, overload, args)
}

// functionCost returns the cost of functions that read their first argument.
func (e estimator) functionCost(function, overload string, args []checker.AstNode) *checker.CallEstimate {
	if len(args) == 0 {
		return nil
	}
	size := e.size(args[0])
	switch function {
	case "url", "jsonpatch.escapeKey":
		if len(args) == 1 {
			return &checker.CallEstimate{CostEstimate: reads(size, 1), ResultSize: &size}
		}
	case "cidr", "isIP", "isCIDR", "ip", "quantity", "isQuantity", "semver", "isSemver":
		return &checker.CallEstimate{CostEstimate: reads(size, 1)}
	case "ip.isCanonical":
		return &checker.CallEstimate{CostEstimate: reads(size, 2)}
	}
	return nil
}

// methodCost returns the cost of methods that read their receiver.
func (e estimator) methodCost(function, overload string, target checker.AstNode,
	args []checker.AstNode) *checker.CallEstimate {
	switch function {
	case "isSorted", "sum", "max", "min", "indexOf", "lastIndexOf", "includes":
		return &checker.CallEstimate{CostEstimate: e.visits(function, target)}
	case "lowerAscii", "upperAscii", "substring", "trim":
		size := e.size(target)
		return &checker.CallEstimate{CostEstimate: reads(size, 1), ResultSize: &size}
	case "replace":
		if len(args) >= 2 {
			size := e.size(target)
			result := replaced(size, e.size(args[0]), e.size(args[1]))
			return &checker.CallEstimate{CostEstimate: reads(size, 2), ResultSize: &result}
		}
	case "split":
		size := e.size(target)
		return &checker.CallEstimate{CostEstimate: reads(size, 2),
			ResultSize: &checker.SizeEstimate{Max: parts(size, args)}}
	case "join":
		size := e.joined(target, args)
		return &checker.CallEstimate{CostEstimate: reads(size, 1), ResultSize: &size}
	case "ip": // of a network
		return constant(1)
	}
	if len(args) == 0 {
		return nil
	}
	return e.argumentCost(function, overload, target, args)
}

// argumentCost returns the cost of methods that read their first argument.
func (e estimator) argumentCost(function, overload string, target checker.AstNode,
	args []checker.AstNode) *checker.CallEstimate {
	size := e.size(args[0])
	switch function {
	case "fieldSelector", "labelSelector":
		if len(args) == 1 {
			cost := checker.FixedCostEstimate(common.ListCreateBaseCost).Add(reads(size, 1)).Add(
				size.MultiplyByCostFactor(0.5).MultiplyByCostFactor(
					common.ListCreateBaseCost + common.StructCreateBaseCost))
			return &checker.CallEstimate{CostEstimate: cost}
		}
	case "find", "findAll":
		text := e.size(target)
		longer := text.Add(checker.FixedSizeEstimate(1)) // even with an empty text the pattern has a cost
		return &checker.CallEstimate{
			CostEstimate: reads(longer, 1).Multiply(size.MultiplyByCostFactor(common.RegexStringLengthCostFactor)),
			ResultSize:   &checker.SizeEstimate{Max: text.Max}}
	case "containsIP", "containsCIDR":
		return &checker.CallEstimate{CostEstimate: contains(function, overload, size)}
	case "validate":
		return &checker.CallEstimate{CostEstimate: reads(size, 1).MultiplyByCostFactor(
			maxFormatPattern * common.RegexStringLengthCostFactor)}
	}
	return nil
}

const (
	// maxFormatPattern is the longest pattern behind a named format, maxFormat the longest format.
	maxFormatPattern = 128
	maxFormat        = 64
)

// visits returns the cost of visiting each element of a list, or of searching a string.
func (e estimator) visits(function string, target checker.AstNode) checker.CostEstimate {
	size := e.size(target)
	one := checker.FixedCostEstimate(1)
	item := itemOf(target)
	switch {
	case item != nil:
		if kind := item.Type().Kind(); kind == types.StringKind || kind == types.BytesKind {
			one = one.Add(reads(e.size(item), 1))
		}
		return size.MultiplyByCost(one)
	case function == "includes":
		return size.MultiplyByCost(one)
	}
	return reads(size, 1)
}

// replaced returns the size of a string after a replacement. Its maximum is that of replacing the shortest possible
// old string by the longest possible new one.
func replaced(size, old, replacement checker.SizeEstimate) checker.SizeEstimate {
	var times, rest checker.SizeEstimate
	switch {
	case old.Min == 0: // between all characters, which remain
		times.Max, rest.Max = oneMore(size.Max), size.Max
	case replacement.Max <= old.Min:
		rest.Max = size.Max
	default:
		times.Max = uint64(math.Ceil(float64(size.Max) / float64(old.Min)))
	}
	switch {
	case old.Max == 0:
		times.Min, rest.Min = oneMore(size.Min), size.Min
	case old.Max <= replacement.Min:
		rest.Min = size.Min
	default:
		times.Min = uint64(math.Ceil(float64(size.Min) / float64(old.Max)))
	}
	return times.Multiply(replacement).Add(rest)
}

func oneMore(n uint64) uint64 {
	if n == math.MaxUint64 {
		return n
	}
	return n + 1
}

// parts returns the maximum number of parts of a split string: one for each character, or the limit in the call.
func parts(size checker.SizeEstimate, args []checker.AstNode) uint64 {
	if len(args) > 1 {
		if literal := args[1].Expr().AsLiteral(); literal != nil {
			if limit, ok := literal.Value().(int64); ok {
				return uint64(limit)
			}
		}
	}
	return size.Max
}

// joined returns the size of a list's strings joined with a separator.
func (e estimator) joined(list checker.AstNode, args []checker.AstNode) (size checker.SizeEstimate) {
	items := e.size(list)
	if item := itemOf(list); item != nil {
		size = items.Multiply(e.size(item))
	}
	if len(args) > 0 {
		between := checker.SizeEstimate{Min: oneLess(items.Min), Max: oneLess(items.Max)}
		size = size.Add(e.size(args[0]).Multiply(between))
	}
	return size
}

func oneLess(n uint64) uint64 {
	if n == 0 {
		return 0
	}
	return n - 1
}

// contains returns the cost of comparing networks of 4 or 16 bytes. See containsCost.
func contains(function, overload string, argument checker.SizeEstimate) checker.CostEstimate {
	network := checker.SizeEstimate{Min: 4, Max: 16}
	cost := reads(network.Add(network), 1)
	if function == "containsCIDR" {
		cost = cost.Add(reads(network, 1)).Add(checker.FixedCostEstimate(1))
	}
	if overload == "cidr_contains_ip_string" || overload == "cidr_contains_cidr_string" {
		cost = cost.Add(reads(argument, 1))
	}
	return cost
}

// equality returns the cost of comparing two values of one of Kubernetes' types.
func equality(args []checker.AstNode) *checker.CallEstimate {
	if len(args) != 2 || args[0].Type().Equal(args[1].Type()) != types.True {
		return nil
	}
	t := args[0].Type()
	for _, opaque := range []*types.Type{ipType, cidrType, quantityType, semverType, authorizerType, pathCheckType,
		groupCheckType, resourceCheckType, decisionType} {
		if t.Kind() == opaque.Kind() && t.TypeName() == opaque.TypeName() {
			return constant(1)
		}
	}
	if t.Kind() != types.StructKind {
		return nil
	}
	one := checker.SizeEstimate{Min: 1, Max: 1}
	switch t.TypeName() {
	case formatType.TypeName():
		one.Max = maxFormat
	case urlType.TypeName():
		if size := args[1].ComputedSize(); size != nil {
			one.Max = size.Max
		}
	default:
		return nil
	}
	return &checker.CallEstimate{CostEstimate: reads(one, 1)}
}

// itemOf returns a node for the items of a list, or nil if it is not a list.
func itemOf(list checker.AstNode) checker.AstNode {
	parameters := list.Type().Parameters()
	if len(parameters) == 0 {
		return nil
	}
	item := &items{t: parameters[0]}
	if path := list.Path(); path != nil {
		item.path = append(append(item.path, path...), "@items")
	}
	return item
}

// items implements checker.AstNode for the items of a list.
type items struct {
	path []string
	t    *types.Type
}

// Path implements checker.AstNode.
func (i *items) Path() []string { return i.path }

// Type implements checker.AstNode.
func (i *items) Type() *types.Type { return i.t }

// Expr implements checker.AstNode.
func (i *items) Expr() ast.Expr { return nil }

// ComputedSize implements checker.AstNode.
func (i *items) ComputedSize() *checker.SizeEstimate { return nil }
