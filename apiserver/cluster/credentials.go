package cluster

import (
	"bytes"
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/admission"
	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/encoding"
	"github.com/coxswain-dev/coxswain/storage"
)

// Credentials are the objects that authentication reads (authn.Objects).
type Credentials struct{ *Cluster }

var _ authn.Objects = Credentials{}

// Find implements authn.Objects. All but objects that are being deleted are found without decoding them.
func (c Credentials) Find(ctx context.Context, resource schema.GroupResource, namespace,
	name string) (authn.Found, error) {
	res := c.Resource(resource)
	if res == nil {
		return authn.Found{}, authn.ErrNotFound
	}
	objects := c.Objects.Collection(res)
	o, err := objects.Get(ctx, namespace, name, storage.At{Any: true})
	if errors.Is(err, storage.ErrNotFound) {
		o, err = objects.Get(ctx, namespace, name, storage.At{})
	}
	if errors.Is(err, storage.ErrNotFound) {
		return authn.Found{}, authn.ErrNotFound
	}
	if err != nil {
		return authn.Found{}, err
	}
	found := authn.Found{UID: o.UID}
	if bytes.Contains(o.Metadata(), []byte(`"deletionTimestamp":`)) { // or a label of that name
		obj, err := encoding.Decode(ctx, res, o)
		if err != nil {
			return authn.Found{}, err
		}
		if deletion := obj.GetDeletionTimestamp(); deletion != nil {
			found.Deleted = deletion.Time
		}
	}
	return found, nil
}

// Secret implements authn.Objects.
func (c Credentials) Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
	obj, err := c.Get(ctx, schema.GroupResource{Resource: "secrets"}, namespace, name)
	if errors.Is(err, admission.ErrNotFound) {
		return nil, authn.ErrNotFound
	}
	if err != nil {
		return nil, err
	}
	return obj.(*corev1.Secret), nil
}

// TokenUsed implements authn.Objects.
func (c Credentials) TokenUsed(ctx context.Context, secret *corev1.Secret, day string) error {
	res := c.Resource(schema.GroupResource{Resource: "secrets"})
	if res == nil {
		return authn.ErrNotFound
	}
	for {
		o, err := c.Objects.Collection(res).Get(ctx, secret.Namespace, secret.Name, storage.At{})
		if errors.Is(err, storage.ErrNotFound) || err == nil && o.UID != string(secret.UID) {
			return authn.ErrNotFound
		}
		if err != nil {
			return err
		}
		writes, err := c.Objects.Update(ctx, res, o, "", func(obj api.Object) {
			labels := obj.GetLabels()
			if labels == nil {
				labels = map[string]string{}
			}
			labels[authn.LastUsedLabel] = day
			obj.SetLabels(labels)
		})
		if err != nil || len(writes) == 0 {
			return err
		}
		_, err = c.Objects.Commit(ctx, writes...)
		var conflict *storage.Conflict
		if errors.As(err, &conflict) {
			continue // another server was quicker, most likely with the same day
		}
		return err
	}
}
