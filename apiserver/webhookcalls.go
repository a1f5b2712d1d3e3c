package apiserver

import (
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/coxswain-dev/coxswain/apiserver/encoding"
)

// serveWebhookCalls answers with a calls.Report of the recent calls of admission webhooks.
func (s *Server) serveWebhookCalls(w http.ResponseWriter, r *http.Request) error {
	doc, err := json.Marshal(s.admission.Calls().Report())
	if err != nil {
		return fmt.Errorf("encode the calls of webhooks: %w", err)
	}
	return s.writeBody(w, r, encoding.Output{Media: "application/json"}, http.StatusOK, append(doc, '\n'))
}
