// Package controllers runs the controllers: the loops that bring the actual state to the state
// that the objects ask for. It is a separate process beside the API server, which it reaches only
// through client-go; it runs unchanged against any Kubernetes API server.
//
// The tour:
//
//	lib/          what controllers share: lib/controller is the runtime that each is built on; read it first
//	table.go      all controllers, one line each
//	run.go        Run: clients, informers and the controllers, started and stopped in order
//	leader.go     leader election: of several processes, only one acts
//	metrics.go    workqueue_* and leader_election_*
//
// Each controller has a folder named after it, with its tests; lib/controllertest is what these share. To add one,
// write its folder and its line in the table.
package controllers
