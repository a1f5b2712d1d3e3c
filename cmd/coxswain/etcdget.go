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

// etcdGet is what `coxswain etcd get` is asked for.
type etcdGet struct {
	serverFlags
	snapshotFile string
	output       string
}

// newEtcdGet reads what the servers store, without a server. It is for the day on which none starts, and for one object
// of a backup.
func newEtcdGet() *cobra.Command {
	g := &etcdGet{}
	cmd := &cobra.Command{
		Use:   "get [GROUP/RESOURCE[/NAMESPACE][/NAME]]...",
		Short: "Print stored objects, decrypted, as kubectl can create them again",
		Long: `Print the objects that are stored at or below some paths, or all: those of a snapshot, of the etcd
cluster of --etcd-servers, or of the etcd embedded in the server of --data-dir, which must not run.
Secrets are printed. Nothing is changed, and the API server's authorization is not asked.

The core group is called core. With --encryption-provider-config encrypted objects are decrypted.
One that cannot be is told of, the others are printed, and the command fails.`,
		Example: `  coxswain etcd get --snapshot backup.db -o name
  coxswain etcd get --snapshot backup.db core/secrets/default/db \
      --encryption-provider-config encryption.yaml | kubectl create -f -`,
		RunE: func(cmd *cobra.Command, paths []string) error {
			backend, done, err := g.open(cmd.Context())
			if err != nil {
				return err
			}
			out := &objectPrinter{to: cmd.OutOrStdout(), format: g.output}
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

// open opens what is to be read. done undoes it.
func (g *etcdGet) open(ctx context.Context) (b storage.Backend, done func() error, err error) {
	switch g.output {
	case "yaml", "json", "name":
	default:
		return nil, nil, fmt.Errorf("--output: %q is none of yaml, json and name", g.output)
	}
	before, err := g.prepare()
	if err != nil {
		return nil, nil, err
	}
	if b, err = g.openEtcd(ctx); err == nil {
		b, _, err = g.encrypt(ctx, b)
	}
	if err != nil {
		return nil, nil, errors.Join(err, before())
	}
	return b, func() error { return errors.Join(b.Close(), before()) }, nil
}

// prepare sees to the folder of an embedded etcd. That of a snapshot is restored for the time of the command.
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

// objectPrinter prints stored objects as they come.
type objectPrinter struct {
	to         io.Writer
	format     string
	unreadable []error
}

// printAll prints what is at or below the paths; everything if there are none.
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
			return fmt.Errorf("nothing is stored at %s", path)
		}
	}
	return errors.Join(p.unreadable...)
}

// page is how many objects are held in memory.
const page = 500

// print returns how many objects there are at or below a path.
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

// below reports whether an object's key is a path or below it. Servers keep notes to each other beside the objects.
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
		p.unreadable = append(p.unreadable, fmt.Errorf("%s is encrypted (%s): --encryption-provider-config has to say "+
			"how", kv.Path, storage.EncryptionOf(kv.Value)))
		return nil
	}
	var err error
	switch p.format {
	case "name":
		_, err = fmt.Fprintln(p.to, kv.Path)
	case "json":
		_, err = fmt.Fprintf(p.to, "%s\n", kv.Value)
	default:
		var text []byte
		if text, err = yaml.JSONToYAML(kv.Value); err != nil {
			return fmt.Errorf("%s: %w", kv.Path, err)
		}
		_, err = fmt.Fprintf(p.to, "---\n%s", text)
	}
	return err
}
