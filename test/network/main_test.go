//go:build e2e && linux

package network

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// The programs under test, the real client, and the program in pods.
var coxswain, kubectl, netexec string

// joined is the cluster that most tests share. Its machines are connected by VXLAN.
var joined = sync.OnceValues(func() (*cluster, error) {
	c, err := startCluster(nil, "--network-mode", "vxlan", "--masquerade", "--node-ports", "30000-32767")
	if err == nil {
		started = c
	}
	return c, err
})

var started *cluster

func TestMain(m *testing.M) {
	coxswain, kubectl = filepath.Join(os.Getenv("COXSWAIN_BIN"), "coxswain"), os.Getenv("KUBECTL")
	for _, program := range []string{coxswain, kubectl} {
		if _, err := os.Stat(program); err != nil {
			fmt.Fprintln(os.Stderr, "run these tests with `make e2e`:", err)
			os.Exit(2)
		}
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "coxswain-netexec-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	defer os.RemoveAll(dir)
	netexec = filepath.Join(dir, "netexec")
	build := exec.Command("go", "build", "-o", netexec, "./netexec")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // containers have no libraries
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "%v: %s\n", err, out)
		return 2
	}
	defer func() {
		if started != nil {
			started.close()
		}
	}()
	return m.Run()
}
