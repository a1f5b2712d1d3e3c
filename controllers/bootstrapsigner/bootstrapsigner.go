// Package bootstrapsigner signs the kubeconfig in the ConfigMap "cluster-info" of kube-public with every
// bootstrap token that may sign. So a client that has only a token can verify that the CA in the kubeconfig is
// the cluster's. https://kubernetes.io/docs/reference/access-authn-authz/bootstrap-tokens/#configmap-signing
package bootstrapsigner

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/controllers/lib/bootstraptoken"
	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
	"github.com/coxswain-dev/coxswain/internal/client/informer"
)

const (
	clusterInfo     = "cluster-info"
	kubeconfigKey   = "kubeconfig"
	signaturePrefix = "jws-kubeconfig-"
)

type signer struct {
	*controller.Controller
	client  func() kubernetes.Interface
	secrets corelisters.SecretNamespaceLister
	maps    corelisters.ConfigMapNamespaceLister
	clock   clock.PassiveClock
}

// New returns the controller. Its only key is the ConfigMap's name.
func New(env *controller.Env) (*controller.Controller, error) {
	tokens, secrets := bootstraptoken.Informer(env.Reader)
	infos := informer.NewFactory(env.Reader, informer.Options{
		Namespace: metav1.NamespacePublic, Tweak: func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("metadata.name", clusterInfo).String()
		},
	})
	configMaps := infos.Core().V1().ConfigMaps()
	s := &signer{
		client: env.Client, clock: env.Clock,
		secrets: secrets.Lister().Secrets(metav1.NamespaceSystem),
		maps:    configMaps.Lister().ConfigMaps(metav1.NamespacePublic),
	}
	s.Controller = controller.New(env, "bootstrap-signer", s.reconcile)
	controller.Watch(s.Controller, configMaps.Informer(), controller.Handler[*corev1.ConfigMap]{
		Add:    func(*corev1.ConfigMap) { s.Enqueue(clusterInfo) },
		Update: func(_, _ *corev1.ConfigMap) { s.Enqueue(clusterInfo) },
	})
	controller.Watch(s.Controller, secrets.Informer(), controller.Handler[*corev1.Secret]{
		Add:    func(*corev1.Secret) { s.Enqueue(clusterInfo) },
		Update: func(_, _ *corev1.Secret) { s.Enqueue(clusterInfo) },
		Delete: func(*corev1.Secret) { s.Enqueue(clusterInfo) },
	})
	s.AddInformers(tokens)
	s.AddInformers(infos)
	return s.Controller, nil
}

func (s *signer) reconcile(ctx context.Context, name string) error {
	info, err := s.maps.Get(name)
	if apierrors.IsNotFound(err) {
		return nil // the tool that joins nodes with tokens creates it
	}
	if err != nil {
		return err
	}
	want := maps.Clone(info.Data)
	maps.DeleteFunc(want, func(key, _ string) bool { return strings.HasPrefix(key, signaturePrefix) })
	secrets, err := s.secrets.List(labels.Everything())
	if err != nil {
		return err
	}
	now := s.clock.Now()
	for _, secret := range secrets {
		id, key, ok := bootstraptoken.Signing(secret, now)
		if !ok || info.Data[kubeconfigKey] == "" {
			continue
		}
		if want[signaturePrefix+id], err = sign(info.Data[kubeconfigKey], id, key); err != nil {
			return err
		}
		if end, expires := bootstraptoken.Expiration(secret); expires {
			s.EnqueueAt(name, end)
		}
	}
	if maps.Equal(want, info.Data) {
		return nil
	}
	info = info.DeepCopy()
	info.Data = want
	_, err = s.client().CoreV1().ConfigMaps(metav1.NamespacePublic).Update(ctx, info, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// sign returns a JWS with detached content (RFC 7515, appendix F): its payload is empty.
func sign(content, id, key string) (string, error) {
	header, err := json.Marshal(struct {
		Algorithm string `json:"alg"`
		KeyID     string `json:"kid"`
	}{"HS256", id})
	if err != nil {
		return "", fmt.Errorf("sign for token %s: %w", id, err)
	}
	encode := base64.RawURLEncoding.EncodeToString
	mac := hmac.New(sha256.New, []byte(key))
	_, _ = mac.Write([]byte(encode(header) + "." + encode([]byte(content)))) // never fails
	return encode(header) + ".." + encode(mac.Sum(nil)), nil
}
