// Command kubectl-lite is a small kubectl; see package kubectllite.
package main

import (
	"context"
	"os"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	_ "github.com/coxswain-dev/coxswain/cmd/kubectl-lite/heap" // first, before the heap grows
	kubectllite "github.com/coxswain-dev/coxswain/kubectl-lite"

	_ "k8s.io/client-go/plugin/pkg/client/auth" // for kubeconfigs with exec plugins, OIDC and the like
)

func main() {
	os.Exit(kubectllite.Main(context.Background(), os.Args[1:], genericiooptions.IOStreams{
		In:     os.Stdin,
		Out:    os.Stdout,
		ErrOut: os.Stderr,
	}))
}
