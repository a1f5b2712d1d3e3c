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

// Reservations are written in the transactions of their Services, so that a crash cannot lose any. They are repaired
// all the same, because users can delete an IPAddress or restore half of an etcd: reservations that no Service holds
// are deleted, and those that a Service lacks are created again.

// repairInterval is the time between repairs; the first one is when a server starts.
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
	// Reservations are listed before Services: one whose Service is missing from the later list has no holder any more.
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

// free deletes the reservations whose Services do not hold them.
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

// reserveAgain writes each Service, as it is, together with the reservations that it lacks: if the Service was changed
// or deleted meanwhile, neither is written.
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

// ignoreRefusal drops the error of a commit for which another writer was quicker.
func ignoreRefusal(err error) error {
	var refused *storage.Refusal
	if errors.As(err, &refused) {
		return nil
	}
	return err
}
