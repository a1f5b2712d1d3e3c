// Package kubectllite is kubectl with a few commands of its own, in one static binary that works with any
// Kubernetes API server. Names, flags, output and exit codes are kubectl's.
//
// A tour. [New] builds the command tree from one table of groups (root.go); [Main] runs it and turns an error
// into kubectl's text and exit code (errors.go). A [session] is what the commands share: the streams, and the
// connection that the flags and the kubeconfig describe, opened on first use.
//
// Most commands are those of k8s.io/kubectl/pkg/cmd. mount.go adapts them: they get the session's connection
// and streams, and are built only when the command line names them. Linking them costs a short command two
// milliseconds, because the package untranslated keeps them from loading their translations.
//
// A command of our own has a file named after it: get.go, apply.go, rollout.go, why.go … It is an options
// struct, a function new… that declares its flags, and a method run. What reading commands share is in
// table.go (server-side tables), columns.go (custom columns) and sort.go; what writing commands share (dry run,
// field manager, field validation, "deployment.apps/web created") is in write.go; waiting for one object to
// change is in observe.go; what draws on a terminal again and again is in live.go. visible.go keeps text of
// others from controlling the terminal, bodies.go bounds what is read from a server.
//
// Nothing here imports the rest of this module but bounds: the command line reaches a server by HTTP only, and
// does not care whose server it is.
package kubectllite
