// Command mutants breaks the code in chosen places, one at a time, and checks that a test fails.
//
//	go run ./test/mutants [WORD…]
//
// With words it runs only mutants with one of them in their name or file. All mutants are compiled into the same test
// binaries, by an overlay of go build. An environment variable selects the one that is in effect. So each binary is
// built once, must pass without a mutant, and then runs once per mutant. survivors.txt lists the mutants that no test
// notices yet.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// variable holds the name of the mutant that is in effect.
const variable = "COXSWAIN_MUTANT"

// timeout ends a test binary that hangs, which is a way of failing.
const timeout = 3 * time.Minute

// A mutant replaces a text that occurs once in a file. In the new text the word "mutated" is true when this mutant is
// in effect, and unless(mutated, x) is x or, when it is in effect, the zero value.
type mutant struct{ name, file, original, text string }

// suite is a package and a pattern of its tests, "" for all. They must notice each of the mutants.
type suite struct {
	dir, run string
	mutants  []mutant
}

func main() {
	if err := run(os.Stdout, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func run(out io.Writer, words []string) error {
	list, err := os.ReadFile("test/mutants/survivors.txt")
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	chosen := choose(words)
	if len(chosen) == 0 {
		return fmt.Errorf("no mutant's name or file contains one of %q", words)
	}
	overlay, err := writeOverlay(dir, chosen)
	if err != nil {
		return err
	}
	var wrong []string
	var errs []error
	for i, s := range chosen {
		fmt.Fprintf(out, "suite %d of %d: %s -run %q\n", i+1, len(chosen), s.dir, s.run)
		binary, err := build(dir, overlay, s.dir)
		if err != nil {
			return err
		}
		survived, err := s.test(out, binary)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, m := range s.mutants {
			if slices.Contains(survived, m.name) != slices.Contains(strings.Fields(string(list)), m.name) {
				wrong = append(wrong, m.name)
			}
		}
	}
	if len(wrong) > 0 {
		errs = append(errs, fmt.Errorf("survivors.txt is wrong about %s: add a test for a mutant that survives, and "+
			"delete the line of one that is killed", strings.Join(wrong, ", ")))
	}
	return errors.Join(errs...)
}

// test runs a suite once without a mutant, when it must pass, and once for each. It returns the survivors.
func (s suite) test(out io.Writer, binary string) (survived []string, err error) {
	failure, err := s.failure(binary, "")
	if err == nil && failure != "" {
		err = fmt.Errorf("%s of %s fails without a mutant", failure, s.dir)
	}
	if err != nil {
		return nil, err
	}
	for _, m := range s.mutants {
		begin := time.Now()
		failure, err := s.failure(binary, m.name)
		if err != nil {
			return nil, err
		}
		result := "killed by " + failure
		if failure == "" {
			result, survived = "SURVIVED", append(survived, m.name)
		}
		fmt.Fprintf(out, "  %-50s %5.1f s  %s\n", m.name, time.Since(begin).Seconds(), result)
	}
	return survived, nil
}

// choose returns the suites with only the mutants that have one of the words in their name or file.
func choose(words []string) []suite {
	var chosen []suite
	for _, s := range suites {
		s.mutants = slices.DeleteFunc(slices.Clone(s.mutants), func(m mutant) bool {
			return len(words) > 0 && !slices.ContainsFunc(words, func(word string) bool {
				return strings.Contains(m.name, word) || strings.Contains(m.file, word)
			})
		})
		if len(s.mutants) > 0 {
			chosen = append(chosen, s)
		}
	}
	return chosen
}

// build compiles the tests of a package unless an earlier suite has done so.
func build(dir, overlay, pkg string) (binary string, err error) {
	binary = filepath.Join(dir, strings.ReplaceAll(pkg, "/", "_")+".test")
	if _, err := os.Stat(binary); err == nil {
		return binary, nil
	}
	cmd := exec.Command("go", "test", "-c", "-overlay", overlay, "-o", binary, "./"+pkg)
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("build the tests of %s: %w", pkg, err)
	}
	return binary, nil
}

var failed = regexp.MustCompile(`(?m)^ *--- FAIL: (\S+)|^panic: (.*)`)

// failure returns the first test that fails with a mutant in effect; "" if all pass.
func (s suite) failure(binary, name string) (string, error) {
	cmd := exec.Command(binary, "-test.failfast", "-test.timeout", timeout.String(), "-test.run", s.run)
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), variable+"="+name)
	output, err := cmd.CombinedOutput()
	if bytes.Contains(output, []byte("no tests to run")) {
		return "", fmt.Errorf("no test of %s matches %q", s.dir, s.run)
	}
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) {
		return "", err
	}
	if found := failed.FindSubmatch(output); found != nil {
		return string(found[1]) + string(found[2]), nil
	}
	return err.Error(), nil
}

// writeOverlay writes each file with its mutants, and for its package a file with the functions that these use.
func writeOverlay(dir string, suites []suite) (string, error) {
	root, err := os.Getwd()
	if err != nil {
		return "", err
	}
	files := map[string][]mutant{}
	for _, s := range suites {
		for _, m := range s.mutants {
			files[m.file] = append(files[m.file], m)
		}
	}
	replace := map[string]string{}
	add := func(file string, text []byte) error {
		replacement := filepath.Join(dir, strings.ReplaceAll(file, "/", "_"))
		replace[filepath.Join(root, file)] = replacement
		return os.WriteFile(replacement, text, 0o600)
	}
	for _, file := range slices.Sorted(maps.Keys(files)) {
		text, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		if text, err = mutate(text, files[file]); err != nil {
			return "", fmt.Errorf("%s: %w", file, err)
		}
		switches := path.Join(path.Dir(file), "mutated.go")
		if err := errors.Join(add(file, text), add(switches, selector(text))); err != nil {
			return "", err
		}
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "overlay.json"), os.WriteFile(filepath.Join(dir, "overlay.json"), text, 0o600)
}

var (
	clause = regexp.MustCompile(`(?m)^package \w+`)
	word   = regexp.MustCompile(`\bmutated\b`)
)

// selector returns a file with the functions mutated and unless, for the package of a source file.
func selector(source []byte) []byte {
	return fmt.Appendf(nil, `%s

import "os"

var mutant = os.Getenv(%q)

func mutated(name string) bool { return mutant == name }

func unless[T any](off bool, value T) (result T) {
	if !off {
		result = value
	}
	return result
}
`, clause.Find(source), variable)
}

// mutate puts mutants into a source file. Their originals must not overlap.
func mutate(source []byte, mutants []mutant) ([]byte, error) {
	begins := map[int]mutant{}
	for _, m := range mutants {
		if n := bytes.Count(source, []byte(m.original)); n != 1 {
			return nil, fmt.Errorf("the original text of mutant %s occurs %d times, must be once", m.name, n)
		}
		begins[bytes.Index(source, []byte(m.original))] = m
	}
	var result []byte
	end := 0
	for _, begin := range slices.Sorted(maps.Keys(begins)) {
		m := begins[begin]
		if begin < end {
			return nil, fmt.Errorf("mutant %s overlaps with another", m.name)
		}
		result = append(result, source[end:begin]...)
		result = append(result, word.ReplaceAllString(m.text, fmt.Sprintf("mutated(%q)", m.name))...)
		end = begin + len(m.original)
	}
	return append(result, source[end:]...), nil
}
