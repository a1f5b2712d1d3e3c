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

// write is a request on its way into the store, with the results of its stages so far. The request itself does not
// change. A write may take several attempts: the results of one are forgotten when the next begins.
type write struct {
	*request
	// name is the object's: the one in the request's path or, once a create has chosen it, the object's own.
	name string
	// dryRun is the query's, unless the options of a delete name one.
	dryRun []string
	// applied says that server-side apply has settled the ownership of fields.
	applied bool
	// options are those of a delete; nil for other writes.
	options *metav1.DeleteOptions
	// decoding are warnings about the request's body.
	decoding []string

	// The object of this attempt, and the results of its stages so far.

	warnings []string        // those about the body, and those of this attempt
	stored   *storage.Object // that the attempt begins with, nil for a create
	// Between the stages of admit.go.
	obj, old   api.Object
	part       *api.Subresource // that is written, if any
	owners     []metav1.ManagedFieldsEntry
	attributes admission.Attributes
	// ownedEarly says that owners are final, generated that the server has chosen the new object's name.
	ownedEarly, generated bool
	// marks says that a deletion writes the object once more, although nothing keeps it.
	marks bool
	// unchanged says that the object is stored already as the write would leave it.
	unchanged bool
}

// newWrite returns a write that has not begun. decoding are warnings about the body.
func newWrite(r *request, decoding []string) *write {
	return &write{request: r, name: r.name, dryRun: r.query["dryRun"], decoding: decoding, warnings: decoding}
}

// beginWrite returns the write that a client's request asks for. Its warnings are sent even if it is refused.
func beginWrite(r *request, decoding []string) *write {
	wr := newWrite(r, decoding)
	r.exchange().write = wr
	return wr
}

// on says which object an error is about.
func (wr *write) on(err error) error {
	return status.On(err, wr.res.GroupResource(), wr.name)
}

// begin begins an attempt.
func (wr *write) begin(stored *storage.Object) {
	wr.stored, wr.warnings = stored, slices.Clip(wr.decoding)
	wr.ownedEarly, wr.generated, wr.marks, wr.unchanged, wr.part = false, false, false, false, nil
}

// isDryRun reports whether the write must leave no trace.
func (wr *write) isDryRun() bool { return slices.Contains(wr.dryRun, metav1.DryRunAll) }

// change makes the object that a verb wants from the stored one. It is called again with the current one when another
// writer was quicker.
type change func(old api.Object) (api.Object, error)

// modify reads an object, changes it and commits it, comparing revisions, until no other writer came between. The first
// attempt begins with the object in memory, which may be older than the one in etcd: a refusal that came from memory
// alone is checked against etcd before it is returned. The result is the document as it is stored, or as it was when
// the change ended it.
func (s *Server) modify(ctx context.Context, wr *write, do change) (*storage.Object, error) {
	current, err := wr.objects.Get(ctx, wr.namespace, wr.name, storage.At{Any: true})
	if errors.Is(err, storage.ErrNotFound) {
		current, err = wr.objects.Get(ctx, wr.namespace, wr.name, storage.At{})
	}
	if err == nil {
		err = wr.exchange().ReserveObject(ctx, encoding.ObjectWeight*int64(len(current.JSON)))
	}
	fresh := false
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
		// The answer came from memory alone: a refusal, or that nothing changes.
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

// attempt is one round of modify. It returns current itself when nothing changes.
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
		// An object that is encrypted with an old key is written although nothing changes: so it gets the new key.
		if stale, err := s.Store.Stale(ctx, current); err != nil || !stale {
			wr.unchanged = err == nil
			return current, err
		}
	}
	if strategy.Ended(wr.res, obj) && !wr.marks { // its last finalizer was taken away
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

// remove deletes the object and what goes with it, provided that it still is at current's revision.
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

// errLostRace means that another server was quicker with one of the writes that go with an object's own: an address is
// taken, a quota has changed. Nothing was stored, and another attempt finds out what is so now.
var errLostRace = errors.New("another server has changed what this write depends on")

// commit makes a write, and those that go with it, durable in one transaction, and returns the document as it is
// stored. A dry run returns the document that would have been stored, without a revision if it would have been new.
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
		result.Objects[0].SetMark(kind.Schema) // it was decoded by the schema, defaulted and encoded here
	}
	if kind.ReadYourWrites && !(wr.isNamespace() && w.Op == storage.Create) ||
		w.Op == storage.Delete && kind.BindsTokens {
		// Authorization and admission judge the client's next request by memory, which must have this write by then: a
		// right that was taken away is gone, a namespace that is being deleted accepts nothing more, a token ends
		// with what it is bound to. That the object is gone altogether is as good an answer.
		_, _ = wr.objects.Get(ctx, w.Key.Namespace, w.Key.Name, storage.At{Revision: result.Revision})
	}
	return result.Objects[0], nil
}

// writeWritten answers a write with the object that it has stored.
func (s *Server) writeWritten(w http.ResponseWriter, wr *write, code int, o *storage.Object) error {
	responsewriter.AddWarnings(w.Header(), wr.warnings)
	return s.sendObject(w, wr.request, s.form(wr.request), code, o) // it has reserved more for the write
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

// invalidObject is the answer to an object that validation refuses. It takes time with the square of the
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
	kept := make(field.ErrorList, len(errs))
	for i, err := range errs {
		if kept[i] = err; !strings.HasPrefix(err.Field, "metadata.") {
			hidden := *err
			hidden.BadValue = field.OmitValueType{}
			kept[i] = &hidden
		}
	}
	return kept
}
