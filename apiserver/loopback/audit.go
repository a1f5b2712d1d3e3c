package loopback

import (
	"context"
	"net/http"
	"time"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/audit"
	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/authz"
	"github.com/coxswain-dev/coxswain/apiserver/status"
	"github.com/coxswain-dev/coxswain/storage"
)

// The server's own writes are not requests. They are recorded in the audit log as if the server had sent requests to
// itself, as kube-apiserver does.

// serverUser is the user of the server's own writes, as in kube-apiserver. No certificate names it.
var serverUser = &authn.User{Name: "system:apiserver", Groups: []string{authn.GroupAuthenticated, authn.GroupMasters}}

// methods are the HTTP methods of the verbs of the server's own writes.
var methods = map[string]string{"create": http.MethodPost, "update": http.MethodPut, "delete": http.MethodDelete,
	"deletecollection": http.MethodDelete}

// BeginAudit begins the record of a request that the server might have sent to itself; nil without an audit log. The
// name is the object's, "" for a collection. EndAudit completes the record.
func (c *Objects) BeginAudit(ctx context.Context, user *authn.User, verb string, res *api.Resource, namespace,
	name string) *audit.Request {
	if c.o.Audit == nil {
		return nil
	}
	path := pathTo(res, namespace)
	if name != "" && verb != "create" {
		path += "/" + name
	}
	hr, err := http.NewRequestWithContext(ctx, methods[verb], path, http.NoBody)
	if err != nil {
		return nil // does not happen: names are segments of paths
	}
	hr.RemoteAddr = "[::1]:0" // as of kube-apiserver's loopback client
	hr.Header.Set("User-Agent", c.o.UserAgent)
	return c.o.Audit.Begin(hr, &authz.Attributes{User: user, Verb: verb, Group: res.Group, Version: res.Version,
		Resource: res.Plural, Namespace: namespace, Name: name}, time.Now(), false)
}

// pathTo returns the path of a collection.
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

// Commit implements Client. The writes of objects are recorded in the audit log.
func (c *Objects) Commit(ctx context.Context, writes ...storage.Write) (*storage.CommitResult, error) {
	result, err := c.o.Store.Commit(ctx, writes...)
	if err == nil && c.o.Audit != nil {
		for i := range writes {
			c.record(ctx, &writes[i])
		}
	}
	return result, err
}

// record records a write, unless it is of one of the server's internal documents, which clients do not see.
func (c *Objects) record(ctx context.Context, w *storage.Write) {
	verb, code := "", http.StatusOK
	switch w.Op {
	case storage.Create:
		verb, code = "create", http.StatusCreated
	case storage.Update:
		verb = "update"
	case storage.Delete:
		verb = "delete"
	}
	res := c.kindOf(w.Key.Collection)
	if verb == "" || res == nil {
		return
	}
	record := c.BeginAudit(ctx, serverUser, verb, res, w.Key.Namespace, w.Key.Name)
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

// kindOf returns the kind of the objects in a collection, nil if there is none.
func (c *Objects) kindOf(collection string) *api.Resource {
	for _, res := range c.o.Registry.Snapshot().Resources {
		if stored := res.Stored(); stored.Collection() == collection && !stored.CreateOnly && !stored.Virtual {
			return stored
		}
	}
	return nil
}

// EndAudit completes the record of a deletion, which may be nil, with its outcome. A deletion that another server or a
// client has preceded is not recorded.
func EndAudit(record *audit.Request, err error) {
	if record == nil || storage.Failed(err) {
		return
	}
	if err == nil {
		record.Answered(http.StatusOK)
		record.Complete()
		return
	}
	answer := status.Of(err, status.Subject{})
	if answer.Code == http.StatusNotFound || answer.Code == http.StatusConflict {
		return
	}
	record.Status(&answer)
	record.Answered(int(answer.Code))
	record.Complete()
}
