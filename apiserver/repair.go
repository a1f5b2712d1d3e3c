package apiserver

import (
	"context"
	"errors"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/storage"
)

// Claims come and go with their Services in one transaction, so that nothing can be lost by a
// crash. They are made right all the same, for people can delete an IPAddress, and can
// restore half of an etcd: claims that no Service holds are freed, and Services whose claims
// are gone claim again.

// repairInterval is how often that is looked at; the first time is when a server starts.
const repairInterval = 3 * time.Minute

func (s *Server) repairClaims(ctx context.Context) error {
	if !s.kinds.complete() {
		return nil
	}
	// First the claims, then the Services: a claim that is in the first list, whose Service
	// is not in the second, has no holder any more.
	claims := map[storage.Key]*storage.Object{}
	for _, collection := range []string{s.kinds.ipAddress.Collection(), nodePortClaims} {
		list, err := s.claims(collection).List(ctx, storage.ListRequest{})
		if err != nil {
			return err
		}
		for _, o := range list.Items {
			claims[o.Key] = o
		}
	}
	services, err := s.collection(s.kinds.service).List(ctx, storage.ListRequest{})
	if err != nil {
		return err
	}
	holds := map[storage.Key][]string{}
	lacking := map[*storage.Object][]storage.Key{}
	for _, o := range services.Items {
		obj, err := decode(s.kinds.service, o)
		if err != nil {
			return err
		}
		for _, key := range s.claimsOf(s.kinds.service, obj) {
			holds[key] = append(holds[key], o.Key.Namespace+"/"+o.Key.Name)
			if claims[key] == nil {
				lacking[o] = append(lacking[o], key)
			}
		}
	}
	if err := s.freeClaims(ctx, claims, holds); err != nil {
		return err
	}
	return s.claimAgain(ctx, lacking)
}

// freeClaims deletes the claims of Services that do not hold them.
func (s *Server) freeClaims(ctx context.Context, claims map[storage.Key]*storage.Object, holds map[storage.Key][]string) error {
	for key, o := range claims {
		holder, err := holderOf(o)
		if err != nil {
			return err
		}
		if holder == "" || slices.Contains(holds[key], holder) {
			continue
		}
		_, err = s.Store.Commit(ctx, storage.Write{Op: storage.Delete, Key: key, Expect: o.Revision})
		if ignoreRefusal(err) != nil {
			return err
		}
		s.Log.Info("freed what no Service holds", "claim", key.String(), "holder", holder)
	}
	return nil
}

// claimAgain writes each Service, as it is, together with the claims that it lacks: if it was
// changed or deleted meanwhile, neither is written.
func (s *Server) claimAgain(ctx context.Context, lacking map[*storage.Object][]storage.Key) error {
	for o, keys := range lacking {
		obj, err := decode(s.kinds.service, o)
		if err != nil {
			return err
		}
		service := obj.(*corev1.Service)
		writes, err := s.claimWrites(ctx, service, nil, keys)
		if err != nil {
			return err
		}
		doc, err := encode(s.kinds.service, api.Object(service))
		if err != nil {
			return err
		}
		writes = append(writes, storage.Write{Op: storage.Update, Key: o.Key, Value: doc, Expect: o.Revision})
		if _, err = s.Store.Commit(ctx, writes...); ignoreRefusal(err) != nil {
			return err
		}
		s.Log.Info("claimed again what a Service holds", "service", o.Key.String(), "claims", len(keys), "error", err)
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
