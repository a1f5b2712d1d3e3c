package authz

import (
	"context"
	"errors"
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/coxswain-dev/coxswain/apiserver/authn"
)

// EscalationCheck keeps users from granting rights that they do not have, by writing a role or a binding. It lets
// them if they may "escalate" the role, or "bind" the role that a binding refers to.
// https://kubernetes.io/docs/reference/access-authn-authz/rbac/#privilege-escalation-prevention-and-bootstrapping
type EscalationCheck struct {
	Authorizer Authorizer
	RBAC       *RBAC
	Memory     Memory
}

// Grantor is the author of a write to a role or a binding: the user, and the namespace of the object, "" for a
// cluster-scoped one.
type Grantor struct {
	User      *authn.User
	Namespace string
}

// Role returns the reason why the user may not write a role, nil if it may. The resource is "roles" or
// "clusterroles", and the name is from the request's path. The rules of an aggregated role are not known, neither
// with the change nor without it. Writing one therefore requires every right.
func (c *EscalationCheck) Role(ctx context.Context, grantor Grantor, resource, name string, rules []rbacv1.PolicyRule,
	aggregated bool) error {
	if c.may(ctx, grantor, "escalate", resource, name) {
		return nil
	}
	if err := c.holds(ctx, grantor, rules); err != nil || !aggregated {
		return err
	}
	if short := c.holds(ctx, grantor, Everything); short != nil {
		return fmt.Errorf("must have cluster-admin privileges to use the aggregationRule: %w", short)
	}
	return nil
}

// Binding returns the reason why the user may not bind a role, nil if it may. For a role that does not exist it is
// a NotFound error of the API.
func (c *EscalationCheck) Binding(ctx context.Context, grantor Grantor, ref rbacv1.RoleRef) error {
	resource := "clusterroles"
	if ref.Kind == "Role" {
		resource = "roles"
	}
	if c.may(ctx, grantor, "bind", resource, ref.Name) {
		return nil
	}
	if _, err := c.Memory.Revision(ctx); err != nil {
		return err
	}
	list, ok := c.RBAC.RoleRules(grantor.Namespace, ref)
	if !ok {
		return apierrors.NewNotFound(schema.GroupResource{Group: rbacv1.GroupName, Resource: resource}, ref.Name)
	}
	return c.holds(ctx, grantor, list)
}

func (c *EscalationCheck) may(ctx context.Context, grantor Grantor, verb, resource, name string) bool {
	decision, _, _ := c.Authorizer.Authorize(ctx, &Attributes{
		User: grantor.User, Verb: verb, Group: rbacv1.GroupName, Version: "v1", Resource: resource,
		Namespace: grantor.Namespace, Name: name,
	})
	return decision == Allow
}

// holds returns an error that lists the rules that the user does not hold itself.
func (c *EscalationCheck) holds(ctx context.Context, grantor Grantor, requested []rbacv1.PolicyRule) error {
	if _, err := c.Memory.Revision(ctx); err != nil {
		return err
	}
	granted, _, unsure := c.RBAC.RulesFor(grantor.User, grantor.Namespace)
	text, err := Escalation(ctx, grantor.User.Name, grantor.User.Groups, granted, requested, unsure)
	if text != "" {
		return errors.New(text)
	}
	return err
}
