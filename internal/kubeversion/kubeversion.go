// Package kubeversion has the version of Kubernetes whose API and behaviour this repository follows. docs/upgrade.md
// lists the places that need a look when it changes.
package kubeversion

// The parts of the version. Those of k8s.io's modules in go.mod are the same, with 0 as their major version.
const (
	Major = "1"
	Minor = "37"
	Patch = "2"
	// PreviousMinor is the minor before, the oldest for API servers beside this one (the version skew policy).
	PreviousMinor = "36"
)

const (
	// MajorMinor is the version without the patch.
	MajorMinor = Major + "." + Minor
	// Release is the name of Kubernetes' release.
	Release = "v" + MajorMinor + "." + Patch
	// Coxswain is the version of a server or an agent: the release whose API it serves, with our own name as build
	// metadata. It is not a pre-release, so that version constraints hold.
	Coxswain = Release + "+coxswain"
)
