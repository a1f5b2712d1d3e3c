package api

// ReviewOf completes the registration of a create-only kind, a review: the server answers it and does not store it. It
// has no table.
func ReviewOf(r Resource) *Resource {
	r.Review = true
	r.UnsupportedVerbs = []string{"delete", "deletecollection", "get", "list", "patch", "update", "watch"}
	return &r
}

// VirtualOf completes the registration of a read-only kind whose objects the server computes on request
// and does not store.
func VirtualOf(r Resource) *Resource {
	r.Virtual = true
	r.UnsupportedVerbs = []string{"create", "delete", "deletecollection", "patch", "update", "watch"}
	return &r
}
