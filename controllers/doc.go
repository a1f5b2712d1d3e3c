// Package controllers runs the controllers: the loops that bring the actual state to the state
// that the objects ask for. It is a separate process beside the API server, which it reaches only
// through client-go; it runs unchanged against any Kubernetes API server.
//
// The tour:
//
//	controller/   the runtime that every controller is built on; read this first
//	table.go      all controllers, one line each
//	run.go        Run: clients, informers and the controllers, started and stopped in order
//	leader.go     leader election: of several processes, only one acts
//	metrics.go    workqueue_* and leader_election_*
//	controllertest/   what the controllers' tests have in common
//
// Each controller has a folder named after it, with its tests. To add one, write its folder and its line in
// the table.
package controllers
