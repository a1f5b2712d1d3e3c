package api

import "reflect"

// OnlyOwners exports onlyOwners to the test that walks every kind.
var OnlyOwners = onlyOwners

// Fields returns the reference fields of a Go type, for the same test.
func (r *References) Fields(t reflect.Type) []string { return r.fields[t] }
