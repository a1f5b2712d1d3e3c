package authn

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// legacyIssuer signs the tokens in secrets of type kubernetes.io/service-account-token.
const legacyIssuer = "kubernetes/serviceaccount"

// legacyClaims are what a token in a secret says: it neither expires nor names an audience,
// and is good for as long as the secret holds it.
type legacyClaims struct {
	Namespace         string `json:"kubernetes.io/serviceaccount/namespace,omitempty"`
	ServiceAccount    string `json:"kubernetes.io/serviceaccount/service-account.name,omitempty"`
	ServiceAccountUID string `json:"kubernetes.io/serviceaccount/service-account.uid,omitempty"`
	Secret            string `json:"kubernetes.io/serviceaccount/secret.name,omitempty"`
}

// legacy is whose a token in a secret is, if the secret and the account still exist.
func (t *serviceAccountTokens) legacy(ctx context.Context, c *claims, token string) (*User, error) {
	l := c.legacyClaims
	if c.Issuer != legacyIssuer || l.Namespace == "" || l.Secret == "" || l.ServiceAccountUID == "" ||
		c.Subject != ServiceAccountName(l.Namespace, l.ServiceAccount) {
		return nil, errors.New("its claims are incomplete")
	}
	secret, err := t.objects.Secret(ctx, l.Namespace, l.Secret)
	if err != nil {
		return nil, fmt.Errorf("looking up its secret: %w", err)
	}
	if secret.DeletionTimestamp != nil || !sameSecret(secret.Data[corev1.ServiceAccountTokenKey], []byte(token)) {
		return nil, errors.New("its secret does not hold it any more")
	}
	account, err := t.objects.Find(ctx, serviceAccounts, l.Namespace, l.ServiceAccount)
	if err != nil {
		return nil, fmt.Errorf("looking up its account: %w", err)
	}
	if account.UID != l.ServiceAccountUID || !account.Deleted.IsZero() {
		return nil, errors.New("its account has been deleted")
	}
	return serviceAccountUser(l.Namespace, reference{Name: l.ServiceAccount, UID: l.ServiceAccountUID}, nil), nil
}
