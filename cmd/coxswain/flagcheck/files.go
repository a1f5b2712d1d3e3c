package flagcheck

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"

	"github.com/spf13/pflag"

	"github.com/coxswain-dev/coxswain/cmd/coxswain/usage"
)

// files are patterns of the names of flags that name files to read. notFiles are exceptions.
var (
	files = []string{"*-file", "*-cafile", "*-certfile", "*-keyfile", "kubeconfig", "*-kubeconfig", "*config",
		"*-certificate-authority", "kubelet-client-certificate", "kubelet-client-key", "encryption-provider-config",
		"snapshot"}
	notFiles = []string{"runtime-config"}
)

// pairs are the flags of certificates and their keys. One without the other is a mistake.
var pairs = [][2]string{
	{"tls-cert-file", "tls-private-key-file"}, {"etcd-certfile", "etcd-keyfile"},
	{"kubelet-client-certificate", "kubelet-client-key"}, {"proxy-client-cert-file", "proxy-client-key-file"},
	{"cluster-signing-cert-file", "cluster-signing-key-file"},
}

// namesFile reports whether a flag names a file to read.
func namesFile(f *pflag.Flag) bool {
	matches := func(patterns []string) bool {
		for _, pattern := range patterns {
			if match, _ := path.Match(pattern, f.Name); match { // the patterns are well-formed
				return true
			}
		}
		return false
	}
	return f.Annotations[usage.Accepted] == nil && matches(files) && !matches(notFiles)
}

// checkFiles returns an error, with the flag's name, for each flag on the command line that names a file that cannot be
// read, and for each certificate without its key. Without it, a server would find out after it has started etcd.
func checkFiles(set *pflag.FlagSet) error {
	var failures []error
	set.Visit(func(f *pflag.Flag) {
		if !namesFile(f) {
			return
		}
		names := []string{f.Value.String()}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			names = list.GetSlice()
		}
		for _, name := range names {
			if err := checkFile(name); err != nil {
				failures = append(failures, fmt.Errorf("--%s: %w", f.Name, err))
			}
		}
	})
	for _, pair := range pairs {
		cert, key := given(set, pair[0]), given(set, pair[1])
		switch {
		case cert && !key:
			failures = append(failures, fmt.Errorf("--%s needs --%s", pair[0], pair[1]))
		case key && !cert:
			failures = append(failures, fmt.Errorf("--%s needs --%s", pair[1], pair[0]))
		}
	}
	return errors.Join(failures...)
}

func given(set *pflag.FlagSet, name string) bool {
	f := set.Lookup(name)
	return f != nil && f.Value.String() != ""
}

// checkFile returns an error if a file cannot be read. A name is not opened if it is no regular file: a pipe gives its
// content to the first reader only.
func checkFile(name string) error {
	if name == "" || name == "-" {
		return nil
	}
	info, err := os.Stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("the file %s does not exist", name)
	case err != nil:
		return fmt.Errorf("the file %s cannot be read: %w", name, errors.Unwrap(err))
	case info.IsDir():
		return fmt.Errorf("%s is a folder, not a file", name)
	case !info.Mode().IsRegular():
		return nil
	}
	f, err := os.Open(name)
	if err != nil {
		return fmt.Errorf("the file %s cannot be read: %w", name, errors.Unwrap(err))
	}
	return f.Close()
}
