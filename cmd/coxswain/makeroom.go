package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/coxswain-dev/coxswain/storage"
	"github.com/coxswain-dev/coxswain/storage/etcd"
)

// newMakeRoom is what an embedded etcd does by itself when it has reached its quota, for an etcd cluster.
func newMakeRoom() *cobra.Command {
	f := &serverFlags{}
	cmd := &cobra.Command{
		Use:   "make-room",
		Short: "Have an etcd cluster that has reached its quota accept writes again",
		Long: `Drop etcd's history, give back the space of what is dropped and deleted, one member after the
other, and end the alarm NOSPACE. Delete what is not needed first: deletions are accepted all the
time. Clients whose watches lag behind list anew. Each member stands still for a moment.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(f.etcd.Servers) == 0 {
				return errors.New("--etcd-servers: an embedded etcd makes room by itself")
			}
			backend, err := etcd.DialExternal(f.etcd)
			if err != nil {
				return err
			}
			return errors.Join(makeRoom(cmd.Context(), backend, cmd.OutOrStdout()), backend.Close())
		},
	}
	f.addEtcd(cmd.Flags())
	return cmd
}

func makeRoom(ctx context.Context, backend storage.Backend, out io.Writer) error {
	before, err := backend.Status(ctx)
	if err != nil {
		return err
	}
	if err := backend.Compact(ctx, before.Revision); err != nil && !errors.Is(err, storage.ErrExpired) {
		return err
	}
	if err := backend.Defragment(ctx); err != nil {
		return err
	}
	if err := backend.Disarm(ctx, storage.NoSpace); err != nil {
		return err
	}
	after, err := backend.Status(ctx)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%d bytes, of a quota of %d; before: %d\n", after.Size, after.Quota, before.Size)
	return err
}
