// Package serviceaccount maintains the ServiceAccount "default" in every namespace. Pods that name no account use it.
package serviceaccount

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

const name = "default"

// New returns the controller. Its keys are namespaces.
func New(env *controller.Env) (*controller.Controller, error) {
	core := env.Informers.Core().V1()
	namespaces, accounts := core.Namespaces().Lister(), core.ServiceAccounts().Lister()
	c := controller.New(env, "serviceaccount", func(ctx context.Context, key string) error {
		ns, err := namespaces.Get(key)
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil || ns.DeletionTimestamp != nil {
			return err
		}
		if _, err := accounts.ServiceAccounts(key).Get(name); !apierrors.IsNotFound(err) {
			return err
		}
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: key, Name: name}}
		_, err = env.Client().CoreV1().ServiceAccounts(key).Create(ctx, account, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) ||
			apierrors.IsNotFound(err) {
			return nil // another client created it, or the namespace is terminating
		}
		return err
	})
	controller.Watch(c, core.Namespaces().Informer(), controller.Handler[*corev1.Namespace]{
		Add: func(ns *corev1.Namespace) { c.Enqueue(ns.Name) },
	})
	controller.Watch(c, core.ServiceAccounts().Informer(), controller.Handler[*corev1.ServiceAccount]{
		Delete: func(account *corev1.ServiceAccount) {
			if account.Name == name {
				c.Enqueue(account.Namespace)
			}
		},
	})
	return c, nil
}
