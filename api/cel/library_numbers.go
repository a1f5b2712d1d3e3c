package cel

import (
	"errors"
	"strings"

	"github.com/blang/semver/v4"
	celgo "github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/coxswain-dev/coxswain/internal/limits"
)

// The libraries of quantities and of semantic versions.

type quantity = *resource.Quantity

var quantityLibrary = library{name: "kubernetes.quantity", functions: map[string][]celgo.FunctionOpt{
	"quantity":   {call("string_to_quantity", args(celgo.StringType), quantityType, unary(stringToQuantity))},
	"isQuantity": {call("is_quantity_string", args(celgo.StringType), celgo.BoolType, unary(isQuantity))},
	"sign": {call("quantity_sign", args(quantityType), celgo.IntType, unary(func(q quantity) ref.Val {
		return types.Int(q.Sign())
	}))},
	"isGreaterThan": {member("quantity_is_greater_than", args(quantityType, quantityType), celgo.BoolType,
		binary(func(q, o quantity) ref.Val {
			return types.Bool(q.Cmp(*o) > 0)
		}))},
	"isLessThan": {member("quantity_is_less_than", args(quantityType, quantityType), celgo.BoolType,
		binary(func(q, o quantity) ref.Val {
			return types.Bool(q.Cmp(*o) < 0)
		}))},
	"compareTo": {member("quantity_compare_to", args(quantityType, quantityType), celgo.IntType,
		binary(func(q, o quantity) ref.Val {
			return types.Int(q.Cmp(*o))
		}))},
	"asApproximateFloat": {member("quantity_get_float", args(quantityType), celgo.DoubleType,
		unary(func(q quantity) ref.Val {
			return types.Double(q.AsApproximateFloat64())
		}))},
	"asInteger": {member("quantity_get_int", args(quantityType), celgo.IntType, unary(asInteger))},
	"isInteger": {member("quantity_is_integer", args(quantityType), celgo.BoolType, unary(isInteger))},
	"add": {
		member("quantity_add", args(quantityType, quantityType), quantityType, binary(func(q, o quantity) ref.Val {
			return plus(q, *o)
		})),
		member("quantity_add_int", args(quantityType, celgo.IntType), quantityType,
			binary(func(q quantity, n int64) ref.Val {
				return plus(q, whole(n))
			})),
	},
	"sub": {
		member("quantity_sub", args(quantityType, quantityType), quantityType, binary(func(q, o quantity) ref.Val {
			return minus(q, *o)
		})),
		member("quantity_sub_int", args(quantityType, celgo.IntType), quantityType,
			binary(func(q quantity, n int64) ref.Val {
				return minus(q, whole(n))
			})),
	},
}}

func quantityValue(q resource.Quantity) ref.Val {
	return value[quantity]{typ: quantityType, wrapped: &q, equal: func(a, b quantity) bool { return a.Equal(*b) }}
}

func whole(n int64) resource.Quantity { return *resource.NewQuantity(n, resource.DecimalExponent) }

func stringToQuantity(text string) ref.Val {
	q, err := limits.ParseQuantity(text)
	if err != nil {
		return types.WrapErr(err)
	}
	return quantityValue(q)
}

func isQuantity(text string) ref.Val {
	_, err := limits.ParseQuantity(text)
	return types.Bool(err == nil)
}

func isInteger(q quantity) ref.Val {
	_, ok := q.AsInt64()
	return types.Bool(ok)
}

func asInteger(q quantity) ref.Val {
	n, ok := q.AsInt64()
	if !ok {
		return types.WrapErr(errors.New("cannot convert value to integer"))
	}
	return types.Int(n)
}

func plus(q quantity, o resource.Quantity) ref.Val {
	total := q.DeepCopy()
	total.Add(o)
	return quantityValue(total)
}

func minus(q quantity, o resource.Quantity) ref.Val {
	total := q.DeepCopy()
	total.Sub(o)
	return quantityValue(total)
}

type version = semver.Version

var semverLibrary = library{name: "kubernetes.Semver", functions: map[string][]celgo.FunctionOpt{
	"semver": {
		call("string_to_semver", args(celgo.StringType), semverType, unary(func(text string) ref.Val {
			return stringToVersion(text, false)
		})),
		call("string_bool_to_semver", args(celgo.StringType, celgo.BoolType), semverType, binary(stringToVersion)),
	},
	"isSemver": {
		call("is_semver_string", args(celgo.StringType), celgo.BoolType, unary(func(text string) ref.Val {
			return isVersion(text, false)
		})),
		call("is_semver_string_bool", args(celgo.StringType, celgo.BoolType), celgo.BoolType, binary(isVersion)),
	},
	"isGreaterThan": {member("semver_is_greater_than", args(semverType, semverType), celgo.BoolType,
		binary(func(v, o version) ref.Val {
			return types.Bool(v.GT(o))
		}))},
	"isLessThan": {member("semver_is_less_than", args(semverType, semverType), celgo.BoolType,
		binary(func(v, o version) ref.Val {
			return types.Bool(v.LT(o))
		}))},
	"compareTo": {member("semver_compare_to", args(semverType, semverType), celgo.IntType,
		binary(func(v, o version) ref.Val {
			return types.Int(v.Compare(o))
		}))},
	"major": {member("semver_major", args(semverType), celgo.IntType, unary(func(v version) ref.Val {
		return types.Int(v.Major)
	}))},
	"minor": {member("semver_minor", args(semverType), celgo.IntType, unary(func(v version) ref.Val {
		return types.Int(v.Minor)
	}))},
	"patch": {member("semver_patch", args(semverType), celgo.IntType, unary(func(v version) ref.Val {
		return types.Int(v.Patch)
	}))},
}}

func parseVersion(text string, normalize bool) (version, error) {
	if !normalize {
		return semver.Parse(text)
	}
	parts := strings.SplitN(strings.TrimPrefix(text, "v"), ".", 3)
	for i, part := range parts {
		if digits := strings.TrimLeft(part, "0"); len(part) > 1 && digits != part {
			if digits == "" || digits[0] < '0' || digits[0] > '9' {
				digits = "0" + digits
			}
			parts[i] = digits
		}
	}
	if len(parts) < 3 && strings.ContainsAny(parts[len(parts)-1], "+-") {
		return version{}, errors.New("short version cannot contain PreRelease/Build meta data")
	}
	for len(parts) < 3 {
		parts = append(parts, "0")
	}
	return semver.Parse(strings.Join(parts, "."))
}

func stringToVersion(text string, normalize bool) ref.Val {
	v, err := parseVersion(text, normalize)
	if err != nil {
		return types.WrapErr(err)
	}
	return value[version]{typ: semverType, wrapped: v, equal: version.EQ}
}

func isVersion(text string, normalize bool) ref.Val {
	_, err := parseVersion(text, normalize)
	return types.Bool(err == nil)
}
