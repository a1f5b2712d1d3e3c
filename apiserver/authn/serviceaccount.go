package authn

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4/jwt"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// The keys of a service account token's attributes, in a user's extra.
const (
	ExtraPodName      = "authentication.kubernetes.io/pod-name"
	ExtraPodUID       = "authentication.kubernetes.io/pod-uid"
	ExtraNodeName     = "authentication.kubernetes.io/node-name"
	ExtraNodeUID      = "authentication.kubernetes.io/node-uid"
	ExtraCredentialID = "authentication.kubernetes.io/credential-id"
)

const (
	serviceAccountPrefix = "system:serviceaccount:"
	serviceAccountsGroup = "system:serviceaccounts"
	// PodTokenSeconds is the life of the token that every pod's volume requests: slightly more than an hour. A client
	// may read it only once, and by this number the server recognizes tokens that it signs for longer (KEP-1205).
	PodTokenSeconds = 60*60 + 7
	// leeway is the allowed difference between the clocks of API servers.
	leeway = time.Minute
	// verifiedTokens limits the cached verified tokens.
	verifiedTokens = 4096
)

// ServiceAccountName returns the user name of a service account.
func ServiceAccountName(namespace, name string) string {
	return serviceAccountPrefix + namespace + ":" + name
}

// SplitServiceAccountName splits a service account's user name.
func SplitServiceAccountName(user string) (namespace, name string, ok bool) {
	rest, ok := strings.CutPrefix(user, serviceAccountPrefix)
	if !ok {
		return "", "", false
	}
	namespace, name, ok = strings.Cut(rest, ":")
	return namespace, name, ok && namespace != "" && name != "" && !strings.Contains(name, ":")
}

// ServiceAccountGroups returns the groups of every service account in a namespace.
func ServiceAccountGroups(namespace string) []string {
	return []string{serviceAccountsGroup, serviceAccountsGroup + ":" + namespace}
}

// serviceAccountTokens authenticates the tokens that an Issuer signs. A valid signature is cached. The existence of
// the token's objects is checked each time, so that a token becomes invalid at once with its account, pod, secret
// or node.
type serviceAccountTokens struct {
	issuer   *Issuer
	objects  Objects
	verified *cache[*claims]
	log      *slog.Logger
}

func newServiceAccountTokens(issuer *Issuer, objects Objects, log *slog.Logger) *serviceAccountTokens {
	return &serviceAccountTokens{issuer: issuer, objects: objects, log: log,
		verified: newCache[*claims](verifiedTokens)}
}

// audience is always written as a list, as kube-apiserver writes it, and may be read from a string.
type audience []string

func (a *audience) UnmarshalJSON(text []byte) error {
	return (*jwt.Audience)(a).UnmarshalJSON(text)
}

// claims are the claims of bound tokens and, if Kubernetes is nil, of legacy ones.
type claims struct {
	jwt.Claims
	// Audience shadows the field of jwt.Claims, which writes one audience without a list.
	Audience   audience `json:"aud,omitempty"`
	Kubernetes *boundTo `json:"kubernetes.io,omitempty"`
	legacyClaims
}

// boundTo names the objects that a token is bound to: it ends when one of them does.
type boundTo struct {
	Namespace      string           `json:"namespace,omitempty"`
	ServiceAccount reference        `json:"serviceaccount,omitempty"`
	Pod            *reference       `json:"pod,omitempty"`
	Secret         *reference       `json:"secret,omitempty"`
	Node           *reference       `json:"node,omitempty"`
	WarnAfter      *jwt.NumericDate `json:"warnafter,omitempty"`
}

type reference struct {
	Name string `json:"name,omitempty"`
	UID  string `json:"uid,omitempty"`
}

