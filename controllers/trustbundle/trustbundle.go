// Package trustbundle keeps one ClusterTrustBundle of the signer kubernetes.io/kube-apiserver-serving: the
// certificates that authenticate the API server. Its name contains a hash of them, so that its readers notice
// when they change.
package trustbundle

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	certificateslisters "k8s.io/client-go/listers/certificates/v1"

	"github.com/coxswain-dev/coxswain/controllers/controller"
)

const signer = "kubernetes.io/kube-apiserver-serving"

type publisher struct {
	client  kubernetes.Interface
	bundles certificateslisters.ClusterTrustBundleLister
	name    string
	pem     string
}

// New returns the controller. It has one key, the signer. Where the API server is known by no certificates of its own,
// there is nothing to publish, and it does nothing.
func New(env *controller.Env) (*controller.Controller, error) {
	bundles := env.Informers.Certificates().V1().ClusterTrustBundles()
	p := &publisher{client: env.Client, bundles: bundles.Lister(), name: nameOf(env.RootCA), pem: string(env.RootCA)}
	c := controller.New(env, "kube-apiserver-serving-clustertrustbundle-publisher", p.reconcile)
	if len(env.RootCA) == 0 {
		return c, nil
	}
	changed := func(b *certificatesv1.ClusterTrustBundle) {
		if b.Spec.SignerName == signer {
			c.Enqueue(signer)
		}
	}
	controller.Watch(c, bundles.Informer(), controller.Handler[*certificatesv1.ClusterTrustBundle]{
		Add: changed, Update: func(_, b *certificatesv1.ClusterTrustBundle) { changed(b) }, Delete: changed,
	})
	c.Enqueue(signer)
	return c, nil
}

func nameOf(pem []byte) string {
	sum := sha256.Sum256(pem)
	return fmt.Sprintf("%s:%x", strings.ReplaceAll(signer, "/", ":"), sum[:12])
}

func (p *publisher) reconcile(ctx context.Context, _ string) error {
	if err := p.publish(ctx); err != nil {
		return err
	}
	// Others go after the new one is there: nobody is without.
	all, err := p.bundles.List(labels.Everything())
	if err != nil {
		return err
	}
	for _, b := range all {
		if b.Spec.SignerName != signer || b.Name == p.name || b.DeletionTimestamp != nil {
			continue
		}
		err := p.client.CertificatesV1().ClusterTrustBundles().Delete(ctx, b.Name,
			metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &b.UID}})
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
}

func (p *publisher) publish(ctx context.Context) error {
	b, err := p.bundles.Get(p.name)
	switch {
	case apierrors.IsNotFound(err):
		_, err = p.client.CertificatesV1().ClusterTrustBundles().Create(ctx, &certificatesv1.ClusterTrustBundle{
			ObjectMeta: metav1.ObjectMeta{Name: p.name},
			Spec:       certificatesv1.ClusterTrustBundleSpec{SignerName: signer, TrustBundle: p.pem},
		}, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) { // the cache will show it too
			return nil
		}
		return err
	case err != nil || b.Spec.TrustBundle == p.pem:
		return err
	}
	b = b.DeepCopy()
	b.Spec.TrustBundle = p.pem
	_, err = p.client.CertificatesV1().ClusterTrustBundles().Update(ctx, b, metav1.UpdateOptions{})
	return err
}
