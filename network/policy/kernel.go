package policy

// kernel stores the enforced ruleset. Each call is one atomic transaction.
type kernel interface {
	// Replace replaces the enforced ruleset atomically: there is no moment between the old and the new one.
	Replace(*Ruleset) error
	// Apply applies changes to the enforced ruleset.
	Apply(*Changes) error
	// End ends the connections of the namespace that are denied, and returns their number.
	End(denied func(Flow) bool) (int, error)
	Close()
}
