// Package controllers runs the controllers: the loops that bring the actual state to the desired state of the
// objects. They run in a process of their own beside the API server, and use it only through client-go, so they
// run unchanged with any Kubernetes API server.
//
// The tour:
//
//	lib/          code shared by controllers; read lib/controller, the runtime of each controller, first
//	table.go      all controllers, one line each
//	run.go        Run: clients, informers and the controllers, started and stopped in order
//	leader.go     leader election: of several processes, only one acts
//	metrics.go    workqueue_* and leader_election_*
//
// Each controller has a folder named after it, with its tests; lib/controllertest has their shared helpers. To add a
// controller, write its folder and its line in the table.
package controllers
