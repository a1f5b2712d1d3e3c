// Package netns has what the parts of the network do in Linux' network namespaces (network_namespaces(7)): make one,
// and act in one.
//
// A namespace is an open file. Elsewhere than on Linux there are none, and every function says so.
package netns
