// Package bootstraptoken reads the Secrets that hold bootstrap tokens, for the two controllers that
// maintain them.
// https://kubernetes.io/docs/reference/access-authn-authz/bootstrap-tokens/#bootstrap-token-secret-format
package bootstraptoken

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/coxswain-dev/coxswain/internal/client/informer"
)

const (
	namePrefix = "bootstrap-token-"
	keyID      = "token-id"
	keySecret  = "token-secret"
	keyExpires = "expiration"
	keySigning = "usage-bootstrap-signing"
)

// Informer returns an informer of the Secrets in kube-system that hold bootstrap tokens. Starting the factory
// starts it.
func Informer(client kubernetes.Interface) (*informer.Factory, coreinformers.SecretInformer) {
	factory := informer.NewFactory(client, informer.Options{
		Namespace: metav1.NamespaceSystem, Tweak: func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("type", string(corev1.SecretTypeBootstrapToken)).String()
		},
	})
	return factory, factory.Core().V1().Secrets()
}

// Expiration returns when a token expires, if it does. A token with an unreadable expiration has expired.
func Expiration(secret *corev1.Secret) (end time.Time, expires bool) {
	text := secret.Data[keyExpires]
	if len(text) == 0 {
		return time.Time{}, false
	}
	end, err := time.Parse(time.RFC3339, string(text))
	if err != nil {
		return time.Time{}, true
	}
	return end, true
}

// Signing returns the ID and the secret of a token that may sign; ok is false if the token does not sign or has
// expired.
func Signing(secret *corev1.Secret, now time.Time) (id, key string, ok bool) {
	id, key = string(secret.Data[keyID]), string(secret.Data[keySecret])
	end, expires := Expiration(secret)
	ok = id != "" && key != "" && secret.Name == namePrefix+id && secret.DeletionTimestamp == nil &&
		string(secret.Data[keySigning]) == "true" && (!expires || now.Before(end))
	return id, key, ok
}
