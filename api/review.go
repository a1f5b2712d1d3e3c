package api

// review completes the registration of a create-only kind: one whose objects are questions,
// which the server answers and does not keep. There are no tables of them.
func review(r Resource) *Resource {
	r.Review = true
	r.NoVerbs = []string{"delete", "deletecollection", "get", "list", "patch", "update", "watch"}
	return &r
}
