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

// checkEscalation keeps anyone from handing out rights that he does not have, by writing a role or a
// binding: unless he may "escalate" the role, or "bind" the role that is bound. old is nil for a
// create.
// https://kubernetes.io/docs/reference/access-authn-authz/rbac/#privilege-escalation-prevention-and-bootstrapping
func (s *Server) checkEscalation(ctx context.Context, r *request, obj, old api.Object) error {
	if r.res.Group != rbacv1.GroupName || r.user().In(authn.GroupMasters) {
		return nil
	}
	var err error
	switch o := obj.(type) {
	case *rbacv1.Role:
		was, _ := old.(*rbacv1.Role)
		if was != nil && equality.Semantic.DeepEqual(was.Rules, o.Rules) || s.may(ctx, r, "escalate", "roles", r.name) {
			return nil
		}
		err = s.holds(ctx, r, o.Rules)
	case *rbacv1.ClusterRole:
		was, _ := old.(*rbacv1.ClusterRole)
		if was != nil && equality.Semantic.DeepEqual(was.Rules, o.Rules) && equality.Semantic.DeepEqual(was.AggregationRule, o.AggregationRule) ||
			s.may(ctx, r, "escalate", "clusterroles", r.name) {
			return nil
		}
		err = s.holds(ctx, r, o.Rules)
		if err == nil && o.AggregationRule != nil { // what it will come to hold is not known
			if short := s.holds(ctx, r, authz.Everything); short != nil {
				err = fmt.Errorf("must have cluster-admin privileges to use the aggregationRule: %w", short)
			}
		}
	case *rbacv1.RoleBinding:
		if was, _ := old.(*rbacv1.RoleBinding); was != nil && was.RoleRef == o.RoleRef && equality.Semantic.DeepEqual(was.Subjects, o.Subjects) {
			return nil
		}
		err = s.binds(ctx, r, o.RoleRef)
	case *rbacv1.ClusterRoleBinding:
		if was, _ := old.(*rbacv1.ClusterRoleBinding); was != nil && was.RoleRef == o.RoleRef && equality.Semantic.DeepEqual(was.Subjects, o.Subjects) {
			return nil
		}
		err = s.binds(ctx, r, o.RoleRef)
	}
	if err == nil || apierrors.IsNotFound(err) {
		return err
	}
	return apierrors.NewForbidden(r.res.GroupResource(), obj.GetName(), err)
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
