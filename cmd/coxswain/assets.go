package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
)

func newAssets() *cobra.Command {
	return &cobra.Command{
		Use:   "assets DIR",
		Short: "Write the programs etcd, kube-apiserver and kubectl to a folder, for envtest",
		Long: `Write etcd, kube-apiserver and kubectl to a folder: links to this program, which behaves according
to the name that it is called by, and to the kubectl-lite beside it. Test suites that use envtest then
run with

  KUBEBUILDER_ASSETS=DIR go test ./...

and, with controllers, scheduler and a Node beside the API server, with COXSWAIN_ASSETS=full as well.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			self, err := os.Executable()
			if err != nil {
				return err
			}
			dir, err := filepath.Abs(args[0])
			if err != nil {
				return err
			}
			if err := writeAssets(self, dir); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "KUBEBUILDER_ASSETS=%s\n", shellWord(dir))
			return err
		},
	}
}

// writeAssets links the programs that envtest starts into a folder, and replaces existing ones.
func writeAssets(coxswain, dir string) error {
	coxswain, err := filepath.EvalSymlinks(coxswain)
	if err != nil {
		return err
	}
	kubectl := filepath.Join(filepath.Dir(coxswain), "kubectl-lite")
	if _, err := os.Stat(kubectl); err != nil {
		return fmt.Errorf("kubectl is kubectl-lite, which must be beside this program: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, asset := range []struct{ name, program string }{
		{"etcd", coxswain}, {"kube-apiserver", coxswain}, {"kubectl", kubectl},
	} {
		if err := link(asset.program, filepath.Join(dir, asset.name)); err != nil {
			return err
		}
	}
	return nil
}

// link makes a symbolic link to a program or, if the file system has none, a hard link or a copy. It replaces an
// existing file atomically, so that a test suite that starts meanwhile finds either the old or the new one.
func link(program, path string) error {
	next := path + ".new"
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	err := os.Symlink(program, next)
	if err != nil {
		err = os.Link(program, next)
	}
	if err != nil {
		err = copyProgram(program, next)
	}
	if err != nil {
		return err
	}
	return os.Rename(next, path)
}

func copyProgram(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
