package apiserver

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/coxswain-dev/coxswain/api"
	apifield "github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/apiserver/admission"
	"github.com/coxswain-dev/coxswain/apiserver/audit"
	"github.com/coxswain-dev/coxswain/apiserver/encoding"
	"github.com/coxswain-dev/coxswain/apiserver/responsewriter"
	"github.com/coxswain-dev/coxswain/apiserver/status"
	"github.com/coxswain-dev/coxswain/apiserver/strategy"
	"github.com/coxswain-dev/coxswain/apiserver/ttl"
	"github.com/coxswain-dev/coxswain/storage"
)

// write is the state of a request that writes, with the results of its stages so far. The request itself does not
// change. A write may need several attempts; begin drops the results of the previous one. A write is for one
// goroutine.
type write struct {
	*request
	// name is the object's name: from the request's path or, for a create, from the object.
	name string
	// dryRun comes from the query, unless the options of a delete have one.
	dryRun []string
	// applied marks a server-side apply, which has computed the ownership of fields.
	applied bool
	// options are the options of a delete; nil for other writes.
	options *metav1.DeleteOptions
	// decoding are warnings about the request's body.
	decoding []string

	// The object of this attempt, and the results of its stages so far.

	warnings []string        // decoding, and the warnings of this attempt
	stored   *storage.Object // the object before the attempt, nil for a create
	// The stages of admit.go read and write these.
	obj, old   api.Object
	part       *api.Subresource // the subresource that is written, if any
	owners     []metav1.ManagedFieldsEntry
	attributes admission.Attributes
	// ownersSet is set when owners are final, generated when the server has generated the new object's name.
	ownersSet, generated bool
	// marks is set if a deletion writes the object once more before it is removed.
	marks bool
	// unchanged is set if the stored object is equal to the result of the write.
	unchanged bool
}

// newWrite returns a write that has not begun. decoding are warnings about the body.
func newWrite(r *request, decoding []string) *write {
	return &write{request: r, name: r.name, dryRun: r.query["dryRun"], decoding: decoding, warnings: decoding}
}

// beginWrite returns the write that a client's request asks for. Its warnings are sent even if it is rejected.
func beginWrite(r *request, decoding []string) *write {
	wr := newWrite(r, decoding)
	r.exchange().write = wr
	return wr
}

// on adds the write's object to an error.
func (wr *write) on(err error) error {
	return status.On(err, wr.res.GroupResource(), wr.name)
}

// begin begins an attempt with the stored object.
func (wr *write) begin(stored *storage.Object) {
	wr.stored, wr.warnings = stored, slices.Clip(wr.decoding)
	wr.ownersSet, wr.generated, wr.marks, wr.unchanged, wr.part = false, false, false, false, nil
}

// isDryRun reports whether the write must leave no trace.
func (wr *write) isDryRun() bool { return slices.Contains(wr.dryRun, metav1.DryRunAll) }

// change returns the object that replaces the stored one, nil to delete it. It is called again with the current object
// if another writer has changed that meanwhile. It must not modify old.
type change func(old api.Object) (api.Object, error)

// modify reads an object, changes it and commits it, comparing revisions, until no other writer has changed it
// meanwhile. The first attempt begins with the object in memory, which may be older than the object in etcd: an error
// that is based on memory alone is checked against etcd before it is returned. The result is the stored document, or
// the last one if the object was deleted.
func (s *Server) modify(ctx context.Context, wr *write, do change) (*storage.Object, error) {
	current, err := wr.objects.Get(ctx, wr.namespace, wr.name, storage.At{Any: true})
	if errors.Is(err, storage.ErrNotFound) {
		current, err = wr.objects.Get(ctx, wr.namespace, wr.name, storage.At{})
	}
	if err == nil {
		err = wr.exchange().ReserveObject(ctx, encoding.ObjectWeight*int64(len(current.JSON)))
	}
	fresh := false // whether current was read from etcd
	for {
		if err != nil {
			return nil, err
		}
		var written *storage.Object
		written, err = s.attempt(ctx, wr, current, do)
		var conflict *storage.Conflict
		switch {
		case errors.Is(err, errLostRace):
			current, err = wr.objects.Get(ctx, wr.namespace, wr.name, storage.At{})
			fresh = true
			continue
		case errors.As(err, &conflict):
			current, err, fresh = conflict.Current, ctx.Err(), true
			continue
		case fresh || err == nil && written != current || storage.Failed(err):
			return written, err
		}
		// The answer is based on memory alone: an error, or no change.
		newest, readErr := wr.objects.Get(ctx, wr.namespace, wr.name, storage.At{})
		if readErr != nil {
			return nil, readErr
		}
		if newest.Revision == current.Revision {
			return written, err
		}
		current, err, fresh = newest, nil, true
	}
}

