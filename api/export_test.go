package api

import "reflect"

// OnlyOwners is onlyOwners, for the test that walks every kind.
var OnlyOwners = onlyOwners

// Fields are the references in a Go type, for the same test.
func (r *References) Fields(t reflect.Type) []string { return r.fields[t] }
