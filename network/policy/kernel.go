package policy

// kernel holds a ruleset. Each call is one transaction, which is made as a whole or not at all.
type kernel interface {
	// Replace makes a ruleset the one that is enforced. There is no moment between the old and the new one.
	Replace(*Ruleset) error
	// Apply makes changes to what it holds.
	Apply(*Changes) error
	// End ends the connections of the namespace that are denied, and returns their number.
	End(denied func(Flow) bool) (int, error)
	Close()
}
