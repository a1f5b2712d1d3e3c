// Package discovery says which groups, versions and resources are served: the documents
// that clients read first, to find the path of a kind.
//
// There are two forms of the same content. The older one is a document for each level
// (/api and /apis, a group, a group's version); the aggregated one
// (apidiscovery.k8s.io/v2) has all in one, so that a client asks twice instead of once for
// each version. Both are pure functions of a registry's snapshot; there is no HTTP here.
package discovery
