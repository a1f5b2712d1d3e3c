package api

// CreateOnlyOf completes the registration of a create-only kind, such as a review. The server answers a create and does
// not store the object. The kind has no table.
func CreateOnlyOf(r Resource) *Resource {
	r.CreateOnly = true
	r.UnsupportedVerbs = []string{"delete", "deletecollection", "get", "list", "patch", "update", "watch"}
	return &r
}

// VirtualOf completes the registration of a read-only kind. The server computes its objects on request and does not
// store them.
func VirtualOf(r Resource) *Resource {
	r.Virtual = true
	r.UnsupportedVerbs = []string{"create", "delete", "deletecollection", "patch", "update", "watch"}
	return &r
}
