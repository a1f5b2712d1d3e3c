package apiserver

import (
	"context"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/authz"
)

// escalate keeps users from granting rights that they do not have (authz.EscalationCheck), if the object's kind grants
// rights. An update that changes only the labels of a role may grant its rights through roles that aggregate it:
// therefore every update is checked, except the updates of garbage collection.
func escalate(s *Server, ctx context.Context, wr *write) error {
	if wr.res.Grants == nil || wr.user().In(authn.GroupMasters) ||
		wr.old != nil && sameBesideGarbage(wr.obj, wr.old) {
		return nil
	}
	grantor := authz.Grantor{User: wr.user(), Namespace: wr.namespace}
	grant := wr.res.Grants(wr.obj, wr.old)
	var err error
	if grant.Role != nil {
		err = s.escalation.Binding(ctx, grantor, *grant.Role)
	} else {
		err = s.escalation.Role(ctx, grantor, wr.res.Plural, wr.request.name, grant.Rules, grant.Aggregated)
	}
	if err == nil || apierrors.IsNotFound(err) {
		return err
	}
	return apierrors.NewForbidden(wr.res.GroupResource(), wr.obj.GetName(), err)
}

// sameBesideGarbage reports whether an update changes only the metadata of garbage collection. prepare has copied the
// fields that an update must not change.
func sameBesideGarbage(obj, old api.Object) bool {
	same := obj.DeepCopyObject().(api.Object)
	same.SetOwnerReferences(old.GetOwnerReferences())
	same.SetFinalizers(old.GetFinalizers())
	same.SetManagedFields(old.GetManagedFields())
	same.GetObjectKind().SetGroupVersionKind(old.GetObjectKind().GroupVersionKind())
	return equality.Semantic.DeepEqual(same, old)
}
