package apiserver

import (
	"context"
	"fmt"
	"reflect"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/admission"
	"github.com/coxswain-dev/coxswain/apiserver/encoding"
	"github.com/coxswain-dev/coxswain/apiserver/fieldmanager"
	"github.com/coxswain-dev/coxswain/apiserver/strategy"
)

// Each object that is written passes the same stages between its decoding and its encoding, in the order of the list
// below. The list shows the differences between creates, updates and writes of a subresource side by side. A stage
// changes the object or rejects it.
//
// Four kinds of writes do not pass these stages. A Scale is admitted as a Scale, and the changed object is validated
// only by its schema, if it has one (scale.go). Bindings, evictions and token requests are admitted as objects of their
// own (admitChild), and a deletion has no object (admitDelete). The server's own objects are neither admitted nor
// validated (package loopback).

// writeKind is a kind of write.
type writeKind int

const (
	creating writeKind = iota
	updating
	updatingPart // of an object, by a subresource
)

// step applies a stage to wr.obj.
type step func(s *Server, ctx context.Context, wr *write) error

// stages are in the order in which an object passes them.
var stages = [...]struct {
	name string
	do   [3]step // by the kind of write; nil does nothing
}{
	{"default", [3]step{creating: setDefaults, updating: setDefaults, updatingPart: setDefaults}},
	// The client owns the fields that it sent, and their defaults. It does not own the changes of plugins and of the
	// server, which come later.
	{"read owners", [3]step{creating: computeOwners, updating: readOwners, updatingPart: readOwners}},
	{"merge into the stored object", [3]step{updatingPart: mergePart}},
	{"mutating admission", [3]step{creating: mutateNew, updating: mutate, updatingPart: mutatePart}},
	{"prepare", [3]step{creating: prepareNew, updating: prepare, updatingPart: preparePart}},
	// Escalation comes after prepare, because an update is compared with the stored object. A subresource grants no
	// rights.
	{"escalation", [3]step{creating: escalate, updating: escalate}},
	{"set owners", [3]step{creating: setOwners, updating: updateOwners, updatingPart: updateOwners}},
	{"validate", [3]step{creating: validateObject, updating: validateObject, updatingPart: validatePart}},
	{"validating admission", [3]step{creating: validatingAdmission, updating: validatingAdmission,
		updatingPart: validatingAdmission}},
	{"warn", [3]step{creating: warn, updating: warn}},
}

// admit takes obj through the stages, and returns the object to store. old is the object that it replaces, nil for a
// create.
func (s *Server) admit(ctx context.Context, wr *write, as writeKind, obj, old api.Object) (api.Object, error) {
	wr.obj, wr.old = obj, old
	for i := range stages {
		if do := stages[i].do[as]; do != nil {
			if err := do(s, ctx, wr); err != nil {
				return nil, err
			}
		}
	}
	return wr.obj, nil
}

func setDefaults(_ *Server, _ context.Context, wr *write) error {
	encoding.SetDefaults(wr.res, wr.obj)
	return nil
}

// computeOwners computes the owners of a new object, unless server-side apply has done so.
func computeOwners(s *Server, ctx context.Context, wr *write) error {
	wr.owners = wr.obj.GetManagedFields()
	if wr.applied {
		return nil
	}
	sent, err := encoding.ConvertTo(ctx, wr.res, wr.obj)
	if err != nil {
		return err
	}
	wr.owners = fieldmanager.Create(wr.res, sent, s.writer(wr.request))
	return nil
}

func readOwners(_ *Server, _ context.Context, wr *write) error {
	wr.owners = wr.obj.GetManagedFields()
	return nil
}

// mergePart replaces the object that was sent with the stored one, in which only the fields of the subresource have
// changed.
func mergePart(s *Server, _ context.Context, wr *write) error {
	merged := wr.old.DeepCopyObject().(api.Object)
	wr.part = wr.sub
	wr.part.Write(merged, wr.obj)
	if wr.res.SetStatusTimes != nil {
		wr.res.SetStatusTimes(merged, wr.old, s.now())
	}
	wr.obj = merged
	return nil
}

func mutate(s *Server, ctx context.Context, wr *write) error {
	wr.attributes = s.attributes(wr, admission.Update, wr.obj, wr.old)
	wr.attributes.Own = func() error { return s.setOwnersEarly(wr) }
	if err := s.admission.Mutate(ctx, &wr.attributes); err != nil {
		return err
	}
	wr.keepOwners()
	if wr.attributes.Rewritten() {
		return placeInNamespace(wr.request, wr.obj)
	}
	return nil
}

