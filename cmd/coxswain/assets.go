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
		Short: "Write etcd, kube-apiserver and kubectl, as envtest starts them, to a folder",
		Long: `Write etcd, kube-apiserver and kubectl to a folder: links to this program, which acts by the name
that it is called by, and to the kubectl-lite beside it. Test suites that use envtest then run with

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

// writeAssets writes the names that envtest starts to a folder, in the place of what has them.
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

// link makes a second name for a program: a symbolic link, a hard one or a copy, the first that the file system has.
// It replaces another file of that name at once, so that a suite that starts meanwhile finds the old or the new.
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
