//go:build e2e

// Package conformance checks the requirements of Kubernetes' conformance suite for custom resources, webhooks and
// aggregation. Each test follows the description of one in the suite and carries its codename. The code is our own.
//
// KUBECONFIG selects the cluster under test; without it, `coxswain up` from COXSWAIN_BIN is started. KUBECTL is the
// real kubectl.
package conformance

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// The cluster under test, and the real client.
var kubeconfig, kubectl string

func TestMain(m *testing.M) {
	kubeconfig, kubectl = os.Getenv("KUBECONFIG"), os.Getenv("KUBECTL")
	if _, err := os.Stat(kubectl); err != nil {
		fmt.Fprintln(os.Stderr, "run these tests with `make e2e`:", err)
		os.Exit(2)
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	if kubeconfig != "" {
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "coxswain-conformance-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	defer os.RemoveAll(dir)
	server := exec.Command(filepath.Join(os.Getenv("COXSWAIN_BIN"), "coxswain"), "up", "--data-dir", dir,
		"--secure-port", "0", "--nodes", "1")
	var out bytes.Buffer
	server.Stdout, server.Stderr = &out, &out
	if err := server.Start(); err != nil {
		fmt.Fprintln(os.Stderr, "run these tests with `make e2e`:", err)
		return 2
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Wait() }()
	defer func() {
		_ = server.Process.Kill() // it may have ended already
		<-ended
	}()
	kubeconfig = filepath.Join(dir, "admin.kubeconfig")
	if !ready(ended) {
		_ = server.Process.Kill()
		ended <- <-ended // for the deferred function
		fmt.Fprintf(os.Stderr, "the server is not ready within a minute:\n%s", out.Bytes())
		return 2
	}
	return m.Run()
}

// ready waits until kubectl finds the server ready. It returns false if the server ends, or after a minute.
func ready(ended chan error) bool {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(time.Minute)
	for {
		select {
		case err := <-ended:
			ended <- err
			return false
		case <-limit:
			return false
		case <-tick.C:
			if exec.Command(kubectl, "--kubeconfig", kubeconfig, "get", "--raw", "/readyz").Run() == nil {
				return true
			}
		}
	}
}
