package structural

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"

	celgo "github.com/google/cel-go/cel"
	celtypes "github.com/google/cel-go/common/types"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/coxswain-dev/coxswain/api/cel"
)

// rules holds the rules (x-kubernetes-validations) of a schema. They are compiled on first use.
type rules struct {
	once sync.Once
	root *ruleNode
}

// ruleNode has the rules of a value and of the values below it. Values without rules, at or below them, have none.
type ruleNode struct {
	schema *Schema
	typ    *ruleType
	rules  []*rule

	properties        map[string]*ruleNode
	names             []string // of the properties, sorted
	items, additional *ruleNode
	allOf             []*ruleNode
}

// rule is one compiled rule.
type rule struct {
	apiextensionsv1.ValidationRule
	// path is the field below the value that the rule's errors point to.
	path string
	// err is the error of a rule that does not compile. A definition with such a rule is rejected.
	err error
	// usesOld reports whether it is a transition rule, which reads oldSelf.
	usesOld          bool
	program, message celgo.Program

	// For rules that are not stored yet: the compile error of the message, and the worst-case cost of one call of
	// each.
	messageErr        error
	cost, messageCost uint64
}

// Rule variables, https://kubernetes.io/docs/reference/using-api/cel/.
const (
	self    = "self"
	oldSelf = "oldSelf"
)

// rootType is the name of a custom resource's type in the compiler's messages. It is not valid in a rule.
const rootType = "@self"

// compiledRules compiles the rules on first use and returns them, or nil if there are none.
func (s *Schema) compiledRules() *ruleNode {
	if s == nil || s.rules == nil {
		return nil
	}
	s.rules.once.Do(func() {
		c := ruleCompiler{stored: true}
		s.rules.root = c.node(s, s, true, c.types.declare(s, true, rootType))
	})
	return s.rules.root
}

// ruleCompiler compiles the rules of one schema. It estimates the costs of rules that are not stored yet.
type ruleCompiler struct {
	types        ruleTypes
	environments map[environmentKey]*celgo.Env
	stored       bool
	// isStored reports whether an expression of a definition that is being written is in the stored definition
	// already. It may be nil.
	isStored func(expression string) bool
	// nodes, if not nil, caches the compiled nodes.
	nodes map[*Schema]*ruleNode
}

type environmentKey struct {
	typ              *ruleType
	stored, optional bool
}

// node compiles the rules of checked, which is spine or a branch of its allOf. It returns nil if there are none, or if
// expressions cannot access the value.
func (c *ruleCompiler) node(checked, spine *Schema, root bool, t *ruleType) *ruleNode {
	if checked == nil || spine == nil || t == nil {
		return nil
	}
	if n, compiled := c.nodes[spine]; compiled && checked == spine {
		return n
	}
	n := c.compileNode(checked, spine, root, t)
	if c.nodes != nil && checked == spine {
		c.nodes[spine] = n
	}
	return n
}

func (c *ruleCompiler) compileNode(checked, spine *Schema, root bool, t *ruleType) *ruleNode {
	n := &ruleNode{schema: spine, typ: t}
	if root {
		n.schema = spine.withTypeMeta()
	}
	for _, source := range checked.validations {
		n.rules = append(n.rules, c.compile(source, spine, t))
	}
	n.items = c.node(checked.items, spine.items, spine.items.isEmbedded(), t.item)
	if spine.additional != nil {
		n.additional = c.node(checked.additional, spine.additional, spine.additional.embedded, t.item)
	}
	for _, name := range checked.names {
		if below := spine.properties[name]; below != nil {
			if field := c.node(checked.properties[name], below, below.embedded, c.field(t, below, name)); field != nil {
				if n.properties == nil {
					n.properties = map[string]*ruleNode{}
				}
				n.properties[name] = field
				n.names = append(n.names, name)
			}
		}
	}
	for _, branch := range checked.bound().allOf {
		if all := c.node(branch, spine, root, t); all != nil {
			n.allOf = append(n.allOf, all)
		}
	}
	if n.rules == nil && n.items == nil && n.additional == nil && n.properties == nil && n.allOf == nil {
		return nil
	}
	return n
}

