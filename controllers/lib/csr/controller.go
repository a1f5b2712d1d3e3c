package csr

import (
	"context"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

// New returns a controller whose keys are requests. handle is called with each that exists and is not being deleted, as
// the cache has it: it must not be changed. A request that is gone when it is written to is no error.
func New(env *controller.Env, name string,
	handle func(context.Context, *certificatesv1.CertificateSigningRequest) error) *controller.Controller {
	informer := env.Informers.Certificates().V1().CertificateSigningRequests()
	lister := informer.Lister()
	c := controller.New(env, name, func(ctx context.Context, key string) error {
		r, err := lister.Get(key)
		if err == nil && r.DeletionTimestamp == nil {
			err = handle(ctx, r)
		}
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
	controller.Watch(c, informer.Informer(), controller.Handler[*certificatesv1.CertificateSigningRequest]{
		Add:    func(r *certificatesv1.CertificateSigningRequest) { c.EnqueueObject(r) },
		Update: func(_, r *certificatesv1.CertificateSigningRequest) { c.EnqueueObject(r) },
	})
	return c
}
