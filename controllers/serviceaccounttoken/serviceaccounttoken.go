// Package serviceaccounttoken fills Secrets of type kubernetes.io/service-account-token with a token of the account in
// their annotation, the CA of the API server and the namespace. It deletes them with their account. Such tokens never
// expire: clients should use tokens of the TokenRequest API where possible.
// https://kubernetes.io/docs/concepts/configuration/secret/#serviceaccount-token-secrets
package serviceaccounttoken

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
	"github.com/coxswain-dev/coxswain/internal/client/informer"
)

type tokens struct {
	*controller.Controller
	client   func() kubernetes.Interface
	secrets  corelisters.SecretLister
	accounts corelisters.ServiceAccountLister
	byOwner  cache.Indexer
	signer   *signer
	rootCA   []byte
}

const accountIndex = "account" // the index of secrets by their account

// New returns the controller. Its keys are Secrets. Without Settings.ServiceAccountKey it cannot sign
// tokens, and has no effect.
func New(env *controller.Env) (*controller.Controller, error) {
	t := &tokens{client: env.Client, rootCA: env.RootCA}
	t.Controller = controller.New(env, "serviceaccount-token-controller", t.reconcile)
	if len(env.Settings.ServiceAccountKey) == 0 {
		return t.Controller, nil
	}
	var err error
	if t.signer, err = newSigner(env.Settings.ServiceAccountKey); err != nil {
		return nil, err
	}
	// Only Secrets of this type are kept in memory.
	factory := informer.NewFactory(env.Client(), informer.Options{Tweak: func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("type", string(corev1.SecretTypeServiceAccountToken)).String()
	}})
	secrets := factory.Core().V1().Secrets()
	t.secrets, t.byOwner = secrets.Lister(), secrets.Informer().GetIndexer()
	if err := t.byOwner.AddIndexers(cache.Indexers{accountIndex: accountOf}); err != nil {
		return nil, fmt.Errorf("index secrets: %w", err)
	}
	controller.Watch(t.Controller, secrets.Informer(), controller.Handler[*corev1.Secret]{
		Add:    func(s *corev1.Secret) { t.EnqueueObject(s) },
		Update: func(_, s *corev1.Secret) { t.EnqueueObject(s) },
	})
	accounts := env.Informers.Core().V1().ServiceAccounts()
	t.accounts = accounts.Lister()
	controller.Watch(t.Controller, accounts.Informer(), controller.Handler[*corev1.ServiceAccount]{
		Add: t.enqueueTokens, Delete: t.enqueueTokens,
	})
	t.AddInformers(factory)
	return t.Controller, nil
}

func accountOf(obj any) ([]string, error) {
	s, ok := obj.(*corev1.Secret)
	if !ok {
		return nil, fmt.Errorf("%T is no secret", obj)
	}
	return []string{s.Namespace + "/" + s.Annotations[corev1.ServiceAccountNameKey]}, nil
}

// enqueueTokens enqueues the secrets of an account.
func (t *tokens) enqueueTokens(account *corev1.ServiceAccount) {
	secrets, err := t.byOwner.ByIndex(accountIndex, account.Namespace+"/"+account.Name)
	if err != nil {
		return // the index exists
	}
	for _, s := range secrets {
		t.EnqueueObject(s.(*corev1.Secret))
	}
}

func (t *tokens) reconcile(ctx context.Context, key string) error {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return err
	}
	secret, err := t.secrets.Secrets(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil || secret.DeletionTimestamp != nil || secret.Annotations[corev1.ServiceAccountNameKey] == "" {
		return err
	}
	account, err := t.account(ctx, secret)
	if err != nil {
		return err
	}
	if account == nil {
		return t.remove(ctx, secret)
	}
	if !t.lacks(secret, account) {
		return nil
	}
	return t.fill(ctx, secret, account)
}

// account returns the account of a secret. It returns nil if the account no longer exists or has another uid. The API
// server must confirm that, because the deletion of the secret cannot be undone.
func (t *tokens) account(ctx context.Context, secret *corev1.Secret) (*corev1.ServiceAccount, error) {
	name, uid := secret.Annotations[corev1.ServiceAccountNameKey], secret.Annotations[corev1.ServiceAccountUIDKey]
	matches := func(a *corev1.ServiceAccount) bool { return uid == "" || uid == string(a.UID) }
	account, err := t.accounts.ServiceAccounts(secret.Namespace).Get(name)
	if err == nil && matches(account) {
		return account, nil
	}
	account, err = t.client().CoreV1().ServiceAccounts(secret.Namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, err
	case !matches(account):
		return nil, nil
	}
	return account, nil
}

func (t *tokens) remove(ctx context.Context, secret *corev1.Secret) error {
	err := t.client().CoreV1().Secrets(secret.Namespace).Delete(ctx, secret.Name,
		metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(secret.UID))})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// lacks reports whether a field of the secret is missing or outdated.
func (t *tokens) lacks(secret *corev1.Secret, account *corev1.ServiceAccount) bool {
	return secret.Annotations[corev1.ServiceAccountUIDKey] != string(account.UID) ||
		len(secret.Data[corev1.ServiceAccountTokenKey]) == 0 ||
		len(secret.Data[corev1.ServiceAccountNamespaceKey]) == 0 ||
		len(t.rootCA) > 0 && !bytes.Equal(secret.Data[corev1.ServiceAccountRootCAKey], t.rootCA)
}

// fill reads the secret from the API server and adds the missing fields. It does not replace an existing token.
func (t *tokens) fill(ctx context.Context, cached *corev1.Secret, account *corev1.ServiceAccount) error {
	secrets := t.client().CoreV1().Secrets(cached.Namespace)
	secret, err := secrets.Get(ctx, cached.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && secret.UID != cached.UID {
		return nil
	}
	if err != nil || !t.lacks(secret, account) {
		return err
	}
	if secret.Data == nil {
		secret.Data = map[string][]byte{}
	}
	if len(t.rootCA) > 0 {
		secret.Data[corev1.ServiceAccountRootCAKey] = t.rootCA
	}
	if len(secret.Data[corev1.ServiceAccountNamespaceKey]) == 0 {
		secret.Data[corev1.ServiceAccountNamespaceKey] = []byte(secret.Namespace)
	}
	if len(secret.Data[corev1.ServiceAccountTokenKey]) == 0 {
		token, err := t.signer.sign(account, secret)
		if err != nil {
			return err
		}
		secret.Data[corev1.ServiceAccountTokenKey] = []byte(token)
	}
	secret.Annotations[corev1.ServiceAccountUIDKey] = string(account.UID)
	_, err = secrets.Update(ctx, secret, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

var errKey = errors.New("the service accounts' key is no ECDSA or RSA private key in PEM")
