package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// testTimeout stops a suite that hangs.
const testTimeout = "20m"

// testBinary is a compiled suite.
type testBinary struct {
	suite
	file    string
	workDir string // working directory
	version string // version of the project
	ginkgo  bool   // whether it has Ginkgo's flags
}

// build compiles a suite into dir.
func (s suite) build(ctx context.Context, dir string) (testBinary, error) {
	name := path.Join(s.module, s.dir)
	b := testBinary{suite: s, file: filepath.Join(dir, path.Base(name)+".test")} // some tests expect the program's name
	var err error
	if b.version, err = s.goCommand(ctx, "off", "list", "-m", "-f={{.Version}}", s.module); err != nil {
		return b, err
	}
	workspace, err := s.workspace(ctx)
	if err != nil {
		return b, err
	}
	if b.workDir, err = s.goCommand(ctx, workspace, "list", "-f={{.Dir}}", name); err != nil {
		return b, err
	}
	if s.atRoot {
		if b.workDir, err = s.goCommand(ctx, "off", "env", "GOMODCACHE"); err != nil {
			return b, err
		}
	}
	if _, err := s.goCommand(ctx, workspace, "test", "-c", "-o", b.file, name); err != nil {
		return b, err
	}
	packages, err := s.goCommand(ctx, workspace, "list", "-test", "-deps", name)
	b.ginkgo = slices.Contains(strings.Fields(packages), "github.com/onsi/ginkgo/v2")
	return b, err
}

// workspace writes the workspace file for a project's suites, and returns its path.
func (p project) workspace(ctx context.Context) (string, error) {
	repository, err := filepath.Abs(".")
	if err != nil {
		return "", err
	}
	dir := filepath.Join(repository, ".tools", "upstream", p.name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	use := []string{repository, filepath.Join(repository, root, p.name)}
	if len(p.replaced) > 0 {
		use = append(use, filepath.Join(dir, "module"))
		if err := p.copyModule(ctx, filepath.Join(dir, "module")); err != nil {
			return "", err
		}
	}
	pins, err := p.pins(ctx, filepath.Join(repository, "go.mod"))
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, "go.work")
	text := fmt.Sprintf("go 1.26.0\n\nuse (\n\t%s\n)\n\nreplace (\n\t%s\n)\n",
		strings.Join(use, "\n\t"), strings.Join(pins, "\n\t"))
	return file, os.WriteFile(file, []byte(text), 0o644)
}

// pins returns a replacement for each module that this repository requires, with the required version. Otherwise, if a
// project required a newer version, all packages that depend on the module would be compiled again.
func (p project) pins(ctx context.Context, file string) (pins []string, err error) {
	text, err := p.goCommand(ctx, "off", "mod", "edit", "-json", file)
	if err != nil {
		return nil, err
	}
	var requirements struct {
		Require []struct{ Path, Version string }
	}
	if err := json.Unmarshal([]byte(text), &requirements); err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	for _, module := range requirements.Require {
		if module.Path != p.module {
			pins = append(pins, fmt.Sprintf("%s => %[1]s %s", module.Path, module.Version))
		}
	}
	return pins, nil
}

// copyModule copies the project's module from the module cache to target, with the replaced files.
func (p project) copyModule(ctx context.Context, target string) error {
	source, err := p.goCommand(ctx, "off", "list", "-m", "-f={{.Dir}}", p.module)
	if err != nil {
		return err
	}
	if err := os.RemoveAll(target); err != nil {
		return err
	}
	if err := os.CopyFS(target, os.DirFS(source)); err != nil {
		return err
	}
	for theirs, ours := range p.replaced {
		content, err := os.ReadFile(filepath.Join(root, p.name, ours))
		if err != nil {
			return err
		}
		if err := os.Remove(filepath.Join(target, theirs)); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(target, theirs), content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// goCommand runs the go command in the project's folder, and returns its output.
func (p project) goCommand(ctx context.Context, workspace string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = filepath.Join(root, p.name)
	cmd.Env = append(os.Environ(), "GOWORK="+workspace)
	var output, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &problems
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("go %s: %w: %s%s", strings.Join(args, " "), err, problems.Bytes(), output.Bytes())
	}
	return strings.TrimSpace(output.String()), nil
}

// run runs the tests. It writes their output to the file log of the project's folder below .tools while they run. Their
// temporary files are in a separate folder, which it removes afterwards. It kills processes that the tests leave
// behind.
func (b testBinary) run(ctx context.Context, assets string, skip []string) (results, error) {
	temporary, err := os.MkdirTemp("", "upstream")
	if err != nil {
		return results{}, err
	}
	defer os.RemoveAll(temporary)
	defer killAll("TMPDIR=" + temporary)
	report := filepath.Join(filepath.Dir(b.file), "report.json")
	if err := os.RemoveAll(report); err != nil {
		return results{}, err
	}
	args := []string{"tool", "test2json", "-t", b.file, "-test.v=test2json", "-test.timeout=" + testTimeout}
	if len(skip) > 0 {
		args = append(args, "-test.skip=^("+strings.Join(skip, "|")+")$")
	}
	if b.ginkgo {
		args = append(args, "-ginkgo.no-color", "-ginkgo.json-report="+report)
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = b.workDir
	cmd.Env = append(os.Environ(), "GOWORK=off", "KUBEBUILDER_ASSETS="+assets, "KUBECONFIG=", "TMPDIR="+temporary)
	cmd.Cancel = func() error {
		killAll("TMPDIR=" + temporary)
		return cmd.Process.Kill()
	}
	log, err := os.Create(filepath.Join(".tools", "upstream", b.name, "log"))
	if err != nil {
		return results{}, err
	}
	defer log.Close()
	var output, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = io.MultiWriter(&output, log), &problems
	err = cmd.Run()
	if ctx.Err() != nil {
		return results{}, ctx.Err()
	}
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		return results{}, err
	}
	r, err := readEvents(&output)
	if err != nil {
		return r, fmt.Errorf("%w: %s", err, problems.Bytes())
	}
	r.version, r.run, r.failed = b.version, r.run+len(skip), r.failed+len(skip)
	if text, err := os.ReadFile(report); err == nil {
		err = r.addSpecs(text)
		return r, err
	}
	return r, nil
}

// killAll kills the processes with an entry in their environment. An interrupted suite leaves servers behind, each in a
// process group of its own. Only Linux shows the environments of processes.
func killAll(entry string) {
	files, _ := filepath.Glob("/proc/[0-9]*/environ") // the pattern is well-formed
	for _, file := range files {
		environment, err := os.ReadFile(file)
		if err != nil {
			continue // the process has ended, or is another user's
		}
		if !slices.Contains(strings.Split(string(environment), "\x00"), entry) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}
