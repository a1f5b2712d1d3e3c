package apiserver

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/encoding"
	"github.com/coxswain-dev/coxswain/apiserver/query"
	"github.com/coxswain-dev/coxswain/apiserver/strategy"
	"github.com/coxswain-dev/coxswain/storage"
)

// generateAttempts limits the names that are generated for one object (KEP-4420).
const generateAttempts = 8

// create answers a POST of a new object.
func (s *Server) create(w http.ResponseWriter, r *request) error {
	if err := query.CheckWrite(r.query, "CreateOptions"); err != nil {
		return err
	}
	obj, warnings, err := s.readObject(w, r)
	if err != nil {
		return err
	}
	wr := beginWrite(r, warnings)
	created, err := s.createObject(r.Context(), wr, obj)
	r.audit().Named(wr.name)
	if err != nil {
		return wr.on(err)
	}
	return s.writeWritten(w, wr, http.StatusCreated, created)
}

// createObject admits and stores a decoded object. It retries with another name if a generated one is taken.
func (s *Server) createObject(ctx context.Context, wr *write, obj api.Object) (*storage.Object, error) {
	wr.begin(nil)
	if err := place(wr.request, obj); err != nil {
		return nil, err
	}
	obj, err := s.admit(ctx, wr, creating, obj, nil)
	if err != nil {
		return nil, err
	}
	for attempt := 1; ; attempt++ {
		created, err := s.insert(ctx, wr, obj)
		switch {
		case errors.Is(err, errLostRace) && ctx.Err() == nil:
			continue
		case !wr.generated || !errors.Is(err, storage.ErrExists) || attempt >= generateAttempts:
			return created, err
		}
		obj.SetName(strategy.GenerateName(obj.GetGenerateName()))
		if wr.res.PrepareCreate != nil {
			wr.res.PrepareCreate(obj)
		}
	}
}

// insert commits a new object. A dry run checks that the name is free. An object with a resourceVersion is rejected
// here, after all other checks and not in a dry run, because kube-apiserver's storage rejects it. kube-apiserver
// answers 500, but the client is at fault.
func (s *Server) insert(ctx context.Context, wr *write, obj api.Object) (*storage.Object, error) {
	wr.name = obj.GetName()
	if wr.isDryRun() {
		_, err := wr.objects.Get(ctx, wr.namespace, wr.name, storage.At{})
		if err == nil {
			return nil, storage.ErrExists
		}
		if !errors.Is(err, storage.ErrNotFound) {
			return nil, err
		}
	} else if revision, err := strconv.ParseUint(obj.GetResourceVersion(), 10, 64); err == nil && revision != 0 {
		return nil, apierrors.NewBadRequest("resourceVersion should not be set on objects to be created")
	}
	obj, reserves, err := s.services.Allocate(ctx, obj, nil)
	if err != nil {
		return nil, err
	}
	stored, err := encoding.AsStored(ctx, wr.res, obj)
	if err != nil {
		return nil, err
	}
	life, err := s.lifetime(ctx, wr, stored, nil)
	if err != nil {
		return nil, err
	}
	buffer := documents.Get().(*bytes.Buffer)
	defer releaseDocument(buffer)
	doc, err := encoding.EncodeStored(buffer, wr.res, stored)
	if err != nil {
		return nil, err
	}
	write := storage.Write{Op: storage.Create, Key: wr.key(wr.name), Value: doc, TTL: life.Lease}
	with := slices.Concat(definitionCheck(wr.res), reserves, life.Writes)
	return s.withQuota(ctx, wr, obj, nil, func(quotas []storage.Write) (*storage.Object, error) {
		return s.commit(ctx, wr, write, append(with, quotas...)...)
	})
}
