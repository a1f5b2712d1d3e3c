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

// newMakeRoom returns the command that frees space in an etcd cluster that has reached its quota. An embedded etcd does
// the same automatically.
func newMakeRoom() *cobra.Command {
	f := &serverFlags{}
	cmd := &cobra.Command{
		Use:   "make-room",
		Short: "Free space in an etcd cluster that has reached its quota, so that it accepts writes again",
		Long: `Compact etcd's history, defragment one member after the other, and clear the alarm NOSPACE.
Delete unneeded objects first: etcd accepts deletions all the time. Clients whose watches lag behind
list again. Each member pauses for a moment.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(f.etcd.Servers) == 0 {
				return errors.New("--etcd-servers: an embedded etcd makes room automatically")
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
