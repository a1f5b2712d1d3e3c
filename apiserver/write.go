package apiserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/coxswain-dev/coxswain/api"
	apifield "github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/storage"
)

// change makes the object that a verb wants from the one there is. It is called again with
// a fresh one when another writer was quicker.
type change func(old api.Object) (api.Object, error)

// modify reads an object, changes it and commits it, comparing revisions, until no other
// writer came between. The first attempt begins with what memory holds, which may be
// older than what etcd holds; what is found out from that is checked once more before it
// is said. The result is the document as it is stored, or was when the change ended it.
func (s *Server) modify(ctx context.Context, r *request, do change) (*storage.Object, error) {
	current, err := r.objects.Get(ctx, r.namespace, r.name, storage.At{Any: true})
	if errors.Is(err, storage.ErrNotFound) {
		current, err = r.objects.Get(ctx, r.namespace, r.name, storage.At{})
	}
	fresh := false
	for {
		if err != nil {
			return nil, err
		}
		var written *storage.Object
		written, err = s.attempt(ctx, r, current, do)
		var conflict *storage.Conflict
		switch {
		case errors.Is(err, errClaimLost):
			current, err = r.objects.Get(ctx, r.namespace, r.name, storage.At{})
			fresh = true
			continue
		case errors.As(err, &conflict):
			current, err, fresh = conflict.Current, ctx.Err(), true
			continue
		case fresh || err == nil && written != current || etcdFailed(err):
			return written, err
		}
		// The answer came from memory alone: a refusal, or that nothing changes.
		newest, readErr := r.objects.Get(ctx, r.namespace, r.name, storage.At{})
		if readErr != nil {
			return nil, readErr
		}
		if newest.Revision == current.Revision {
			return written, err
		}
		current, err, fresh = newest, nil, true
	}
}

// etcdFailed reports that a commit was tried and etcd did not do it, or did not say so. It
// must not be tried again: the first may have happened.
func etcdFailed(err error) bool {
	return errors.Is(err, storage.ErrUnknownOutcome) || errors.Is(err, storage.ErrUnavailable) ||
		errors.Is(err, storage.ErrNoSpace) || errors.Is(err, storage.ErrTooLarge)
}

// attempt is one round of modify. It returns current itself when nothing changes.
func (s *Server) attempt(ctx context.Context, r *request, current *storage.Object, do change) (*storage.Object, error) {
	old, err := decode(r.res, current)
	if err != nil {
		return nil, err
	}
	r.stored = current
	obj, err := do(old)
	if err != nil {
		return nil, err
	}
	if obj == nil {
		return s.remove(ctx, r, current, old)
	}
	obj, claims, err := s.claim(ctx, r.res, obj, old)
	if err != nil {
		return nil, err
	}
	buffer := documents.Get().(*bytes.Buffer)
	defer releaseDocument(buffer)
	doc, err := encodeIn(buffer, r.res, obj)
	if err != nil {
		return nil, err
	}
	life, err := s.lifetime(ctx, r, obj, old)
	if err != nil {
		return nil, err
	}
	if !life.renewed && current.Same(doc) {
		return current, nil
	}
	if ended(r.res, obj) { // its last finalizer was taken away
		removed, err := s.remove(ctx, r, current, old)
		if err != nil {
			return nil, err
		}
		return storage.NewObject(current.Key, removed.Revision, doc)
	}
	w := storage.Write{Op: storage.Update, Key: current.Key, Value: doc, Expect: current.Revision, TTL: life.lease}
	claims = append(claims, life.writes...)
	return s.charged(ctx, r, obj, old, func(quotas []storage.Write) (*storage.Object, error) {
		return s.commit(ctx, r, w, append(claims, quotas...)...)
	})
}

// remove deletes the object and its claims, provided it still is at current's revision.
func (s *Server) remove(ctx context.Context, r *request, current *storage.Object, old api.Object) (*storage.Object, error) {
	if r.dryRun() {
		gone := *current
		return &gone, nil
	}
	_, claims, err := s.claim(ctx, r.res, nil, old)
	if err != nil {
		return nil, err
	}
	claims = append(claims, s.endLifetime(r, old)...)
	return s.commit(ctx, r, storage.Write{Op: storage.Delete, Key: current.Key, Expect: current.Revision}, claims...)
}

