// Package trustbundle publishes one ClusterTrustBundle for each of two signers:
//
//   - kubernetes.io/kube-apiserver-serving: the certificates that authenticate the API server,
//   - kubernetes.io/kubelet-serving: the CA of the nodes' serving certificates, if it signs no other certificates.
//
// A bundle's name contains a hash of the certificates, so that clients notice a change.
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

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

const serverSigner = "kubernetes.io/kube-apiserver-serving"

type publisher struct {
	client    func() kubernetes.Interface
	bundles   certificateslisters.ClusterTrustBundleLister
	published map[string][]byte // PEM, by signer
}

// New returns the controller. Its keys are the signers. It does nothing if there is no bundle to publish: the API
// server has no CA of its own, and neither have the nodes' serving certificates.
func New(env *controller.Env) (*controller.Controller, error) {
	bundles := env.Informers.Certificates().V1().ClusterTrustBundles()
	p := &publisher{client: env.Client, bundles: bundles.Lister(), published: map[string][]byte{}}
	c := controller.New(env, "kube-apiserver-serving-clustertrustbundle-publisher", p.reconcile)
	if len(env.RootCA) > 0 {
		p.published[serverSigner] = env.RootCA
	}
	separate, err := env.Settings.Signing.KubeletServingAlone(env.RootCA)
	if err != nil {
		return nil, err
	}
	if separate {
		ca, _, err := env.Settings.Signing.KubeletServing.Load()
		if err != nil {
			return nil, err
		}
		p.published[certificatesv1.KubeletServingSignerName] = ca
	}
	if len(p.published) == 0 {
		return c, nil
	}
	changed := func(b *certificatesv1.ClusterTrustBundle) {
		if p.published[b.Spec.SignerName] != nil {
			c.Enqueue(b.Spec.SignerName)
		}
	}
	controller.Watch(c, bundles.Informer(), controller.Handler[*certificatesv1.ClusterTrustBundle]{
		Add: changed, Update: func(_, b *certificatesv1.ClusterTrustBundle) { changed(b) }, Delete: changed,
	})
	for signer := range p.published {
		c.Enqueue(signer)
	}
	return c, nil
}

// nameOf returns the name of a signer's bundle with these certificates.
func nameOf(signer string, pem []byte) string {
	sum := sha256.Sum256(pem)
	return fmt.Sprintf("%s:%x", strings.ReplaceAll(signer, "/", ":"), sum[:12])
}

func (p *publisher) reconcile(ctx context.Context, signer string) error {
	name := nameOf(signer, p.published[signer])
	if err := p.publish(ctx, signer, name); err != nil {
		return err
	}
	// Old bundles are deleted after the new one exists, so that clients always find one.
	all, err := p.bundles.List(labels.Everything())
	if err != nil {
		return err
	}
	for _, b := range all {
		if b.Spec.SignerName != signer || b.Name == name || b.DeletionTimestamp != nil {
			continue
		}
		err := p.client().CertificatesV1().ClusterTrustBundles().Delete(ctx, b.Name,
			metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &b.UID}})
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
}

// publish creates the bundle, or restores its content.
func (p *publisher) publish(ctx context.Context, signer, name string) error {
	pem := string(p.published[signer])
	b, err := p.bundles.Get(name)
	switch {
	case apierrors.IsNotFound(err):
		_, err = p.client().CertificatesV1().ClusterTrustBundles().Create(ctx, &certificatesv1.ClusterTrustBundle{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       certificatesv1.ClusterTrustBundleSpec{SignerName: signer, TrustBundle: pem},
		}, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) { // its event enqueues the signer again
			return nil
		}
		return err
	case err != nil || b.Spec.TrustBundle == pem:
		return err
	}
	b = b.DeepCopy()
	b.Spec.TrustBundle = pem
	_, err = p.client().CertificatesV1().ClusterTrustBundles().Update(ctx, b, metav1.UpdateOptions{})
	return err
}
