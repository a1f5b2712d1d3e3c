package authn

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// legacyIssuer signs the tokens in secrets of type kubernetes.io/service-account-token.
const legacyIssuer = "kubernetes/serviceaccount"

// invalidSince is the label that invalidates a legacy token before its secret is deleted.
// https://kubernetes.io/docs/reference/labels-annotations-taints/#kubernetes-io-legacy-token-invalid-since
const invalidSince = "kubernetes.io/legacy-token-invalid-since"

// LastUsedLabel is the label of a secret with the day of its token's last use.
// https://kubernetes.io/docs/reference/labels-annotations-taints/#kubernetes-io-legacy-token-last-used
const LastUsedLabel = "kubernetes.io/legacy-token-last-used"

// legacyClaims are the claims of a token in a secret. The token neither expires nor names an audience, and is valid
// as long as the secret contains it.
type legacyClaims struct {
	Namespace         string `json:"kubernetes.io/serviceaccount/namespace,omitempty"`
	ServiceAccount    string `json:"kubernetes.io/serviceaccount/service-account.name,omitempty"`
	ServiceAccountUID string `json:"kubernetes.io/serviceaccount/service-account.uid,omitempty"`
	Secret            string `json:"kubernetes.io/serviceaccount/secret.name,omitempty"`
}

// legacy returns the user of a token in a secret, if the secret and the account still exist.
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
	if secret.Labels[invalidSince] != "" {
		t.noteUse(ctx, secret) // the client will need it again
		return nil, errors.New("its secret has been marked as invalid")
	}
	account, err := t.objects.Find(ctx, serviceAccounts, l.Namespace, l.ServiceAccount)
	if err != nil {
		return nil, fmt.Errorf("looking up its account: %w", err)
	}
	if account.UID != l.ServiceAccountUID || !account.Deleted.IsZero() {
		return nil, errors.New("its account has been deleted")
	}
	t.noteUse(ctx, secret)
	return serviceAccountUser(l.Namespace, reference{Name: l.ServiceAccount, UID: l.ServiceAccountUID}, nil), nil
}

// noteUse records that a token was used today. The token is valid even if this fails.
func (t *serviceAccountTokens) noteUse(ctx context.Context, secret *corev1.Secret) {
	today := t.issuer.now().UTC().Format(time.DateOnly)
	if secret.Labels[LastUsedLabel] == today {
		return
	}
	if err := t.objects.TokenUsed(ctx, secret, today); err != nil {
		t.log.Warn("cannot record the use of a token", "secret", secret.Namespace+"/"+secret.Name, "err", err)
	}
}
