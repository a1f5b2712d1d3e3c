package apiserver

import (
	"encoding/json"
	"fmt"
	"net/http"
)

// serveIssuer answers with the OpenID configuration of the issuer of service account tokens.
// https://kubernetes.io/docs/tasks/configure-pod-container/configure-service-account/#service-account-issuer-discovery
func (s *Server) serveIssuer(w http.ResponseWriter, _ *http.Request) error {
	return s.writePublished(w, "application/json", s.Authentication.ServiceAccounts.Discovery())
}

// serveIssuerKeys answers with the public keys of service account tokens.
func (s *Server) serveIssuerKeys(w http.ResponseWriter, _ *http.Request) error {
	return s.writePublished(w, "application/jwk-set+json", s.Authentication.ServiceAccounts.JWKS())
}

// writePublished answers with a document that caches may keep.
func (s *Server) writePublished(w http.ResponseWriter, media string, v any) error {
	doc, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode %s: %w", media, err)
	}
	w.Header().Set("Content-Type", media)
	w.Header().Set("Cache-Control", "public, max-age=3600")
	_, _ = w.Write(doc) // an error means that the client has disconnected
	return nil
}
