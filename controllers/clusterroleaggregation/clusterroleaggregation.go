// Package clusterroleaggregation gives each ClusterRole with an aggregationRule the rules of the ClusterRoles that it
// selects. So the author of a new kind also defines the rights of view, edit and admin to its objects.
// https://kubernetes.io/docs/reference/access-authn-authz/rbac/#aggregated-clusterroles
package clusterroleaggregation

import (
	"context"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	rbaclisters "k8s.io/client-go/listers/rbac/v1"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

type aggregation struct {
	*controller.Controller
	client func() kubernetes.Interface
	roles  rbaclisters.ClusterRoleLister
}

// New returns the controller. Its keys are ClusterRoles that have an aggregationRule.
func New(env *controller.Env) (*controller.Controller, error) {
	informer := env.Informers.Rbac().V1().ClusterRoles()
	a := &aggregation{client: env.Client, roles: informer.Lister()}
	a.Controller = controller.New(env, "clusterrole-aggregation-controller", a.reconcile)
	controller.Watch(a.Controller, informer.Informer(), controller.Handler[*rbacv1.ClusterRole]{
		Add:    func(*rbacv1.ClusterRole) { a.enqueueAll() },
		Update: func(_, _ *rbacv1.ClusterRole) { a.enqueueAll() },
		Delete: func(*rbacv1.ClusterRole) { a.enqueueAll() },
	})
	return a.Controller, nil
}

// enqueueAll enqueues all aggregated roles: a role whose labels changed may have been part of a role that no
// longer selects it.
func (a *aggregation) enqueueAll() {
	roles, err := a.roles.List(labels.Everything())
	if err != nil {
		return // a lister never fails
	}
	for _, role := range roles {
		if role.AggregationRule != nil {
			a.Enqueue(role.Name)
		}
	}
}

func (a *aggregation) reconcile(ctx context.Context, name string) error {
	role, err := a.roles.Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil || role.AggregationRule == nil {
		return err
	}
	rules, err := a.aggregate(role)
	if err != nil || equality.Semantic.DeepEqual(rules, role.Rules) {
		return err
	}
	role = role.DeepCopy()
	role.Rules = rules
	_, err = a.client().RbacV1().ClusterRoles().Update(ctx, role, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// aggregate returns the rules of all roles that a role selects, without duplicates.
func (a *aggregation) aggregate(role *rbacv1.ClusterRole) ([]rbacv1.PolicyRule, error) {
	var rules []rbacv1.PolicyRule
	for i := range role.AggregationRule.ClusterRoleSelectors {
		selector, err := metav1.LabelSelectorAsSelector(&role.AggregationRule.ClusterRoleSelectors[i])
		if err != nil {
			return nil, err
		}
		parts, err := a.roles.List(selector)
		if err != nil {
			return nil, err
		}
		slices.SortFunc(parts, func(x, y *rbacv1.ClusterRole) int { return strings.Compare(x.Name, y.Name) })
		for _, part := range parts {
			if part.Name == role.Name {
				continue
			}
			for _, rule := range part.Rules {
				if !slices.ContainsFunc(rules, func(r rbacv1.PolicyRule) bool {
					return equality.Semantic.DeepEqual(r, rule)
				}) {
					rules = append(rules, rule)
				}
			}
		}
	}
	return rules, nil
}
