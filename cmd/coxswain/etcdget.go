package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/coxswain-dev/coxswain/cmd/coxswain/datadir"
	"github.com/coxswain-dev/coxswain/storage"
	"github.com/coxswain-dev/coxswain/storage/etcd"
)

// etcdGet has the flags of `coxswain etcd get`.
type etcdGet struct {
	serverFlags
	snapshotFile string
	output       string
}

// newEtcdGet returns the command that reads stored objects without a server. It helps when no server starts, and to
// restore single objects of a backup.
func newEtcdGet() *cobra.Command {
	g := &etcdGet{}
	cmd := &cobra.Command{
		Use:   "get [GROUP/RESOURCE[/NAMESPACE][/NAME]]...",
		Short: "Print stored objects, decrypted, as kubectl can create them again",
		Long: `Print the objects that are stored at or below paths, or all objects, of a snapshot, of the etcd
cluster of --etcd-servers, or of the etcd embedded in the server of --data-dir, which must not run.
The output contains Secrets. The command changes no data, and checks no authorization.

The core group is called core. With --encryption-provider-config, encrypted objects are decrypted.
If one cannot be decrypted, the command prints the others and fails with an error that names it.`,
		Example: `  coxswain etcd get --snapshot backup.db -o name
  coxswain etcd get --snapshot backup.db core/secrets/default/db \
      --encryption-provider-config encryption.yaml | kubectl create -f -`,
		RunE: func(cmd *cobra.Command, paths []string) error {
			backend, done, err := g.open(cmd.Context())
			if err != nil {
				return err
			}
			out := &objectPrinter{out: cmd.OutOrStdout(), format: g.output}
			return errors.Join(out.printAll(cmd.Context(), backend, paths), done())
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&g.snapshotFile, "snapshot", "", "read a file of `coxswain etcd snapshot save`")
	fs.StringVarP(&g.output, "output", "o", "yaml", "yaml, json (a document in each line) or name (paths)")
	addDataDir(fs, &g.dataDir)
	g.addEtcd(fs)
	g.encryption.addFile(fs)
	return cmd
}

// open opens the backend that the flags name. The caller calls done to close it and to remove temporary files.
func (g *etcdGet) open(ctx context.Context) (b storage.Backend, done func() error, err error) {
	switch g.output {
	case "yaml", "json", "name":
	default:
		return nil, nil, fmt.Errorf("--output: %q is none of yaml, json and name", g.output)
	}
	cleanUp, err := g.prepare()
	if err != nil {
		return nil, nil, err
	}
	if b, err = g.openEtcd(ctx); err == nil {
		b, _, err = g.encrypt(ctx, b)
	}
	if err != nil {
		return nil, nil, errors.Join(err, cleanUp())
	}
	return b, func() error { return errors.Join(b.Close(), cleanUp()) }, nil
}

// prepare locks the data directory of an embedded etcd, or restores a snapshot into a temporary one. The caller calls
// done to unlock or remove it.
func (g *etcdGet) prepare() (done func() error, err error) {
	switch {
	case len(g.etcd.Servers) > 0 && g.snapshotFile != "":
		return nil, errors.New("--snapshot: not together with --etcd-servers")
	case len(g.etcd.Servers) > 0:
		return func() error { return nil }, nil
	case g.snapshotFile != "":
		if g.dataDir, err = os.MkdirTemp("", "coxswain-snapshot-"); err != nil {
			return nil, err
		}
		done = func() error { return os.RemoveAll(g.dataDir) }
		if err := etcd.RestoreSnapshot(g.snapshotFile, filepath.Join(g.dataDir, "etcd")); err != nil {
			return nil, errors.Join(err, done())
		}
		return done, nil
	}
	if _, err := os.Stat(filepath.Join(g.dataDir, "etcd")); err != nil {
		return nil, fmt.Errorf("--data-dir: no etcd is embedded there: %w", err)
	}
	unlock, err := datadir.Lock(g.dataDir)
	if err != nil {
		return nil, fmt.Errorf("%w: save a snapshot and read that", err)
	}
	return func() error { unlock(); return nil }, nil
}

// objectPrinter prints stored objects while it reads them.
type objectPrinter struct {
	out        io.Writer
	format     string
	unreadable []error // errors of objects that cannot be decrypted
}

// printAll prints the objects at or below the paths, or all objects if there are no paths.
func (p *objectPrinter) printAll(ctx context.Context, b storage.Backend, paths []string) error {
	if len(paths) == 0 {
		paths = []string{""}
	}
	for _, path := range paths {
		path = strings.Trim(path, "/")
		n, err := p.print(ctx, b, path)
		if err != nil {
			return err
		}
		if n == 0 && path != "" {
			return fmt.Errorf("no object is stored at %s", path)
		}
	}
	return errors.Join(p.unreadable...)
}

// page is how many objects are read at a time.
const page = 500

// print prints the objects at or below a path, and returns their number.
func (p *objectPrinter) print(ctx context.Context, b storage.Backend, path string) (n int, err error) {
	r := storage.RangeRequest{Prefix: path, Limit: page}
	for {
		answer, err := b.Range(ctx, r)
		if err != nil {
			return n, err
		}
		for _, kv := range answer.KVs {
			r.Start, r.Revision = kv.Path+"\x00", answer.Revision
			if !below(kv.Path, path) {
				continue
			}
			n++
			if err := p.one(&kv); err != nil {
				return n, err
			}
		}
		if !answer.More {
			return n, nil
		}
	}
}

// below reports whether a key is that of an object at or below a path. Keys in claims/ are not objects: servers
// coordinate allocations with them.
func below(key, path string) bool {
	rest, ok := strings.CutPrefix(key, path)
	return ok && (rest == "" || path == "" || rest[0] == '/') && !strings.HasPrefix(key, "claims/")
}

func (p *objectPrinter) one(kv *storage.KV) error {
	if kv.Err != nil {
		p.unreadable = append(p.unreadable, fmt.Errorf("%s cannot be read: %w", kv.Path, kv.Err))
		return nil
	}
	if bytes.HasPrefix(kv.Value, []byte(storage.EncryptedPrefix)) {
		p.unreadable = append(p.unreadable, fmt.Errorf("%s is encrypted (%s): decrypting it needs "+
			"--encryption-provider-config", kv.Path, storage.EncryptionOf(kv.Value)))
		return nil
	}
	var err error
	switch p.format {
	case "name":
		_, err = fmt.Fprintln(p.out, kv.Path)
	case "json":
		_, err = fmt.Fprintf(p.out, "%s\n", kv.Value)
	default:
		var text []byte
		if text, err = yaml.JSONToYAML(kv.Value); err != nil {
			return fmt.Errorf("%s: %w", kv.Path, err)
		}
		_, err = fmt.Fprintf(p.out, "---\n%s", text)
	}
	return err
}
