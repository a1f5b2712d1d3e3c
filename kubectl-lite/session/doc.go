// Package session holds the state that the commands of one invocation share: the streams, and the connection that the
// flags and the kubeconfig describe, opened on first use.
//
// A tour. [New] makes the [Session] that each command's constructor takes. output.go prints: tables, colours and live
// views for people, documents for programs. bodies.go limits the size of a server's answers, documents.go and
// manifest_url.go the size of the files and URLs of -f. everything.go lists all objects of a namespace or of the
// cluster. errors.go turns an error into kubectl's text and exit code.
//
// It imports none of the packages of commands, which import it.
package session