// mutateNew restores the namespace and the name if a policy or a webhook has changed them, and generates a name if the
// object has none.
func mutateNew(s *Server, ctx context.Context, wr *write) error {
	if err := forbidWhileEnding(wr); err != nil {
		return err
	}
	strategy.WipeSystemFields(wr.obj)
	wr.attributes = s.attributes(wr, admission.Create, wr.obj, nil)
	wr.attributes.Name = wr.obj.GetName()
	wr.attributes.Own = func() error {
		wr.obj.SetManagedFields(wr.owners)
		wr.ownersSet = true
		return nil
	}
	if err := s.admission.Mutate(ctx, &wr.attributes); err != nil {
		return err
	}
	wr.keepOwners()
	if wr.attributes.Rewritten() {
		if err := place(wr.request, wr.obj); err != nil {
			return err
		}
	}
	if wr.generated = wr.obj.GetName() == "" && wr.obj.GetGenerateName() != ""; wr.generated {
		wr.obj.SetName(strategy.GenerateName(wr.obj.GetGenerateName()))
	}
	return nil
}

// mutatePart drops the changes of policies and webhooks to fields that are not the subresource's.
func mutatePart(s *Server, ctx context.Context, wr *write) error {
	if err := mutate(s, ctx, wr); err != nil {
		return err
	}
	if wr.attributes.Rewritten() {
		rewrite(wr.part, wr.obj, wr.old)
	}
	return nil
}

// rewrite restores the fields of merged, which admission has changed, that the subresource must not change.
func rewrite(sub *api.Subresource, merged, old api.Object) {
	admitted := merged.DeepCopyObject().(api.Object)
	result := old.DeepCopyObject().(api.Object)
	sub.Write(result, admitted)
	reflect.ValueOf(merged).Elem().Set(reflect.ValueOf(result).Elem())
}

// prepareNew sets the fields that only the server may set.
func prepareNew(s *Server, _ context.Context, wr *write) error {
	strategy.BeforeCreate(wr.res, wr.obj, s.Clock.Now())
	if wr.res.SetRequester != nil {
		wr.res.SetRequester(wr.obj, wr.user().Info())
	}
	return nil
}

// prepare copies the fields that an update must not change from the stored object.
func prepare(_ *Server, _ context.Context, wr *write) error {
	return strategy.BeforeUpdate(wr.res, wr.obj, wr.old)
}

func preparePart(_ *Server, _ context.Context, wr *write) error {
	if wr.subresource != "status" {
		strategy.CountGeneration(wr.res, wr.obj, wr.old)
	}
	return nil
}

func setOwners(_ *Server, _ context.Context, wr *write) error {
	wr.obj.SetManagedFields(wr.owners)
	return nil
}

// updateOwners makes the client the owner of the fields that it changes. Server-side apply has set the owners already,
// and so has setOwnersEarly if a webhook was called.
func updateOwners(s *Server, _ context.Context, wr *write) error {
	if wr.ownersSet {
		wr.obj.SetManagedFields(wr.owners)
		fieldmanager.KeepTimes(wr.obj, wr.old)
		return nil
	}
	return s.updateManagedFields(wr, wr.obj, wr.old, wr.owners)
}

func validateObject(s *Server, ctx context.Context, wr *write) error {
	return s.validate(ctx, wr)
}

func validatePart(s *Server, ctx context.Context, wr *write) error {
	return s.validatePart(ctx, wr)
}

func validatingAdmission(s *Server, ctx context.Context, wr *write) error {
	return s.admission.Validate(ctx, &wr.attributes)
}

func warn(_ *Server, _ context.Context, wr *write) error {
	if wr.res.Warnings != nil {
		wr.warnings = append(wr.warnings, wr.res.Warnings(wr.obj, wr.old)...)
	}
	return nil
}

// checkUID rejects a write whose UID is not the stored object's.
func checkUID(r *request, obj, old api.Object) error {
	if uid := obj.GetUID(); uid != "" && uid != old.GetUID() {
		return apierrors.NewConflict(r.res.GroupResource(), r.name,
			fmt.Errorf("Precondition failed: UID in precondition: %v, UID in object meta: %v", uid, old.GetUID()))
	}
	return nil
}