// AuthenticateToken implements TokenAuthenticator.
func (t *serviceAccountTokens) AuthenticateToken(ctx context.Context, token string,
	audiences []string) (*Identity, bool, error) {
	now := t.issuer.now()
	key := sha256.Sum256([]byte(token))
	c, ok := t.verified.get(key, now)
	if !ok {
		if !t.issuer.issued(token) {
			return nil, false, nil
		}
		var err error
		if c, err = t.issuer.verify(token); err != nil {
			return nil, false, err
		}
		t.verified.put(key, c, now.Add(time.Hour))
	}
	if err := c.ValidateWithLeeway(jwt.Expected{Time: now}, leeway); err != nil {
		return nil, false, fmt.Errorf("service account token: %w", err)
	}
	intended := c.Audience
	if len(intended) == 0 { // legacy tokens name no audience
		intended = t.issuer.Audiences
	}
	accepted := meantFor(intended, audiences)
	if len(accepted) == 0 {
		return nil, false, errors.New("service account token: not meant for this audience")
	}
	var user *User
	var err error
	if c.Kubernetes != nil {
		user, err = t.bound(ctx, c, now)
	} else {
		user, err = t.legacy(ctx, c, token)
	}
	if err != nil {
		return nil, false, fmt.Errorf("service account token: %w", err)
	}
	return &Identity{User: authenticated(user), Audiences: accepted}, true, nil
}

// bound returns the user of a token of the TokenRequest API, if all objects that it is bound to still exist.
func (t *serviceAccountTokens) bound(ctx context.Context, c *claims, now time.Time) (*User, error) {
	objects := c.Kubernetes
	if objects.Namespace == "" || objects.ServiceAccount.Name == "" ||
		c.Subject != ServiceAccountName(objects.Namespace, objects.ServiceAccount.Name) {
		return nil, errors.New("sub claim is not that of its account")
	}
	if err := t.exists(ctx, serviceAccounts, objects.Namespace, objects.ServiceAccount, now); err != nil {
		return nil, err
	}
	extra := map[string][]string{}
	if c.ID != "" {
		extra[ExtraCredentialID] = []string{"JTI=" + c.ID}
	}
	switch {
	case objects.Secret != nil:
		if err := t.exists(ctx, secrets, objects.Namespace, *objects.Secret, now); err != nil {
			return nil, err
		}
	case objects.Pod != nil:
		if err := t.exists(ctx, pods, objects.Namespace, *objects.Pod, now); err != nil {
			return nil, err
		}
		extra[ExtraPodName], extra[ExtraPodUID] = []string{objects.Pod.Name}, []string{objects.Pod.UID}
	case objects.Node != nil:
		if err := t.exists(ctx, nodes, "", *objects.Node, now); err != nil {
			return nil, err
		}
	}
	if objects.Node != nil {
		extra[ExtraNodeName] = []string{objects.Node.Name}
		if objects.Node.UID != "" {
			extra[ExtraNodeUID] = []string{objects.Node.UID}
		}
	}
	return serviceAccountUser(objects.Namespace, objects.ServiceAccount, extra), nil
}

// exists returns an error unless an object exists, is the same as when the token was made, and has not been
// terminating for longer than leeway.
func (t *serviceAccountTokens) exists(ctx context.Context, resource schema.GroupResource, namespace string,
	ref reference, now time.Time) error {
	found, err := t.objects.Find(ctx, resource, namespace, ref.Name)
	if err != nil {
		return fmt.Errorf("looking up its %s: %w", resource.Resource, err)
	}
	if found.UID != ref.UID {
		return fmt.Errorf("its %s is not the one it was made for", resource.Resource)
	}
	if !found.Deleted.IsZero() && found.Deleted.Before(now.Add(-leeway)) {
		return fmt.Errorf("its %s has been deleted", resource.Resource)
	}
	return nil
}

func serviceAccountUser(namespace string, account reference, extra map[string][]string) *User {
	return &User{
		Name: ServiceAccountName(namespace, account.Name), UID: account.UID,
		Groups: slices.Grow(ServiceAccountGroups(namespace), 1), Extra: extra,
	}
}

// claimedIssuer returns the issuer that a JWT claims, before it is verified; "" if the text is not a JWT.
func claimedIssuer(token string) string {
	_, rest, _ := strings.Cut(token, ".")
	payload, signature, _ := strings.Cut(rest, ".")
	if strings.Contains(signature, ".") {
		return ""
	}
	doc, err := base64.RawURLEncoding.DecodeString(payload)
	if err != nil {
		return ""
	}
	var c struct {
		Issuer string `json:"iss"`
	}
	if json.Unmarshal(doc, &c) != nil {
		return ""
	}
	return c.Issuer
}