// attempt is one round of modify. It returns current itself if there is no change.
func (s *Server) attempt(ctx context.Context, wr *write, current *storage.Object, do change) (*storage.Object, error) {
	old, err := encoding.Decode(ctx, wr.res, current)
	if err != nil {
		return nil, err
	}
	wr.begin(current)
	obj, err := do(old)
	if err != nil {
		return nil, err
	}
	if obj == nil {
		return s.remove(ctx, wr, current, old)
	}
	obj, reserves, err := s.services.Allocate(ctx, obj, old)
	if err != nil {
		return nil, err
	}
	stored, err := encoding.AsStored(ctx, wr.res, obj)
	if err != nil {
		return nil, err
	}
	buffer := documents.Get().(*bytes.Buffer)
	defer releaseDocument(buffer)
	doc, err := encoding.EncodeStored(buffer, wr.res, stored)
	if err != nil {
		return nil, err
	}
	before, err := storedForm(wr.res, current, old)
	if err != nil {
		return nil, err
	}
	life, err := s.lifetime(ctx, wr, stored, before)
	if err != nil {
		return nil, err
	}
	if !life.Renewed && current.Same(doc) {
		// An object that is encrypted with an old key is written without a change, to encrypt it with the new key.
		if stale, err := s.Store.Stale(ctx, current); err != nil || !stale {
			wr.unchanged = err == nil
			return current, err
		}
	}
	if strategy.Ended(wr.res, obj) && !wr.marks { // the last finalizer was removed
		removed, err := s.remove(ctx, wr, current, old)
		if err != nil {
			return nil, err
		}
		return storage.NewObject(current.Key, removed.Revision, doc)
	}
	w := storage.Write{Op: storage.Update, Key: current.Key, Value: doc, Expect: current.Revision, TTL: life.Lease,
		Ending: obj.GetDeletionTimestamp() != nil}
	with := append(reserves, life.Writes...)
	return s.withQuota(ctx, wr, obj, old, func(quotas []storage.Write) (*storage.Object, error) {
		return s.commit(ctx, wr, w, append(with, quotas...)...)
	})
}

// remove deletes the object and its reservations, provided that it still has current's revision.
func (s *Server) remove(ctx context.Context, wr *write, current *storage.Object,
	old api.Object) (*storage.Object, error) {
	if wr.isDryRun() {
		return storage.NewObject(current.Key, current.Revision, current.Stored())
	}
	_, reserves, err := s.services.Allocate(ctx, nil, old)
	if err != nil {
		return nil, err
	}
	before, err := storedForm(wr.res, current, old)
	if err != nil {
		return nil, err
	}
	with := append(reserves, ttl.End(wr.res, wr.key(wr.name), before)...)
	return s.commit(ctx, wr, storage.Write{Op: storage.Delete, Key: current.Key, Expect: current.Revision}, with...)
}

// errLostRace means that another server has preceded one of the writes in the object's transaction: an address is
// taken, or a quota has changed. The transaction had no effect, and another attempt reads the new state.
var errLostRace = errors.New("another server has changed what this write depends on")

// commit makes a write, and others with it, durable in one transaction, and returns the stored document. A dry run
// returns the document that would have been stored, without a revision if it would have been new.
func (s *Server) commit(ctx context.Context, wr *write, w storage.Write, with ...storage.Write) (
	*storage.Object, error) {
	if wr.isDryRun() {
		return storage.NewObject(w.Key, w.Expect, w.Value)
	}
	timer := wr.audit().Begin(audit.Storage)
	result, err := s.Store.Commit(ctx, append([]storage.Write{w}, with...)...)
	timer.End()
	var refused *storage.Refusal
	if errors.As(err, &refused) && refused.Write > 0 {
		if with[refused.Write-1].Op == storage.Check {
			return nil, s.definitionChanged(ctx, wr, refused)
		}
		return nil, errLostRace
	}
	if err != nil {
		return nil, err
	}
	kind := wr.res.Stored()
	if kind == wr.res && kind.Schema != 0 && w.Op != storage.Delete {
		result.Objects[0].SetMark(kind.Schema) // it conforms to the schema: it was pruned and defaulted here
	}
	if kind.ReadYourWrites && !(wr.isNamespace() && w.Op == storage.Create) ||
		w.Op == storage.Delete && kind.BindsTokens {
		// Authorization and admission read memory, which must have this write before the client's next request: a
		// right has been revoked, a namespace that is being deleted accepts no objects, a token ends with the object
		// that it is bound to. ErrNotFound also means that memory has it.
		_, _ = wr.objects.Get(ctx, w.Key.Namespace, w.Key.Name, storage.At{Revision: result.Revision})
	}
	return result.Objects[0], nil
}

// writeWritten answers a write with the stored object.
func (s *Server) writeWritten(w http.ResponseWriter, wr *write, code int, o *storage.Object) error {
	responsewriter.AddWarnings(w.Header(), wr.warnings)
	return s.sendObject(w, wr.request, s.form(wr.request), code, o) // the write has reserved more memory
}

// documents pools the buffers of the documents of commits. No buffer is kept after a commit: etcd copies the document,
// and the objects that a commit returns have copies of their own.
var documents = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// maxPooled is the largest capacity of a buffer that returns to the pool.
const maxPooled = 64 << 10

func releaseDocument(buffer *bytes.Buffer) {
	if buffer.Cap() <= maxPooled {
		buffer.Reset()
		documents.Put(buffer)
	}
}

// invalidObject returns the answer to an invalid object, nil without errors. It takes time with the square of the
// number of errors.
func invalidObject(res *api.Resource, name string, errs field.ErrorList) error {
	if len(errs) == 0 {
		return nil
	}
	if audit.Confidential(res.Group, res.Plural, "") {
		errs = withoutValues(errs)
	}
	return apierrors.NewInvalid(res.GVK().GroupKind(), name, apifield.Few(errs))
}

// withoutValues omits the values that errors about an object with credentials would quote, except its metadata's.
func withoutValues(errs field.ErrorList) field.ErrorList {
	result := make(field.ErrorList, len(errs))
	for i, err := range errs {
		if result[i] = err; !strings.HasPrefix(err.Field, "metadata.") {
			hidden := *err
			hidden.BadValue = field.OmitValueType{}
			result[i] = &hidden
		}
	}
	return result
}
