package authn

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/clock"
)

// WebhookOptions configure a service that authenticates tokens, as the flags
// --authentication-token-webhook-* do.
type WebhookOptions struct {
	// ConfigFile is a kubeconfig: its cluster is the service, and its user this server's user there.
	ConfigFile string
	// Version is the version of the TokenReview that is sent: "v1beta1" by default, or "v1".
	Version string
	// CacheTTL is how long a response is cached; with 0, each request asks the service.
	CacheTTL time.Duration
}

const (
	webhookTimeout = 30 * time.Second
	// webhookAnswers limits the cached responses, and maxWebhookAnswer the bytes of one.
	webhookAnswers   = 4096
	maxWebhookAnswer = 1 << 20
)

// webhookTokens asks a service about tokens that no other authenticator accepts.
// https://kubernetes.io/docs/reference/access-authn-authz/authentication/#webhook-token-authentication
type webhookTokens struct {
	url, version string
	ttl          time.Duration
	client       *http.Client
	clock        clock.PassiveClock
	apiAudiences []string
	answers      *cache[webhookAnswer]
}

type webhookAnswer struct {
	id *Identity // nil: not valid for the service
}

func newWebhook(o WebhookOptions, audiences []string, clock clock.PassiveClock) (*webhookTokens, error) {
	if o.Version == "" {
		o.Version = "v1beta1"
	}
	if o.Version != "v1" && o.Version != "v1beta1" {
		return nil, fmt.Errorf("authn: webhook: version %q of TokenReview is neither v1 nor v1beta1", o.Version)
	}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: o.ConfigFile}, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("authn: webhook: %w", err)
	}
	config.Timeout = webhookTimeout
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("authn: webhook: %w", err)
	}
	return &webhookTokens{
		url: config.Host, version: o.Version, ttl: o.CacheTTL, client: client, clock: clock,
		apiAudiences: audiences, answers: newCache[webhookAnswer](webhookAnswers),
	}, nil
}

// AuthenticateToken implements TokenAuthenticator.
func (t *webhookTokens) AuthenticateToken(ctx context.Context, token string,
	audiences []string) (*Identity, bool, error) {
	key := sha256.Sum256([]byte(token + "\x00" + strings.Join(audiences, "\x00")))
	now := t.clock.Now()
	answer, ok := t.answers.get(key, now)
	if !ok {
		id, err := t.ask(ctx, token, audiences)
		if err != nil {
			return nil, false, fmt.Errorf("webhook: %w", err)
		}
		answer = webhookAnswer{id}
		if t.ttl > 0 {
			t.answers.put(key, answer, now.Add(t.ttl))
		}
	}
	return answer.id, answer.id != nil, nil
}

func (t *webhookTokens) ask(ctx context.Context, token string, audiences []string) (*Identity, error) {
	body, err := json.Marshal(authenticationv1.TokenReview{
		TypeMeta: metav1.TypeMeta{APIVersion: authenticationv1.GroupName + "/" + t.version, Kind: "TokenReview"},
		Spec:     authenticationv1.TokenReviewSpec{Token: token, Audiences: audiences},
	})
	if err != nil {
		return nil, errors.New("the TokenReview cannot be encoded")
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, t.url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	res, err := t.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK && res.StatusCode != http.StatusCreated {
		return nil, fmt.Errorf("the service answers %s", res.Status)
	}
	var review authenticationv1.TokenReview
	if err := json.NewDecoder(io.LimitReader(res.Body, maxWebhookAnswer)).Decode(&review); err != nil {
		return nil, errors.New("the service's answer is no TokenReview")
	}
	return t.identity(&review, audiences)
}

// identity returns the identity in a response. A response without audiences means that the token is intended for
// the API server.
func (t *webhookTokens) identity(review *authenticationv1.TokenReview, audiences []string) (*Identity, error) {
	status := &review.Status
	if !status.Authenticated {
		if status.Error != "" {
			return nil, errors.New(status.Error)
		}
		return nil, nil
	}
	intended := status.Audiences
	if len(intended) == 0 {
		intended = t.apiAudiences
	}
	accepted := meantFor(intended, audiences)
	if len(accepted) == 0 && len(audiences) > 0 {
		return nil, errors.New("not meant for this audience")
	}
	u := &User{Name: status.User.Username, UID: status.User.UID, Groups: slices.Clone(status.User.Groups)}
	for key, values := range status.User.Extra {
		if u.Extra == nil {
			u.Extra = map[string][]string{}
		}
		u.Extra[key] = values
	}
	return &Identity{User: authenticated(u), Audiences: accepted}, nil
}

// run closes the connections to the service when ctx ends.
func (t *webhookTokens) run(ctx context.Context) {
	<-ctx.Done()
	t.client.CloseIdleConnections()
}
