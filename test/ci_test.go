package test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestCI runs .ci/run with a make that only reports results: it passes if every target passes, even if no test had to
// be repeated, and fails if one fails.
func TestCI(t *testing.T) {
	t.Parallel()
	const result = `echo '{"Action":"pass","Package":"example.com/p","Elapsed":1.5}' >"$RESULTS/$1.json"` + "\n"
	cases := []struct {
		name, make string
		passes     bool
		prints     string
	}{
		{"nothing failed", result, true, "1.5 s  example.com/p"},
		{"one test was flaky", result + `echo TestX >"$RESULTS/$1.flaky"`, true, "FLAKY: TestX"},
		{"no results at all", "", true, "all passed"},
		{"a target failed", result + `[ "$1" != test ]`, false, "FAILED: make test"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			bin := t.TempDir()
			for name, script := range map[string]string{"make": c.make, "docker": "", "apt-get": ""} {
				if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+script), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			run := exec.Command("bash", filepath.Join("..", ".ci", "run"))
			run.Env = append(os.Environ(), "PATH="+bin+string(os.PathListSeparator)+os.Getenv("PATH"))
			output, err := run.CombinedOutput()
			if passed := err == nil; passed != c.passes || !strings.Contains(string(output), c.prints) {
				t.Errorf("passed: %v, want %v with %q; output:\n%s", passed, c.passes, c.prints, output)
			}
		})
	}
}
