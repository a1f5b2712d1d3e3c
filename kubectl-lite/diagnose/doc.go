// Package diagnose decides from objects alone whether they are as they should be, and why not.
//
// A tour. [Readiness] and [IsReady] read the status of an object of any kind (conditions.go), [Rollout] how far a
// change has come (progress.go); [State] has words for an object without faults (state.go). [Owned] sorts objects
// under their owners; [InspectAll] walks an object and its descendants and returns their faults as [Finding] values
// (family.go, inspect.go, progress.go), which [Merge] orders, the likeliest cause first. [Specific] removes
// repetitions. [Warnings] turns events into findings. [NeedsOf] and [BackendsOf] list the objects that a pod or an
// Ingress needs and does not own. [NodeVerdict] explains why a pod does not fit on a node.
//
// The package sends no requests, does not print, and imports no other package of this module. Its caller reads the
// objects, and makes the texts safe for a terminal.
package diagnose
