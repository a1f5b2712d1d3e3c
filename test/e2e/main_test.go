//go:build e2e

// Package e2e holds the black-box tests: they start the shipped binaries as processes and use them like users, with
// kubectl, kubectl-lite and plain HTTP. They do not import the code inside. `make e2e` builds all programs that they
// need and runs them.
//
// COXSWAIN_BIN is the folder of coxswain and kubectl-lite, KUBECTL the real kubectl.
package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// The programs under test.
var coxswain, kubectlLite, kubectl string

func TestMain(m *testing.M) {
	if kubeconfig := os.Getenv(calmKubeconfig); kubeconfig != "" {
		if err := beCalm(kubeconfig); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if os.Getenv(copierEnv) != "" {
		if err := runCopier(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	bin := os.Getenv("COXSWAIN_BIN")
	coxswain, kubectlLite = filepath.Join(bin, "coxswain"), filepath.Join(bin, "kubectl-lite")
	kubectl = os.Getenv("KUBECTL")
	for _, program := range []string{coxswain, kubectlLite, kubectl} {
		if _, err := os.Stat(program); err != nil {
			fmt.Fprintln(os.Stderr, "run these tests with `make e2e`:", err)
			os.Exit(2)
		}
	}
	os.Exit(m.Run())
}
