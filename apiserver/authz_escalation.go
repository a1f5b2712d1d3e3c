package apiserver

import (
	"context"
	"errors"
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/authz"
)

// checkEscalation keeps users from handing out rights that they do not have, by writing a role or a
// binding: unless they may "escalate" the role, or "bind" the role that is bound. old is nil for a
// create. Of a role that is there, the labels alone may hand its rights on, to all roles that aggregate
// it: every update is checked, but those by which an object is collected as garbage.
// https://kubernetes.io/docs/reference/access-authn-authz/rbac/#privilege-escalation-prevention-and-bootstrapping
func (s *Server) checkEscalation(ctx context.Context, r *request, obj, old api.Object) error {
	if r.res.Group != rbacv1.GroupName || r.user().In(authn.GroupMasters) || old != nil && sameBesideGarbage(obj, old) {
		return nil
	}
	var err error
	switch o := obj.(type) {
	case *rbacv1.Role:
		err = s.escalates(ctx, r, "roles", o.Rules, false)
	case *rbacv1.ClusterRole:
		was, _ := old.(*rbacv1.ClusterRole)
		err = s.escalates(ctx, r, "clusterroles", o.Rules, aggregates(o) || aggregates(was))
	case *rbacv1.RoleBinding:
		err = s.binds(ctx, r, o.RoleRef)
	case *rbacv1.ClusterRoleBinding:
		err = s.binds(ctx, r, o.RoleRef)
	}
	if err == nil || apierrors.IsNotFound(err) {
		return err
	}
	return apierrors.NewForbidden(r.res.GroupResource(), obj.GetName(), err)
}

// sameBesideGarbage reports that an update changes nothing but the metadata that garbage collection
// goes by. What an update may not change has been carried over already.
func sameBesideGarbage(obj, old api.Object) bool {
	same := obj.DeepCopyObject().(api.Object)
	same.SetOwnerReferences(old.GetOwnerReferences())
	same.SetFinalizers(old.GetFinalizers())
	same.SetManagedFields(old.GetManagedFields())
	same.GetObjectKind().SetGroupVersionKind(old.GetObjectKind().GroupVersionKind())
	return equality.Semantic.DeepEqual(same, old)
}

// aggregates reports that the rules of a role, which may be nil, are put together from other roles'.
func aggregates(role *rbacv1.ClusterRole) bool {
	return role != nil && role.AggregationRule != nil
}

// escalates reports why the caller may not write a role that grants the given rules. What an aggregated role
// will come to grant is not known, nor what it would have granted without the change: that takes every right.
func (s *Server) escalates(ctx context.Context, r *request, resource string, rules []rbacv1.PolicyRule, aggregated bool) error {
	if s.may(ctx, r, "escalate", resource, r.name) {
		return nil
	}
	if err := s.holds(ctx, r, rules); err != nil || !aggregated {
		return err
	}
	if short := s.holds(ctx, r, authz.Everything); short != nil {
		return fmt.Errorf("must have cluster-admin privileges to use the aggregationRule: %w", short)
	}
	return nil
}

// binds reports why the caller may not bind a role.
func (s *Server) binds(ctx context.Context, r *request, ref rbacv1.RoleRef) error {
	resource := "clusterroles"
	if ref.Kind == "Role" {
		resource = "roles"
	}
	if s.may(ctx, r, "bind", resource, ref.Name) {
		return nil
	}
	if _, err := s.Store.Revision(ctx); err != nil {
		return err
	}
	list, ok := s.policy.rbac.RoleRules(r.namespace, ref)
	if !ok {
		return apierrors.NewNotFound(schema.GroupResource{Group: rbacv1.GroupName, Resource: resource}, ref.Name)
	}
	return s.holds(ctx, r, list)
}

func (s *Server) may(ctx context.Context, r *request, verb, resource, name string) bool {
	decision, _, _ := s.decide(ctx, &authz.Attributes{
		User: r.user(), Verb: verb, Group: rbacv1.GroupName, Version: "v1", Resource: resource, Namespace: r.namespace, Name: name,
	})
	return decision == authz.Allow
}

// holds reports which of the rules the caller does not hold himself.
func (s *Server) holds(ctx context.Context, r *request, wanted []rbacv1.PolicyRule) error {
	if _, err := s.Store.Revision(ctx); err != nil {
		return err
	}
	held, _, unsure := s.policy.rbac.RulesFor(r.user(), r.namespace)
	if text := authz.Escalation(r.user().Name, r.user().Groups, held, wanted, unsure); text != "" {
		return errors.New(text)
	}
	return nil
}
