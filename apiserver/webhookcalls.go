package apiserver

import (
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/coxswain-dev/coxswain/apiserver/encoding"
)

// serveWebhookCalls shows how the admission webhooks that were called lately have answered: a calls.Report.
func (s *Server) serveWebhookCalls(w http.ResponseWriter, r *http.Request) error {
	doc, err := json.Marshal(s.admission.Calls().Report())
	if err != nil {
		return fmt.Errorf("encoding the calls of webhooks: %w", err)
	}
	return s.writeBody(w, r, encoding.Output{Media: "application/json"}, http.StatusOK, append(doc, '\n'))
}
