package apiserver

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/admission"
	"github.com/coxswain-dev/coxswain/storage"
)

// generateAttempts is how often a name is generated before giving up (KEP-4420).
const generateAttempts = 8

// create answers a POST of a new object.
func (s *Server) create(w http.ResponseWriter, r *request) error {
	if err := checkWriteOptions(r, "CreateOptions"); err != nil {
		return err
	}
	obj, err := s.readObject(w, r)
	if err != nil {
		return err
	}
	created, err := s.createObject(r.Context(), r, obj)
	if err != nil {
		return err
	}
	return s.writeObject(w, r, http.StatusCreated, created)
}

// createObject takes a decoded object the rest of the way into the store.
func (s *Server) createObject(ctx context.Context, r *request, obj api.Object) (*storage.Object, error) {
	if err := place(r, obj); err != nil {
		return nil, err
	}
	generated := obj.GetName() == "" && obj.GetGenerateName() != ""
	if generated {
		obj.SetName(generateName(obj.GetGenerateName()))
	}
	setDefaults(r.res, obj)
	owners := obj.GetManagedFields()
	if !r.applies {
		of, err := showObject(r.res, obj)
		if err != nil {
			return nil, err
		}
		owners = ownNew(r.res, of, s.writer(r))
	}
	attributes := s.attributes(r, admission.Create, obj, nil)
	if err := s.admission.Mutate(ctx, attributes); err != nil {
		return nil, err
	}
	if attributes.Rewritten() {
		if err := place(r, obj); err != nil {
			return nil, err
		}
	}
	if err := s.checkEscalation(ctx, r, obj, nil); err != nil {
		return nil, err
	}
	s.beforeCreate(r.res, obj)
	if r.res.Requester != nil {
		r.res.Requester(obj, r.user().Info())
	}
	obj.SetManagedFields(owners)
	if err := s.validate(ctx, r, obj, nil); err != nil {
		return nil, err
	}
	if err := s.admission.Validate(ctx, attributes); err != nil {
		return nil, err
	}
	if r.res.Warnings != nil {
		r.warnings = append(r.warnings, r.res.Warnings(obj, nil)...)
	}
	for attempt := 1; ; attempt++ {
		created, err := s.insert(ctx, r, obj)
		switch {
		case errors.Is(err, errClaimLost) && ctx.Err() == nil:
			continue
		case !generated || !errors.Is(err, storage.ErrExists) || attempt >= generateAttempts:
			return created, err
		}
		obj.SetName(generateName(obj.GetGenerateName()))
		if r.res.PrepareCreate != nil {
			r.res.PrepareCreate(obj)
		}
	}
}

// insert commits a new object. A dry run looks whether the name is free. An object that names a revision is refused here,
// after all else and not in a dry run, because kube-apiserver leaves that to its storage.
func (s *Server) insert(ctx context.Context, r *request, obj api.Object) (*storage.Object, error) {
	r.name = obj.GetName()
	life, err := s.lifetime(ctx, r, obj, nil)
	if err != nil {
		return nil, err
	}
	if r.dryRun() {
		_, err := r.objects.Get(ctx, r.namespace, r.name, storage.At{})
		if err == nil {
			return nil, storage.ErrExists
		}
		if !errors.Is(err, storage.ErrNotFound) {
			return nil, err
		}
	} else if revision, err := strconv.ParseUint(obj.GetResourceVersion(), 10, 64); err == nil && revision != 0 {
		return nil, statusError(http.StatusInternalServerError, metav1.StatusReasonUnknown,
			"resourceVersion should not be set on objects to be created")
	}
	obj, claims, err := s.claim(ctx, r.res, obj, nil)
	if err != nil {
		return nil, err
	}
	buffer := documents.Get().(*bytes.Buffer)
	defer releaseDocument(buffer)
	doc, err := encodeIn(buffer, r.res, obj)
	if err != nil {
		return nil, err
	}
	write := storage.Write{Op: storage.Create, Key: r.key(r.name), Value: doc, TTL: life.lease}
	claims = append(claims, life.writes...)
	return s.charged(ctx, r, obj, nil, func(quotas []storage.Write) (*storage.Object, error) {
		return s.commit(ctx, r, write, append(claims, quotas...)...)
	})
}
