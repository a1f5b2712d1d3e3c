// Package discovery makes the documents that list the groups, versions and resources that are served.
// Clients read them first, to find the path of a kind.
//
// There are two forms of the same content: the older one has a document for each level (/api and /apis, a
// group, a version of a group), the aggregated one (apidiscovery.k8s.io/v2) has all in one, so that a
// client needs two requests instead of one for each version. Both are pure functions of a registry's
// snapshot; there is no HTTP here.
package discovery
