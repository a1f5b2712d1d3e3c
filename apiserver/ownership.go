package apiserver

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/managedfields"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/fieldmanager"
	"github.com/coxswain-dev/coxswain/apiserver/strategy"
)

// writer returns the field manager of the request.
func (s *Server) writer(r *request) fieldmanager.Writer {
	name := r.query.Get("fieldManager")
	if name == "" {
		name = fieldmanager.Name(r.UserAgent())
	}
	return fieldmanager.Writer{Manager: name, APIVersion: r.res.GroupVersion().String(), Subresource: r.subresource,
		At: s.now()}
}

// now returns the time of managedFields and other metadata, in whole seconds.
func (s *Server) now() metav1.Time { return metav1.NewTime(s.Clock.Now().UTC()).Rfc3339Copy() }

// setOwnersEarly sets the managedFields before a webhook sees the object, so that the client does not own the changes
// of webhooks. Nor does it own fields that later stages reset: they are applied to a copy first.
func (s *Server) setOwnersEarly(wr *write) error {
	wr.ownersSet = true
	if wr.applied {
		wr.obj.SetManagedFields(wr.owners)
		return nil
	}
	prepared := wr.obj.DeepCopyObject().(api.Object)
	if wr.part == nil {
		if err := strategy.BeforeUpdate(wr.res, prepared, wr.old); err != nil {
			return err
		}
	}
	if err := s.updateManagedFields(wr, prepared, wr.old, wr.owners); err != nil {
		return err
	}
	wr.owners = prepared.GetManagedFields()
	wr.obj.SetManagedFields(wr.owners)
	return nil
}

// keepOwners takes the managedFields from an object that webhooks have seen, unless a webhook has made them invalid.
func (wr *write) keepOwners() {
	if !wr.ownersSet {
		return
	}
	after := wr.obj.GetManagedFields()
	if err := managedfields.ValidateManagedFields(after); err != nil {
		wr.obj.SetManagedFields(wr.owners)
		wr.warnings = append(wr.warnings, fmt.Sprintf(".metadata.managedFields was in an invalid state after "+
			"admission; this could be caused by an outdated mutating admission controller; please fix your requests: "+
			"%v", err))
		return
	}
	wr.owners = after
}

// updateManagedFields sets the managedFields of an object that replaces old. sent are the managedFields that the
// client sent.
func (s *Server) updateManagedFields(wr *write, obj, old api.Object, sent []metav1.ManagedFieldsEntry) error {
	if !wr.applied {
		var err error
		if sent, err = fieldmanager.Update(wr.Context(), s.Registry.Snapshot(), wr.res, obj, old, sent,
			s.writer(wr.request)); err != nil {
			return err
		}
	}
	obj.SetManagedFields(sent)
	return nil
}
