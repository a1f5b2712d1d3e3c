package apiserver

import (
	"context"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/admission"
	"github.com/coxswain-dev/coxswain/storage"
)

// attributes are what admission plugins are told of a write.
func (s *Server) attributes(r *request, operation admission.Operation, obj, old api.Object) *admission.Attributes {
	return &admission.Attributes{
		Operation:   operation,
		Resource:    r.res.GroupVersion().WithResource(r.res.Plural),
		Kind:        r.res.GVK(),
		Subresource: r.subresource,
		Namespace:   r.namespace,
		Name:        r.name,
		Object:      obj,
		Old:         old,
		User:        r.user(),
		DryRun:      r.dryRun(),
		Options:     verbOptions(r, operation),
		Warn:        func(text string) { r.warnings = append(r.warnings, text) },
		Audit: func(key, value string) {
			s.Log.Info("audit", "resource", r.res.GroupResource().String(), "namespace", r.namespace, "name", r.name, key, value)
		},
	}
}

// admitChild asks the plugins about an object that is posted for another, such as a Binding.
func (s *Server) admitChild(r *request, obj api.Object) error {
	a := s.attributes(r, admission.Create, obj, nil)
	if sub := r.res.Subresource(r.subresource); sub != nil {
		a.Kind = schema.GroupVersionKind{Group: sub.Group, Version: sub.Version, Kind: sub.Kind}
	}
	if err := s.admission.Mutate(r.Context(), a); err != nil {
		return err
	}
	return s.admission.Validate(r.Context(), a)
}

// admitDelete asks the plugins about the end of an object.
func (s *Server) admitDelete(ctx context.Context, r *request, old api.Object) error {
	a := s.attributes(r, admission.Delete, nil, old)
	a.Subresource = "" // an eviction deletes the pod itself
	if err := s.admission.Mutate(ctx, a); err != nil {
		return err
	}
	return s.admission.Validate(ctx, a)
}

// charged commits a write of obj in the place of old (nil for a create) together with what
// it uses of the namespace's quotas.
func (s *Server) charged(ctx context.Context, r *request, obj, old api.Object,
	commit func(quotas []storage.Write) (*storage.Object, error),
) (*storage.Object, error) {
	operation := admission.Create
	if old != nil {
		operation = admission.Update
	}
	claim, err := s.admission.Claim(ctx, s.attributes(r, operation, obj, old))
	if err != nil {
		return nil, err
	}
	if claim == nil {
		return commit(nil)
	}
	revision := ""
	defer func() { claim.Settle(revision) }()
	writes, err := s.quotaWrites(claim.Quotas)
	if err != nil {
		return nil, err
	}
	written, err := commit(writes)
	if err == nil {
		revision = strconv.FormatInt(written.Revision, 10)
	}
	return written, err
}

// quotaWrites replace the quotas, each at the revision that it was read at.
func (s *Server) quotaWrites(quotas []*corev1.ResourceQuota) ([]storage.Write, error) {
	res := s.Registry.Snapshot().Kind(corev1.SchemeGroupVersion.WithKind("ResourceQuota"))
	writes := make([]storage.Write, len(quotas))
	for i, q := range quotas {
		expect, err := strconv.ParseInt(q.ResourceVersion, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("the resourceVersion of quota %s: %w", q.Name, err)
		}
		doc, err := encode(res, q)
		if err != nil {
			return nil, err
		}
		key := storage.Key{Collection: res.Collection(), Namespace: q.Namespace, Name: q.Name}
		writes[i] = storage.Write{Op: storage.Update, Key: key, Value: doc, Expect: expect}
	}
	return writes, nil
}
