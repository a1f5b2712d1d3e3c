// Package controllers runs the controllers: the loops that bring what there is to what the
// objects ask for. It is a process of its own beside the API server and reaches it over HTTP
// with client-go alone; it runs unchanged against any Kubernetes API server.
//
// The tour:
//
//	controller/   what a controller is made of; read this first
//	table.go      every controller there is, one line each
//	run.go        Run: clients, informers and the controllers, started and stopped in order
//	leader.go     of several processes, only one acts
//	metrics.go    workqueue_* and leader_election_*
//
// Each controller has a folder named after it. To add one, write its folder and its line in
// the table.
package controllers
