package apiserver

import (
	"context"
	"net/http"
	"time"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/audit"
	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/authz"
	"github.com/coxswain-dev/coxswain/storage"
)

// The server writes some objects by itself: no request of a client tells of them. They are recorded as if the server
// had sent requests to itself, which is what kube-apiserver does.

// serverUser is the user of the server's own writes, as in kube-apiserver. Its certificate exists nowhere.
var serverUser = &authn.User{Name: "system:apiserver", Groups: []string{authn.GroupAuthenticated, authn.GroupMasters}}

// ownMethods are the HTTP methods of the verbs by which the server writes.
var ownMethods = map[string]string{"create": http.MethodPost, "update": http.MethodPut, "delete": http.MethodDelete,
	"deletecollection": http.MethodDelete}

// auditOwn begins the record of a request that the server might have sent to itself; nil if nothing is recorded. The
// name is that of the object, "" for a collection.
func (s *Server) auditOwn(ctx context.Context, user *authn.User, verb string, res *api.Resource, namespace,
	name string) *audit.Request {
	if s.Audit == nil {
		return nil
	}
	path := pathTo(res, namespace)
	if name != "" && verb != "create" {
		path += "/" + name
	}
	hr, err := http.NewRequestWithContext(ctx, ownMethods[verb], path, http.NoBody)
	if err != nil {
		return nil // names are segments of paths
	}
	hr.RemoteAddr = "[::1]:0" // of kube-apiserver's client of its own
	hr.Header.Set("User-Agent", "kube-apiserver/"+Version)
	return s.Audit.Begin(hr, &authz.Attributes{User: user, Verb: verb, Group: res.Group, Version: res.Version,
		Resource: res.Plural, Namespace: namespace, Name: name}, time.Now(), false)
}

// pathTo is the path of a collection.
func pathTo(res *api.Resource, namespace string) string {
	path := "/apis/" + res.Group + "/" + res.Version
	if res.Group == "" {
		path = "/api/" + res.Version
	}
	if namespace != "" {
		path += "/namespaces/" + namespace
	}
	return path + "/" + res.Plural
}

// Commit implements loopback.Client. The writes of objects are recorded in the audit log.
func (c loopbackClient) Commit(ctx context.Context, writes ...storage.Write) (*storage.CommitResult, error) {
	result, err := c.s.Store.Commit(ctx, writes...)
	if err == nil && c.s.Audit != nil {
		for i := range writes {
			c.s.recordOwn(ctx, &writes[i])
		}
	}
	return result, err
}

// recordOwn records a write, unless it is of one of the server's documents, which clients do not see.
func (s *Server) recordOwn(ctx context.Context, w *storage.Write) {
	verb, code := "", http.StatusOK
	switch w.Op {
	case storage.Create:
		verb, code = "create", http.StatusCreated
	case storage.Update:
		verb = "update"
	case storage.Delete:
		verb = "delete"
	}
	res := s.kindOf(w.Key.Collection)
	if verb == "" || res == nil {
		return
	}
	record := s.auditOwn(ctx, serverUser, verb, res, w.Key.Namespace, w.Key.Name)
	if record == nil {
		return
	}
	if w.Value != nil {
		record.RequestBody(res.Group, res.Plural, "", w.Value)
		record.ResponseBody(res.Group, res.Plural, "", w.Value)
	}
	record.Answered(code)
	record.Complete()
}

// kindOf is the kind whose objects a collection has, nil if it has none.
func (s *Server) kindOf(collection string) *api.Resource {
	for _, res := range s.Registry.Snapshot().Resources {
		if stored := res.Stored(); stored.Collection() == collection && !stored.CreateOnly && !stored.Virtual {
			return stored
		}
	}
	return nil
}

// concluded records the outcome of a deletion by the server. Nothing is recorded of one that another server, or a
// client, was quicker with.
func (s *Server) concluded(record *audit.Request, err error) {
	if record == nil || storage.Failed(err) {
		return
	}
	if err == nil {
		record.Answered(http.StatusOK)
		record.Complete()
		return
	}
	answer := statusOf(err, nil)
	if answer.Code == http.StatusNotFound || answer.Code == http.StatusConflict {
		return
	}
	record.Status(&answer)
	record.Answered(int(answer.Code))
	record.Complete()
}
