//go:build e2e && linux

// Package modes runs one smoke test in every mode that users run a control plane in: with etcd inside and
// outside, by one API server and three, with everything encrypted and audited, without root, over IPv6, on a
// full disk, on a slow one, and with clocks that are set. The shipped binaries run as processes. A mode that
// the machine cannot run is skipped with a line.
//
// modes_test.go and full_test.go have the modes, smoke_test.go the smoke test, process_test.go and
// cluster_test.go the programs and their clients. COXSWAIN_BIN is the folder of coxswain, KUBECTL the real
// kubectl. `make e2e` builds both.
package modes

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// The programs that are run.
var coxswain, kubectl string

func TestMain(m *testing.M) {
	if program := os.Getenv(slowProgram); program != "" {
		fmt.Fprintln(os.Stderr, runSlowly(program))
		os.Exit(1)
	}
	coxswain, kubectl = filepath.Join(os.Getenv("COXSWAIN_BIN"), "coxswain"), os.Getenv("KUBECTL")
	for _, program := range []string{coxswain, kubectl} {
		if _, err := os.Stat(program); err != nil {
			fmt.Fprintln(os.Stderr, "run these tests with `make e2e`:", err)
			os.Exit(2)
		}
	}
	flag.Parse()
	if err := flag.Set("test.parallel", "100"); err != nil { // modes wait more than they compute
		panic(err)
	}
	os.Exit(m.Run())
}
