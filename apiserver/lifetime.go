package apiserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/authz"
	"github.com/coxswain-dev/coxswain/apiserver/encoding"
	"github.com/coxswain-dev/coxswain/apiserver/ttl"
	"github.com/coxswain-dev/coxswain/storage"
)

// storedForm is the stored object that was decoded to old, for its time to live: a conversion between the two may have
// changed annotations. Of an object without one the metadata is empty.
func storedForm(res *api.Resource, stored *storage.Object, old api.Object) (api.Object, error) {
	if res.Stored().Convert == nil {
		return old, nil
	}
	var meta metav1.PartialObjectMetadata
	if !bytes.Contains(stored.JSON, []byte(ttl.Annotation)) {
		return &meta, nil
	}
	if err := encoding.Unmarshal(stored.JSON, &meta); err != nil {
		return nil, fmt.Errorf("reading the metadata of %s: %w", stored.Key, err)
	}
	return &meta, nil
}

// lifetime is the effect on an object's time to live of the change from old (nil on create) to obj, both of them as
// they are stored: the annotation of a conversion counts, and so do the rights of the user whose write it is part of.
func (s *Server) lifetime(ctx context.Context, wr *write, obj, old api.Object) (ttl.Effect, error) {
	if !ttl.Concerns(wr.res, obj, old) {
		return ttl.Effect{}, nil
	}
	return s.lifetimes.Effect(ctx, ttl.Change{Kind: wr.res, Key: wr.key(wr.name), Object: obj, Old: old,
		Rights: deletion{s, wr}})
}

// deletion is that of the object which a write is about. It implements ttl.Rights.
type deletion struct {
	s  *Server
	wr *write
}

func (d deletion) attributes() authz.Attributes {
	a := attributesOf(d.wr.object(d.wr.Context(), d.wr.namespace, d.wr.name)) // a create may have chosen the name
	a.Verb, a.Subresource = "delete", ""
	return a
}

// MayDelete implements ttl.Rights.
func (d deletion) MayDelete(ctx context.Context) bool {
	a := d.attributes()
	decision, _, _ := d.s.authorizer.Rights.Authorize(ctx, &a)
	return decision == authz.Allow
}

// AuthorizeDelete implements ttl.Rights.
func (d deletion) AuthorizeDelete(ctx context.Context) error {
	err := d.s.authorize(ctx, d.attributes())
	var refused *apierrors.StatusError
	if errors.As(err, &refused) && apierrors.IsForbidden(err) {
		refused.ErrStatus.Message += fmt.Sprintf(", which setting the annotation %s takes", ttl.Annotation)
	}
	return err
}
