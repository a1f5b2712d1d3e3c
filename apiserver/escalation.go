package apiserver

import (
	"context"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/authz"
)

// escalate keeps users from handing out rights that they do not have (authz.EscalationCheck), by an object whose kind
// grants any. Of a role that is there, the labels alone may hand its rights on, to all roles that aggregate it: every
// update is checked, but those by which an object is collected as garbage.
func escalate(s *Server, ctx context.Context, wr *write) error {
	if wr.res.Grants == nil || wr.user().In(authn.GroupMasters) ||
		wr.old != nil && sameBesideGarbage(wr.obj, wr.old) {
		return nil
	}
	by := authz.Grantor{User: wr.user(), Namespace: wr.namespace}
	grant := wr.res.Grants(wr.obj, wr.old)
	var err error
	if grant.Role != nil {
		err = s.escalation.Binding(ctx, by, *grant.Role)
	} else {
		err = s.escalation.Role(ctx, by, wr.res.Plural, wr.request.name, grant.Rules, grant.Aggregated)
	}
	if err == nil || apierrors.IsNotFound(err) {
		return err
	}
	return apierrors.NewForbidden(wr.res.GroupResource(), wr.obj.GetName(), err)
}

// sameBesideGarbage reports that an update changes nothing but the metadata that garbage collection
// goes by. The fields that an update may not change have been carried over already.
func sameBesideGarbage(obj, old api.Object) bool {
	same := obj.DeepCopyObject().(api.Object)
	same.SetOwnerReferences(old.GetOwnerReferences())
	same.SetFinalizers(old.GetFinalizers())
	same.SetManagedFields(old.GetManagedFields())
	same.GetObjectKind().SetGroupVersionKind(old.GetObjectKind().GroupVersionKind())
	return equality.Semantic.DeepEqual(same, old)
}
