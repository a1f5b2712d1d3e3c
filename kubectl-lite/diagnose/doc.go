// Package diagnose decides from objects alone whether they are as they should be, and why not.
//
// A tour. [Readiness] and [IsReady] read what an object of any kind reports about itself (conditions.go).
// [Owned] sorts objects under their owners; [InspectAll] walks an object and all that it owns and returns what
// is wrong as [Finding] values (family.go, inspect.go), which [Merge] puts in order, the likeliest cause first.
// [Warnings] turns events into findings. What a pod or an Ingress needs beyond what it owns is listed by
// [NeedsOf] and [BackendsOf]; why a node does not take a pod is a [NodeVerdict].
//
// Nothing here sends a request, prints, or imports another package of this module: the caller reads the
// objects, and makes the texts safe for a terminal.
package diagnose
