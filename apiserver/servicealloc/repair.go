package servicealloc

import (
	"context"
	"errors"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/coxswain-dev/coxswain/apiserver/encoding"
	"github.com/coxswain-dev/coxswain/storage"
)

// Reservations are written in the transactions of their Services, so a crash cannot lose any. But users can delete
// an IPAddress or restore part of an etcd. Therefore Run deletes reservations that no Service holds and recreates
// missing ones.

// repairInterval is the time between repairs. The first one runs when a server starts.
const repairInterval = 3 * time.Minute

// Run repairs reservations until ctx ends.
func (a *Allocator) Run(ctx context.Context) {
	if a.service == nil {
		return
	}
	tick := time.NewTicker(repairInterval)
	defer tick.Stop()
	for {
		if err := a.repair(ctx); err != nil && ctx.Err() == nil {
			a.Log.Warn("repairing the reservations of Services", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (a *Allocator) repair(ctx context.Context) error {
	// Services are listed after the reservations. A reservation whose Service is missing from that later list is
	// therefore stale.
	reservations := map[storage.Key]*storage.Object{}
	for _, collection := range []string{a.address.Collection(), nodePorts} {
		list, err := a.reservations(collection).List(ctx, storage.ListRequest{})
		if err != nil {
			return err
		}
		for _, o := range list.Items {
			reservations[o.Key] = o
		}
	}
	services, err := a.Objects.Collection(a.service).List(ctx, storage.ListRequest{})
	if err != nil {
		return err
	}
	holders := map[storage.Key][]string{}
	lacking := map[*storage.Object][]storage.Key{}
	for _, o := range services.Items {
		service, err := decode[corev1.Service](o)
		if err != nil {
			return err
		}
		for _, key := range a.keysOf(service) {
			holders[key] = append(holders[key], o.Key.Namespace+"/"+o.Key.Name)
			if reservations[key] == nil {
				lacking[o] = append(lacking[o], key)
			}
		}
	}
	if err := a.free(ctx, reservations, holders); err != nil {
		return err
	}
	return a.reserveAgain(ctx, lacking)
}

// free deletes the reservations that their Service does not hold.
func (a *Allocator) free(ctx context.Context, reservations map[storage.Key]*storage.Object,
	holders map[storage.Key][]string) error {
	for key, o := range reservations {
		holder, err := holderOf(o)
		if err != nil {
			return err
		}
		if holder == "" || slices.Contains(holders[key], holder) {
			continue
		}
		_, err = a.Objects.Commit(ctx, storage.Write{Op: storage.Delete, Key: key, Expect: o.Revision})
		if ignoreRefusal(err) != nil {
			return err
		}
		a.Log.Info("freed a reservation that no Service holds", "reservation", key.String(), "holder", holder)
	}
	return nil
}

// reserveAgain recreates the missing reservations of each Service in a transaction that also writes the unchanged
// Service. The transaction fails if the Service was changed or deleted in the meantime.
func (a *Allocator) reserveAgain(ctx context.Context, lacking map[*storage.Object][]storage.Key) error {
	for o, keys := range lacking {
		service, err := decode[corev1.Service](o)
		if err != nil {
			return err
		}
		writes, err := a.writes(ctx, service, nil, keys)
		if err != nil {
			return err
		}
		doc, err := encoding.Encode(a.service, service)
		if err != nil {
			return err
		}
		writes = append(writes, storage.Write{Op: storage.Update, Key: o.Key, Value: doc, Expect: o.Revision})
		if _, err = a.Objects.Commit(ctx, writes...); ignoreRefusal(err) != nil {
			return err
		}
		a.Log.Info("reserved again what a Service holds", "service", o.Key.String(), "reservations", len(keys),
			"error", err)
	}
	return nil
}

// ignoreRefusal returns nil for the error of a commit that lost to another writer.
func ignoreRefusal(err error) error {
	var refused *storage.Refusal
	if errors.As(err, &refused) {
		return nil
	}
	return err
}
