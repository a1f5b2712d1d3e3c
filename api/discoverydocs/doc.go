// Package discoverydocs makes the documents that list the served groups, versions and resources. Clients read them
// first, to find the path of a kind.
//
// There are two forms with the same content. The older one has a document for each level (/api and /apis, a group, a
// version of a group). The aggregated one (apidiscovery.k8s.io/v2) has everything in one document at /api and one at
// /apis, so that a client needs two requests instead of one for each version. Both are pure functions of a registry's
// snapshot; there is no HTTP here.
package discoverydocs
