package apiserver

import (
	"fmt"
	"net/http"

	authenticationv1 "k8s.io/api/authentication/v1"

	"github.com/coxswain-dev/coxswain/apiserver/encoding"
	"github.com/coxswain-dev/coxswain/apiserver/responsewriter"
	"github.com/coxswain-dev/coxswain/apiserver/review"
)

// requestToken answers a POST of a TokenRequest to the subresource token of a service account.
func (s *Server) requestToken(w http.ResponseWriter, r *request) error {
	if s.Authentication.ServiceAccounts == nil {
		return notFoundPath()
	}
	req := &authenticationv1.TokenRequest{}
	warnings, err := s.readInto(w, r, review.TokenRequestKind, req)
	if err != nil {
		return err
	}
	wr := beginWrite(r, warnings)
	tokens := review.Tokens{Issuer: s.Authentication.ServiceAccounts, Objects: s.cluster, Clock: s.Clock}
	pending, err := tokens.Prepare(r.Context(), r.namespace, r.name, req)
	if err != nil {
		return err
	}
	if err := s.admitChild(wr, req); err != nil {
		return err
	}
	if warnings, err = pending.Sign(r.Context()); err != nil {
		return err
	}
	responsewriter.AddWarnings(w.Header(), append(wr.warnings, warnings...))
	return s.writeTokenRequest(w, r, req)
}

func (s *Server) writeTokenRequest(w http.ResponseWriter, r *request, req *authenticationv1.TokenRequest) error {
	var value any = req
	version, kind := req.APIVersion, req.Kind
	if r.out.View == encoding.ViewPartial {
		value, version, kind = encoding.PartialMetadata(req), "meta.k8s.io/v1", "PartialObjectMetadata"
	}
	body, err := r.out.Value(version, kind, value)
	if err != nil {
		return fmt.Errorf("encode a token request: %w", err)
	}
	if r.audit().Responses() {
		if doc, err := asJSON(r.out).Value(version, kind, value); err == nil {
			r.auditResponse(doc)
		}
	}
	return s.writeBody(w, r.Request, r.out, http.StatusCreated, body)
}
