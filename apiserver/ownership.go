package apiserver

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/managedfields"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/fieldmanager"
	"github.com/coxswain-dev/coxswain/apiserver/strategy"
)

// writer names the request's writer for managedFields.
func (s *Server) writer(r *request) fieldmanager.Writer {
	name := r.query.Get("fieldManager")
	if name == "" {
		name = fieldmanager.Name(r.UserAgent())
	}
	return fieldmanager.Writer{Manager: name, APIVersion: r.res.GroupVersion().String(), Subresource: r.subresource,
		At: s.now()}
}

func (s *Server) now() metav1.Time { return metav1.NewTime(s.Clock.Now().UTC()).Rfc3339Copy() }

// ownEarly sets the managedFields before a webhook sees the object, so that what webhooks change is not the client's.
// The stages that follow may take back some of what the client sent, which is not the client's either.
func (s *Server) ownEarly(wr *write) error {
	wr.ownedEarly = true
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
	if err := s.own(wr, prepared, wr.old, wr.owners); err != nil {
		return err
	}
	wr.owners = prepared.GetManagedFields()
	wr.obj.SetManagedFields(wr.owners)
	return nil
}

// keepOwners takes over the managedFields from an object that webhooks have seen, unless one has damaged them.
func (wr *write) keepOwners() {
	if !wr.ownedEarly {
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

// own sets the managedFields of an object that replaces old. sent are those that the client sent with it.
func (s *Server) own(wr *write, obj, old api.Object, sent []metav1.ManagedFieldsEntry) error {
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
