package apiserver

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/fieldmanager"
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
