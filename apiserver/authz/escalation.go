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

// EscalationCheck keeps users from handing out rights that they do not have, by writing a role or a binding: unless
// they may "escalate" the role, or "bind" the role that is bound.
// https://kubernetes.io/docs/reference/access-authn-authz/rbac/#privilege-escalation-prevention-and-bootstrapping
type EscalationCheck struct {
	Authorizer Authorizer
	RBAC       *RBAC
	Memory     Memory
}

// Grantor is the author of a write to a role or a binding: the user, and the namespace of the object, "" for a
// cluster's.
type Grantor struct {
	User      *authn.User
	Namespace string
}

// Role returns the reason why the user may not write a role, nil if it may. The resource is "roles" or "clusterroles",
// the name that of the request's path. The rules that an aggregated role will have are not known, nor those that it
// would have without the change: writing one takes every right.
func (c *EscalationCheck) Role(ctx context.Context, by Grantor, resource, name string, rules []rbacv1.PolicyRule,
	aggregated bool) error {
	if c.may(ctx, by, "escalate", resource, name) {
		return nil
	}
	if err := c.holds(ctx, by, rules); err != nil || !aggregated {
		return err
	}
	if short := c.holds(ctx, by, Everything); short != nil {
		return fmt.Errorf("must have cluster-admin privileges to use the aggregationRule: %w", short)
	}
	return nil
}

// Binding returns the reason why the user may not bind a role, nil if it may. A role that does not exist is a
// NotFound of the API.
func (c *EscalationCheck) Binding(ctx context.Context, by Grantor, ref rbacv1.RoleRef) error {
	resource := "clusterroles"
	if ref.Kind == "Role" {
		resource = "roles"
	}
	if c.may(ctx, by, "bind", resource, ref.Name) {
		return nil
	}
	if _, err := c.Memory.Revision(ctx); err != nil {
		return err
	}
	list, ok := c.RBAC.RoleRules(by.Namespace, ref)
	if !ok {
		return apierrors.NewNotFound(schema.GroupResource{Group: rbacv1.GroupName, Resource: resource}, ref.Name)
	}
	return c.holds(ctx, by, list)
}

func (c *EscalationCheck) may(ctx context.Context, by Grantor, verb, resource, name string) bool {
	decision, _, _ := c.Authorizer.Authorize(ctx, &Attributes{
		User: by.User, Verb: verb, Group: rbacv1.GroupName, Version: "v1", Resource: resource, Namespace: by.Namespace,
		Name: name,
	})
	return decision == Allow
}

// holds returns an error that lists those of the rules that the user does not hold itself.
func (c *EscalationCheck) holds(ctx context.Context, by Grantor, wanted []rbacv1.PolicyRule) error {
	if _, err := c.Memory.Revision(ctx); err != nil {
		return err
	}
	held, _, unsure := c.RBAC.RulesFor(by.User, by.Namespace)
	text, err := Escalation(ctx, by.User.Name, by.User.Groups, held, wanted, unsure)
	if text != "" {
		return errors.New(text)
	}
	return err
}
