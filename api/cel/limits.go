package cel

// The limits of the cost of expressions, all of kube-apiserver (k8s.io/apiserver/pkg/apis/cel). A unit of cost is about
// the time that it takes to read one value; 10,000,000 units take about a second.
const (
	// PerCallLimit limits the cost of one expression.
	PerCallLimit = 1_000_000
	// PolicyBudget limits the cost of all expressions of a policy for one binding and one parameter, MatchBudget that
	// of match conditions.
	PolicyBudget = 10_000_000
	MatchBudget  = 2_500_000
	// RuleBudget limits the cost of all rules of a custom resource for one object.
	RuleBudget = 10_000_000
	// MaxRuleEstimate and MaxSchemaEstimate limit the estimated cost for one object, of each rule of a custom resource
	// and of all of its rules together. A definition above them is rejected.
	MaxRuleEstimate   = 10_000_000
	MaxSchemaEstimate = 100_000_000
)

// MaxMessage limits the result of a messageExpression, in bytes.
const MaxMessage = 5 << 10

// checkEvery is the number of iterations of a loop between checks of the context.
const checkEvery = 100
