package authn

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
)

const (
	bootstrapSecretPrefix = "bootstrap-token-"
	bootstrapUserPrefix   = "system:bootstrap:"
	bootstrapGroup        = "system:bootstrappers"
)

var (
	bootstrapTokenForm = regexp.MustCompile(`^([a-z0-9]{6})\.([a-z0-9]{16})$`)
	bootstrapGroupForm = regexp.MustCompile(`^system:bootstrappers:[a-z0-9:-]{0,255}[a-z0-9]$`)
)

// bootstrapTokens authenticates joining nodes by the secrets bootstrap-token-ID in kube-system.
// https://kubernetes.io/docs/reference/access-authn-authz/bootstrap-tokens/
type bootstrapTokens struct {
	objects Objects
	clock   clock.PassiveClock
}

var errBadBootstrapToken = errors.New("bootstrap token: invalid or expired")

// AuthenticateToken implements TokenAuthenticator.
func (b bootstrapTokens) AuthenticateToken(ctx context.Context, token string, _ []string) (*Identity, bool, error) {
	parts := bootstrapTokenForm.FindStringSubmatch(token)
	if parts == nil {
		return nil, false, nil
	}
	id, key := parts[1], parts[2]
	secret, err := b.objects.Secret(ctx, metav1.NamespaceSystem, bootstrapSecretPrefix+id)
	if errors.Is(err, ErrNotFound) {
		return nil, false, errBadBootstrapToken
	}
	if err != nil {
		return nil, false, fmt.Errorf("bootstrap token: %w", err)
	}
	data := func(key string) string { return string(secret.Data[key]) }
	if secret.Type != corev1.SecretTypeBootstrapToken || secret.DeletionTimestamp != nil ||
		!sameSecret(secret.Data["token-secret"], []byte(key)) || data("token-id") != id ||
		data("usage-bootstrap-authentication") != "true" || b.expired(data("expiration")) {
		return nil, false, errBadBootstrapToken
	}
	groups := []string{bootstrapGroup}
	for group := range strings.SplitSeq(data("auth-extra-groups"), ",") {
		if group = strings.TrimSpace(group); group == "" {
			continue
		}
		if !bootstrapGroupForm.MatchString(group) {
			return nil, false, errBadBootstrapToken
		}
		groups = append(groups, group)
	}
	return &Identity{User: authenticated(&User{Name: bootstrapUserPrefix + id, Groups: groups})}, true, nil
}

// expired reports whether a token has expired. A time that cannot be parsed counts as expired.
func (b bootstrapTokens) expired(text string) bool {
	if text == "" {
		return false
	}
	expiration, err := time.Parse(time.RFC3339, text)
	return err != nil || !b.clock.Now().Before(expiration)
}
