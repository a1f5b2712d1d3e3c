package apiserver

import (
	"net/http"

	"github.com/coxswain-dev/coxswain/apiserver/query"
	"github.com/coxswain-dev/coxswain/storage"
)

// get answers a GET of one object or of a subresource that shows it.
func (s *Server) get(w http.ResponseWriter, r *request) error {
	revision, err := query.Revision(r.query, "resourceVersion")
	if err != nil {
		return err
	}
	at := storage.At{Any: r.query.Get("resourceVersion") == "0", Revision: revision}
	o, err := r.objects.Get(r.Context(), r.namespace, r.name, at)
	if err != nil {
		return err
	}
	if r.subresource == "scale" {
		return s.getScale(w, r, o)
	}
	return s.writeObject(w, r, http.StatusOK, o)
}
