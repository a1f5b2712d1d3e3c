// Command kubectl is the real kubectl, from the k8s.io/kubectl module, which has no main
// package of its own. kubectl-lite is compared with it, and the black-box tests use it where none is on the PATH.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"

	_ "k8s.io/client-go/plugin/pkg/client/auth" // as the original: logins through exec plugins and OIDC
)

func main() {
	command := cmd.NewDefaultKubectlCommand()
	if err := cli.RunNoErrOutput(command); err != nil {
		util.CheckErr(err)
	}
	os.Exit(0)
}
