// Package netns creates Linux network namespaces (network_namespaces(7)) and runs functions in them.
//
// A namespace is represented by an open file. On other systems every function returns an error.
package netns
