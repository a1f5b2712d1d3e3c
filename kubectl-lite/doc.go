// Package kubectllite is kubectl with a few commands of its own, in one static binary that works with any
// Kubernetes API server. Names, flags, output and exit codes are kubectl's.
//
// A tour. [New] builds the command tree from one table of groups (root.go); [Main] runs it and returns the exit code.
// The package session has the streams, the connection, and kubectl's texts for errors. The package terminal prints for
// people.
//
// Most commands come from k8s.io/kubectl/pkg/cmd. mount.go adapts them: they get the session's connection
// and streams, and are built only when the command line names them. Linking them costs a short command two
// milliseconds, because the package untranslated keeps them from loading their translations. apply.go gives kubectl's
// apply other defaults, and kuberc.go applies the user's kuberc to the tree before it runs.
//
// A command of our own has a file named after it (get.go, wait.go, rollout.go …) or, if it is an idea of its own, a
// package (why, history, audit). It is an options struct, a function that declares its flags, and a method run. Reading
// commands share table.go (server-side tables), columns.go (custom columns) and sort.go; writing commands share
// write.go (dry run, field manager, field validation, "deployment.apps/web created"). observe.go waits for one object
// to change.
//
// Of the rest of this module, this package and its own import only internal/limits and internal/backoff: the command
// line reaches a server by HTTP only, and works with any.
package kubectllite
