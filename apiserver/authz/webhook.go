package authz

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/webhook"
)

// Webhook asks another server, by a SubjectAccessReview, and caches its answers.
// https://kubernetes.io/docs/reference/access-authn-authz/webhook/
type Webhook struct {
	client *http.Client
	url    string
	// allowedFor and refusedFor are how long answers are cached.
	allowedFor, refusedFor time.Duration
	clock                  clock.PassiveClock

	mu     sync.Mutex
	memory map[[sha256.Size]byte]remembered
}

type remembered struct {
	status authorizationv1.SubjectAccessReviewStatus
	until  time.Time
}

const (
	webhookTimeout = 30 * time.Second
	// webhookTries is how often a failed request is sent.
	webhookTries = 3
	webhookPause = 500 * time.Millisecond
	// maxRemembered bounds the cache. A request too large to be cached is sent each time.
	maxRemembered     = 8192
	maxAnswer         = 1 << 20
	maxRememberedSize = 10000
)

// NewWebhook asks the server that config names, at its own path.
func NewWebhook(config *rest.Config, allowedFor, refusedFor time.Duration, c clock.PassiveClock) (*Webhook, error) {
	config = rest.CopyConfig(config)
	config.Timeout = webhookTimeout
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("authorization webhook: %w", err)
	}
	return &Webhook{
		client: client, url: config.Host, allowedFor: allowedFor, refusedFor: refusedFor, clock: c,
		memory: map[[sha256.Size]byte]remembered{},
	}, nil
}

// Authorize implements Authorizer.
func (w *Webhook) Authorize(ctx context.Context, a *Attributes) (Decision, string, error) {
	body, err := json.Marshal(question(a))
	if err != nil {
		return NoOpinion, "", fmt.Errorf("authorization webhook: %w", err)
	}
	key := sha256.Sum256(body)
	status, known := w.recall(key)
	if !known {
		if status, err = w.ask(ctx, body); err != nil {
			return NoOpinion, "", fmt.Errorf("authorization webhook: %w", err)
		}
		if len(body) <= maxRememberedSize {
			w.remember(key, status)
		}
	}
	switch {
	case status.Denied && status.Allowed:
		return Deny, status.Reason, errors.New("webhook subject access review returned both allow and deny response")
	case status.Denied:
		return Deny, status.Reason, nil
	case status.Allowed:
		return Allow, status.Reason, nil
	}
	return NoOpinion, status.Reason, nil
}

// RulesFor implements Lister: the other server's rules are unknown.
func (w *Webhook) RulesFor(*authn.User, string) ([]rbacv1.PolicyRule, bool, error) {
	return nil, true, errors.New("webhook authorizer does not support user rule resolution")
}

func (w *Webhook) recall(key [sha256.Size]byte) (authorizationv1.SubjectAccessReviewStatus, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r, ok := w.memory[key]
	return r.status, ok && w.clock.Now().Before(r.until)
}

func (w *Webhook) remember(key [sha256.Size]byte, status authorizationv1.SubjectAccessReviewStatus) {
	life := w.refusedFor
	if status.Allowed {
		life = w.allowedFor
	}
	if life <= 0 {
		return
	}
	now := w.clock.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.memory) >= maxRemembered {
		for k, r := range w.memory {
			if !now.Before(r.until) {
				delete(w.memory, k)
			}
		}
		if len(w.memory) >= maxRemembered {
			clear(w.memory)
		}
	}
	w.memory[key] = remembered{status, now.Add(life)}
}

// ask posts the review, and retries if the server fails.
func (w *Webhook) ask(ctx context.Context, body []byte) (status authorizationv1.SubjectAccessReviewStatus, err error) {
	for try := 1; ; try++ {
		var again bool
		status, again, err = w.post(ctx, body)
		if err == nil || !again || try == webhookTries {
			return status, err
		}
		pause := time.NewTimer(webhookPause)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return status, ctx.Err()
		}
	}
}

func (w *Webhook) post(ctx context.Context,
	body []byte) (status authorizationv1.SubjectAccessReviewStatus, again bool, err error) {
	content, err := webhook.Post(ctx, w.client, w.url, "", body, maxAnswer)
	var failed *webhook.CodeError
	switch {
	case errors.As(err, &failed):
		return status, failed.Code >= 500 || failed.Code == http.StatusTooManyRequests, err
	case err != nil:
		return status, ctx.Err() == nil && !errors.Is(err, webhook.ErrTooLarge), err
	}
	var review authorizationv1.SubjectAccessReview
	if err := json.Unmarshal(content, &review); err != nil {
		return status, false, fmt.Errorf("the webhook's answer: %w", err)
	}
	return review.Status, false, nil
}

func question(a *Attributes) *authorizationv1.SubjectAccessReview {
	review := &authorizationv1.SubjectAccessReview{
		TypeMeta: metav1.TypeMeta{APIVersion: authorizationv1.SchemeGroupVersion.String(), Kind: "SubjectAccessReview"},
		Spec:     authorizationv1.SubjectAccessReviewSpec{User: a.User.Name, UID: a.User.UID, Groups: a.User.Groups},
	}
	for key, values := range a.User.Extra {
		if review.Spec.Extra == nil {
			review.Spec.Extra = map[string]authorizationv1.ExtraValue{}
		}
		review.Spec.Extra[key] = values
	}
	if a.Path != "" {
		review.Spec.NonResourceAttributes = &authorizationv1.NonResourceAttributes{Path: a.Path, Verb: a.Verb}
		return review
	}
	review.Spec.ResourceAttributes = &authorizationv1.ResourceAttributes{
		Namespace: a.Namespace, Verb: a.Verb, Group: a.Group, Version: a.Version,
		Resource: a.Resource, Subresource: a.Subresource, Name: a.Name,
	}
	return review
}