// field returns the type of a property. A property that expressions cannot name still has its own rules.
func (c *ruleCompiler) field(t *ruleType, below *Schema, name string) *ruleType {
	if escaped, ok := cel.Escape(name); ok {
		return t.fields[escaped]
	}
	return c.types.declare(below, below.embedded, c.types.unique())
}

var (
	errNotBool   = errors.New("cel expression must evaluate to a bool")
	errNotString = errors.New("messageExpression must evaluate to a string")
)

func (c *ruleCompiler) compile(source apiextensionsv1.ValidationRule, spine *Schema, t *ruleType) *rule {
	r := &rule{ValidationRule: source}
	if strings.TrimSpace(source.Rule) == "" {
		return r
	}
	env, err := c.environment(source.Rule, source, t)
	if err != nil {
		r.err = err
		return r
	}
	compiled, err := compileExpression(env, source.Rule, celgo.BoolType)
	if err != nil {
		r.err = err
		return r
	}
	r.program, r.usesOld, r.cost = compiled.program, compiled.usesOld(), c.cost(env, compiled, t)
	if source.MessageExpression != "" {
		// A stored message that does not compile is ignored: the rule then has its default message.
		r.messageErr = c.compileMessage(r, t)
	}
	if source.FieldPath != "" {
		if path, err := spine.ruleFieldPath(source.FieldPath); err == nil {
			r.path = path.String()
		}
	}
	return r
}

func (c *ruleCompiler) compileMessage(r *rule, t *ruleType) error {
	env, err := c.environment(r.MessageExpression, r.ValidationRule, t)
	if err != nil {
		return err
	}
	message, err := compileExpression(env, r.MessageExpression, celgo.StringType)
	if err != nil {
		return err
	}
	r.message, r.messageCost = message.program, c.cost(env, message, t)
	return nil
}

// environment declares self and oldSelf for an expression of a rule.
func (c *ruleCompiler) environment(expression string, source apiextensionsv1.ValidationRule, t *ruleType) (*celgo.Env,
	error) {
	key := environmentKey{typ: t, stored: c.stored || c.isStored != nil && c.isStored(expression),
		optional: source.OptionalOldSelf != nil && *source.OptionalOldSelf}
	if env, ok := c.environments[key]; ok {
		return env, nil
	}
	old := t.cel
	if key.optional {
		old = celtypes.NewOptionalType(old)
	}
	env, err := cel.Environment(key.stored, c.types.fieldsOf, celgo.Variable(self, t.cel), celgo.Variable(oldSelf, old))
	if err != nil {
		return nil, err
	}
	if c.environments == nil {
		c.environments = map[environmentKey]*celgo.Env{}
	}
	c.environments[key] = env
	return env, nil
}

// expression is a compiled expression.
type expression struct {
	checked *celgo.Ast
	program celgo.Program
}

func compileExpression(env *celgo.Env, source string, want *celgo.Type) (x expression, err error) {
	prefix, otherwise := "", errNotBool
	if want == celgo.StringType {
		prefix, otherwise = "messageExpression ", errNotString
	}
	cel.CountCompilation()
	checked, issues := env.Compile(source)
	switch {
	case issues.Err() != nil:
		return x, fmt.Errorf("%scompilation failed: %s", prefix, issues)
	case !checked.OutputType().IsExactType(want):
		return x, otherwise
	}
	program, err := env.Program(checked)
	if err != nil {
		return x, fmt.Errorf("%sinstantiation failed: %w", prefix, err)
	}
	return expression{checked, program}, nil
}

// usesOld reports whether the expression reads oldSelf.
func (x expression) usesOld() bool {
	for _, reference := range x.checked.NativeRep().ReferenceMap() {
		if reference.Name == oldSelf {
			return true
		}
	}
	return false
}

// cost returns the worst-case cost of one call of a new expression.
func (c *ruleCompiler) cost(env *celgo.Env, x expression, t *ruleType) uint64 {
	if c.stored {
		return 0
	}
	cost, err := cel.EstimateCost(env, x.checked, t.size)
	if err != nil { // the estimator does not support the expression
		return math.MaxUint64
	}
	return cost
}