// commit makes a write and its claims durable, in one transaction, and returns the document
// as stored. A dry run returns what would have been stored; it has no revision if it would
// have been new.
func (s *Server) commit(ctx context.Context, r *request, w storage.Write, claims ...storage.Write) (*storage.Object, error) {
	if r.dryRun() {
		return storage.NewObject(w.Key, w.Expect, w.Value)
	}
	result, err := s.Store.Commit(ctx, append([]storage.Write{w}, claims...)...)
	var refused *storage.Refusal
	if errors.As(err, &refused) && refused.Write > 0 {
		return nil, errClaimLost
	}
	if err != nil {
		return nil, err
	}
	kind := r.res.GroupResource()
	if rules(kind) && !(r.isNamespace() && w.Op == storage.Create) || w.Op == storage.Delete && vouches(kind) {
		// What this client asks for next must be judged by this, and what judges reads from memory:
		// a right that was taken away is gone, a namespace that is going away takes nothing more, a
		// token ends with what it is bound to.
		// That the object is gone altogether is as good an answer.
		_, _ = r.objects.Get(ctx, w.Key.Namespace, w.Key.Name, storage.At{Revision: result.Revision})
	}
	return result.Objects[0], nil
}

// rules says whether authorization, flow control, or admission from memory, judges other requests by
// objects of the kind. They are seldom written.
func rules(resource schema.GroupResource) bool {
	switch resource.String() {
	case "namespaces", "limitranges", "priorityclasses.scheduling.k8s.io", "runtimeclasses.node.k8s.io",
		"storageclasses.storage.k8s.io", "ingressclasses.networking.k8s.io",
		"validatingadmissionpolicies.admissionregistration.k8s.io", "validatingadmissionpolicybindings.admissionregistration.k8s.io",
		"mutatingadmissionpolicies.admissionregistration.k8s.io", "mutatingadmissionpolicybindings.admissionregistration.k8s.io":
		return true
	}
	return resource.Group == "rbac.authorization.k8s.io" || resource.Group == "flowcontrol.apiserver.k8s.io"
}

// vouches says whether tokens are bound to objects of the kind.
func vouches(resource schema.GroupResource) bool {
	return resource.Group == "" && slices.Contains([]string{"nodes", "pods", "secrets", "serviceaccounts"}, resource.Resource)
}

// encode makes the document that is stored: the object without its resourceVersion.
func encode(res *api.Resource, obj api.Object) ([]byte, error) {
	return encodeIn(new(bytes.Buffer), res, obj)
}

// encodeIn is encode in a buffer that is empty. The document is the buffer's.
func encodeIn(buffer *bytes.Buffer, res *api.Resource, obj api.Object) ([]byte, error) {
	obj.SetResourceVersion("")
	obj.GetObjectKind().SetGroupVersionKind(res.Stored().GVK())
	if err := marshal(buffer, obj); err != nil {
		return nil, fmt.Errorf("encoding %s %s: %w", res.Kind, obj.GetName(), err)
	}
	return buffer.Bytes(), nil
}

// documents are buffers for the documents of commits, which nobody keeps: etcd copies them, and the objects that
// a commit returns have copies of their own.
var documents = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// maxPooled is how large a buffer may be to be used again.
const maxPooled = 64 << 10

func releaseDocument(buffer *bytes.Buffer) {
	if buffer.Cap() <= maxPooled {
		buffer.Reset()
		documents.Put(buffer)
	}
}

// ended reports whether an object whose deletion has begun has nothing left to wait for.
func ended(res *api.Resource, obj api.Object) bool {
	if obj.GetDeletionTimestamp() == nil || len(obj.GetFinalizers()) > 0 {
		return false
	}
	if grace := obj.GetDeletionGracePeriodSeconds(); grace != nil && *grace > 0 {
		return false
	}
	return res.Held == nil || !res.Held(obj)
}

// invalidObject is the answer to an object that validation refuses. It takes time with the square of the number of errors.
func invalidObject(res *api.Resource, name string, errs field.ErrorList) error {
	if len(errs) == 0 {
		return nil
	}
	return apierrors.NewInvalid(res.GVK().GroupKind(), name, errs[:min(len(errs), apifield.MaxErrors)])
}

func invalidAnnotation(res *api.Resource, name, key, value, why string) error {
	return invalidObject(res, name, field.ErrorList{field.Invalid(field.NewPath("metadata", "annotations").Key(key), value, why)})
}
