package apiserver

import (
	"bytes"
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/coxswain-dev/coxswain/apiserver/admission"
	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/storage"
)

// vouchers is what authentication reads of the cluster (authn.Objects).
type vouchers struct{ cluster *cluster }

var _ authn.Objects = vouchers{}

// Find looks in memory and, where memory does not hold the object, once more in memory that
// is as new as etcd. All but objects that are being deleted are found without decoding them.
func (v vouchers) Find(ctx context.Context, resource schema.GroupResource, namespace, name string) (authn.Found, error) {
	res := v.cluster.resource(resource)
	if res == nil {
		return authn.Found{}, authn.ErrNotFound
	}
	objects := v.cluster.server.collection(res)
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
		obj, err := decode(res, o)
		if err != nil {
			return authn.Found{}, err
		}
		if at := obj.GetDeletionTimestamp(); at != nil {
			found.Deleted = at.Time
		}
	}
	return found, nil
}

func (v vouchers) Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
	obj, err := v.cluster.Get(ctx, schema.GroupResource{Resource: "secrets"}, namespace, name)
	if errors.Is(err, admission.ErrNotFound) {
		return nil, authn.ErrNotFound
	}
	if err != nil {
		return nil, err
	}
	return obj.(*corev1.Secret), nil
}
