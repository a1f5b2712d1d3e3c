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

// storedForm returns the stored object that was decoded to old, as far as its time to live needs it: a conversion
// between the two may have changed annotations. Without the annotation, the metadata is empty.
func storedForm(res *api.Resource, stored *storage.Object, old api.Object) (api.Object, error) {
	if res.Stored().Convert == nil {
		return old, nil
	}
	var meta metav1.PartialObjectMetadata
	if !bytes.Contains(stored.JSON, []byte(ttl.Annotation)) {
		return &meta, nil
	}
	if err := encoding.Unmarshal(stored.JSON, &meta); err != nil {
		return nil, fmt.Errorf("read the metadata of %s: %w", stored.Key, err)
	}
	return &meta, nil
}

// lifetime returns the effect of a change from old (nil on create) to obj on the object's time to live. Both are in
// their stored form, so that an annotation that a conversion adds counts. It needs the rights of the user who writes.
func (s *Server) lifetime(ctx context.Context, wr *write, obj, old api.Object) (ttl.Effect, error) {
	if !ttl.Concerns(wr.res, obj, old) {
		return ttl.Effect{}, nil
	}
	return s.lifetimes.Effect(ctx, ttl.Change{Kind: wr.res, Key: wr.key(wr.name), Object: obj, Old: old,
		Rights: deletion{s, wr}})
}

// deletion is a deletion of the object that a write changes. It implements ttl.Rights.
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
