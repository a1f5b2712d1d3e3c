package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/coxswain-dev/coxswain/cmd/coxswain/datadir"
	"github.com/coxswain-dev/coxswain/storage"
	"github.com/coxswain-dev/coxswain/storage/etcd"
)

// newSnapshot returns the command `coxswain etcd snapshot`, for both embedded and external etcd.
func newSnapshot() *cobra.Command {
	cmd := &cobra.Command{Use: "snapshot", Short: "Save, restore and check snapshots of etcd", Args: cobra.NoArgs}
	cmd.AddCommand(newSnapshotSave(), newSnapshotRestore(), newSnapshotStatus())
	return cmd
}

func newSnapshotSave() *cobra.Command {
	f := &serverFlags{}
	cmd := &cobra.Command{
		Use:   "save FILE",
		Short: "Save all data of etcd, whether it runs or not",
		Long: `Save all data of etcd at one revision, with a checksum.

With --etcd-servers it is the data of an etcd cluster; otherwise of the etcd embedded in the server
of --data-dir, whether that runs or not.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			status, err := saveSnapshot(args[0], func(w io.Writer) error { return f.snapshot(cmd.Context(), w) })
			if err == nil {
				report(cmd, args[0], status)
			}
			return err
		},
	}
	addDataDir(cmd.Flags(), &f.dataDir)
	f.addEtcd(cmd.Flags())
	return cmd
}

func addDataDir(fs *pflag.FlagSet, dir *string) {
	fs.StringVar(dir, "data-dir", "./.coxswain", "data directory of the server that etcd is embedded in")
}

// saveSnapshot writes to a temporary file in the same folder, syncs and checks it, and then renames it. An existing
// file must be a regular one.
func saveSnapshot(file string, take func(io.Writer) error) (*etcd.SnapshotStatus, error) {
	if err := replaceable(file); err != nil {
		return nil, err
	}
	f, err := os.CreateTemp(filepath.Dir(file), filepath.Base(file)+".part-*") // mode 0600: it contains Secrets
	if err != nil {
		return nil, err
	}
	defer os.Remove(f.Name())
	if err := errors.Join(take(f), f.Sync(), f.Close()); err != nil {
		return nil, err
	}
	status, err := etcd.ReadSnapshot(f.Name())
	if err != nil {
		return nil, err
	}
	if err := replaceable(file); err != nil {
		return nil, err
	}
	return status, os.Rename(f.Name(), file)
}

// replaceable returns an error if the path exists and is not a regular file, such as a device, a link or a folder.
func replaceable(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s exists and is not a regular file (%s): it is not replaced", path, info.Mode())
	}
	return err
}

// snapshot takes a snapshot of the etcd that the flags name.
func (f *serverFlags) snapshot(ctx context.Context, w io.Writer) error {
	if len(f.etcd.Servers) == 0 {
		if conn, err := net.Dial("unix", snapshotSocket(f.dataDir)); err == nil {
			defer conn.Close()
			stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
			defer stop()
			_, err := io.Copy(w, conn) // its checksum shows whether it is complete
			return err
		}
		if _, err := os.Stat(filepath.Join(f.dataDir, "etcd")); err != nil {
			return fmt.Errorf("--data-dir: no etcd is embedded there: %w", err)
		}
		unlock, err := datadir.Lock(f.dataDir)
		if err != nil {
			return err
		}
		defer unlock()
	}
	backend, err := f.openEtcd(ctx)
	if err != nil {
		return err
	}
	return errors.Join(storage.Snapshot(ctx, backend, w), backend.Close())
}

func newSnapshotRestore() *cobra.Command {
	var dataDir, etcdDir string
	cmd := &cobra.Command{
		Use:   "restore FILE",
		Short: "Restore a snapshot into a data directory",
		Long: `Restore a snapshot into a data directory, which must not contain etcd's data yet.

Without --etcd-data-dir, the data directory is that of the etcd embedded in the server of
--data-dir. With it, the data directory is that of a cluster's member: restore the same file for
each member, and start the members with --data-dir, --name, --initial-cluster and
--initial-cluster-state=new.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if etcdDir == "" {
				unlock, err := datadir.Lock(dataDir)
				if err != nil {
					return err
				}
				defer unlock()
				etcdDir = filepath.Join(dataDir, "etcd")
			}
			if err := etcd.RestoreSnapshot(args[0], etcdDir); err != nil {
				return err
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s restored into %s\n", args[0], etcdDir)
			return err
		},
	}
	addDataDir(cmd.Flags(), &dataDir)
	cmd.Flags().StringVar(&etcdDir, "etcd-data-dir", "", "data directory of a member of an etcd cluster")
	return cmd
}

func newSnapshotStatus() *cobra.Command {
	return &cobra.Command{
		Use:   "status FILE",
		Short: "Check a snapshot and print its revision and size",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			status, err := etcd.ReadSnapshot(args[0])
			if err == nil {
				report(cmd, args[0], status)
			}
			return err
		},
	}
}

func report(cmd *cobra.Command, file string, s *etcd.SnapshotStatus) {
	_, _ = fmt.Fprintf(cmd.OutOrStdout(), "%s is intact: revision %d, %d keys, %d bytes\n", file, s.Revision,
		s.Keys, s.Size)
}

// snapshotSocket returns the path of the socket that a server with an embedded etcd sends snapshots on. The embedded
// etcd has no listener of its own. Only users who can access the data directory can connect.
func snapshotSocket(dataDir string) string { return filepath.Join(dataDir, "snapshot.sock") }

// snapshotPatience is how long a write to a client may block. During a snapshot etcd cannot free pages.
const snapshotPatience = time.Minute

// patient is a connection with a deadline for each write.
type patient struct {
	net.Conn
	patience time.Duration
}

func (p patient) Write(b []byte) (int, error) {
	if err := p.SetWriteDeadline(time.Now().Add(p.patience)); err != nil {
		return 0, err
	}
	return p.Conn.Write(b)
}

// serveSnapshots sends a snapshot to each client that connects, until stop is called.
func serveSnapshots(ctx context.Context, dataDir string, store *storage.Store) (stop func(), err error) {
	socket := snapshotSocket(dataDir)
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) { // of a server that was killed
		return nil, err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(socket, 0o600); err != nil {
		_ = listener.Close()
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer conn.Close()
				hangUp := context.AfterFunc(ctx, func() { _ = conn.Close() })
				defer hangUp()
				if err := store.Snapshot(ctx, patient{conn, snapshotPatience}); err != nil {
					slog.Warn("failed to send a snapshot", "err", err)
				}
			})
		}
	})
	return func() {
		cancel()
		_ = listener.Close()
		serving.Wait()
	}, nil
}
