// Package kubectllite is a small kubectl: the commands people use every day, with kubectl's names, flags, output and exit
// codes, in one static binary that works with any Kubernetes API server.
//
// A tour. [New] builds the command tree from one table of groups (root.go); [Main] runs it and turns an error into
// kubectl's words and exit code (errors.go). A [session] is what the commands share: the streams, and the connection that
// the flags and the kubeconfig describe, opened on first use. Every verb has a file of its own, named after it: get.go,
// apply.go, rollout.go … A verb is an options struct, a function new… that declares its flags, and a method run.
//
// What all reading verbs share is in table.go (server-side tables), columns.go (custom columns) and sort.go; what all
// writing verbs share — dry run, field manager, field validation, "deployment.apps/web created" — is in write.go; waiting for
// one object to change is in observe.go; what joins this terminal to a container is in stream.go; what draws on a terminal
// again and again is in live.go.
//
// Selecting and decoding objects is cli-runtime's work, and describing, rolling back, scaling and draining them is done by the
// libraries below k8s.io/kubectl/pkg. kubectl's commands themselves are not used. Nothing here imports the rest of this
// module: the command line reaches a server by HTTP only, and does not care whose server it is.
package kubectllite
