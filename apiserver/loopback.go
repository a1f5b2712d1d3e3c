package apiserver

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/audit"
	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/loopback"
	"github.com/coxswain-dev/coxswain/storage"
)

// loopbackClient is the server's client for itself. It deletes objects by the functions that answer a DELETE.
type loopbackClient struct {
	*loopback.Objects
	s *Server
}

var _ loopback.Client = loopbackClient{}

// ttlUser deletes objects whose time to live has ended. It needs no authorization: the right to delete was checked when
// the time to live was set.
var ttlUser = &authn.User{Name: "system:apiserver-ttl", Groups: []string{authn.GroupAuthenticated}}

// Delete implements loopback.Client.
func (c loopbackClient) Delete(ctx context.Context, res *api.Resource, stored *storage.Object) error {
	r, record, err := c.request(ctx, ttlUser, "delete", res, stored.Key.Namespace, stored.Key.Name)
	if err != nil {
		return err
	}
	uid, revision := types.UID(stored.UID), strconv.FormatInt(stored.Revision, 10)
	_, err = c.s.deleteOne(r, &metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &revision}})
	loopback.EndAudit(record, err)
	return err
}

// definitionUser deletes the objects of a kind whose definition is being deleted. It needs no authorization: the right
// to delete the definition includes the right to delete the objects.
var definitionUser = &authn.User{Name: "system:apiserver-definitions", Groups: []string{authn.GroupAuthenticated}}

// DeleteAll implements loopback.Client.
func (c loopbackClient) DeleteAll(ctx context.Context, res *api.Resource) error {
	list, err := c.Collection(res).List(ctx, storage.ListRequest{})
	if err != nil {
		return fmt.Errorf("delete all %s: %w", res.Plural, err)
	}
	if len(list.Items) == 0 {
		return nil
	}
	r, record, err := c.request(ctx, definitionUser, "deletecollection", res, "", "")
	if err != nil {
		return err
	}
	_, err = c.s.deleteListed(r, &metav1.DeleteOptions{}, list.Items)
	loopback.EndAudit(record, err)
	return err
}

// request returns a request of the server itself to delete an object, or all objects of a collection if name is empty.
// Admission plugins are not asked about a collection. The request has an exchange of its own. Its audit record is
// returned too; it is nil if there is no audit log.
func (c loopbackClient) request(ctx context.Context, user *authn.User, verb string, res *api.Resource, namespace,
	name string) (*request, *audit.Request, error) {
	e := &exchange{}
	ctx = authn.WithUser(e.in(ctx), user)
	hr, err := http.NewRequestWithContext(ctx, http.MethodDelete, "/", http.NoBody)
	if err != nil {
		return nil, nil, err
	}
	record := c.BeginAudit(ctx, user, verb, res, namespace, name)
	e.Record(record)
	return &request{Request: hr, verb: verb, res: res, objects: c.Collection(res), query: url.Values{},
		namespace: namespace, name: name, unadmitted: name == ""}, record, nil
}
