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
	authorizationv1beta1 "k8s.io/api/authorization/v1beta1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/webhook"
)

// webhookAuthorizer asks another server with a SubjectAccessReview, and caches its answers.
// https://kubernetes.io/docs/reference/access-authn-authz/webhook/
type webhookAuthorizer struct {
	webhookOptions
	client *http.Client
	url    string
	// allowedFor and refusedFor are how long answers are cached.
	allowedFor, refusedFor time.Duration
	// onError is the decision if there is no answer.
	onError Decision

	mu     sync.Mutex
	memory map[[sha256.Size]byte]remembered
}

type webhookOptions struct {
	name       string
	config     *WebhookConfiguration
	server     *rest.Config
	conditions conditions
	clock      clock.PassiveClock
	metrics    *metrics
}

type remembered struct {
	status authorizationv1.SubjectAccessReviewStatus
	until  time.Time
}

const (
	// webhookTries is how often a request is sent before it fails.
	webhookTries = 3
	webhookPause = 500 * time.Millisecond
	// maxRemembered limits the cached answers, and maxRememberedSize the size of a request whose answer is cached.
	maxRemembered     = 8192
	maxAnswer         = 1 << 20
	maxRememberedSize = 10000
)

// newWebhook returns an authorizer that sends its requests to the server's own path.
func newWebhook(o webhookOptions) (*webhookAuthorizer, error) {
	server := rest.CopyConfig(o.server)
	server.Timeout = o.config.Timeout.Duration
	client, err := rest.HTTPClientFor(server)
	if err != nil {
		return nil, fmt.Errorf("authorization webhook %s: %w", o.name, err)
	}
	w := &webhookAuthorizer{webhookOptions: o, client: client, url: server.Host,
		memory: map[[sha256.Size]byte]remembered{}}
	if cached := o.config.CacheAuthorizedRequests; cached == nil || *cached {
		w.allowedFor = o.config.AuthorizedTTL.Duration
	}
	if cached := o.config.CacheUnauthorizedRequests; cached == nil || *cached {
		w.refusedFor = o.config.UnauthorizedTTL.Duration
	}
	if o.config.FailurePolicy == FailureDeny {
		w.onError = Deny
	}
	return w, nil
}

// Authorize implements Authorizer. The call has the webhook's own time limit and not the deadline of the request, since
// the client chooses that: a client that a webhook would deny must not be able to turn the webhook's answer into an
// error. If the client goes away meanwhile, the call ends and the request is denied.
func (w *webhookAuthorizer) Authorize(request context.Context, a *Attributes) (Decision, string, error) {
	ctx, cancel := withoutDeadline(request)
	defer cancel()
	decision, reason, err := w.review(ctx, a)
	if ctx.Err() != nil {
		return Deny, "", fmt.Errorf("authorization webhook %s: %w", w.name, ctx.Err())
	}
	return decision, reason, err
}

// withoutDeadline returns a context that ends when the request is canceled, but not when its deadline passes.
func withoutDeadline(request context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(request))
	stop := context.AfterFunc(request, func() {
		if errors.Is(request.Err(), context.Canceled) {
			cancel()
		}
	})
	return ctx, func() { stop(); cancel() }
}

// review asks the server if its conditions are met. If there is no answer, the decision is onError.
func (w *webhookAuthorizer) review(ctx context.Context, a *Attributes) (Decision, string, error) {
	review := question(a)
	if len(w.conditions.expressions) > 0 {
		ask, err := w.matches(ctx, &review.Spec)
		if err != nil {
			return w.onError, "", fmt.Errorf("authorization webhook %s: match conditions: %w", w.name, err)
		}
		if !ask {
			return NoOpinion, "", nil
		}
	}
	status, err := w.status(ctx, review)
	if err != nil {
		return w.onError, "", fmt.Errorf("authorization webhook %s: %w", w.name, err)
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

// matches reports whether the server must be asked.
func (w *webhookAuthorizer) matches(ctx context.Context, spec *authorizationv1.SubjectAccessReviewSpec) (bool, error) {
	began := time.Now()
	ask, err := w.conditions.meet(ctx, spec)
	w.metrics.matchSeconds.WithLabelValues(TypeWebhook, w.name).Observe(time.Since(began).Seconds())
	switch {
	case err != nil:
		w.metrics.matchErrors.WithLabelValues(TypeWebhook, w.name).Inc()
	case !ask:
		w.metrics.exclusions.WithLabelValues(TypeWebhook, w.name).Inc()
	}
	return ask, err
}

// status returns the server's answer, from the cache if possible.
func (w *webhookAuthorizer) status(ctx context.Context,
	review *authorizationv1.SubjectAccessReview) (status authorizationv1.SubjectAccessReviewStatus, err error) {
	body, err := w.encode(review)
	if err != nil {
		return status, err
	}
	key := sha256.Sum256(body)
	if status, ok := w.recall(key); ok {
		return status, nil
	}
	began := time.Now()
	status, err = w.ask(ctx, body)
	result := resultOf(ctx, err)
	w.metrics.asked(w.name, result, time.Since(began))
	if err != nil {
		if w.onError == NoOpinion && result != resultCanceled {
			w.metrics.failOpen.WithLabelValues(w.name, result).Inc()
		}
		return status, err
	}
	if len(body) <= maxRememberedSize {
		w.remember(key, status)
	}
	return status, nil
}

// encode encodes the review in the version that the server reads.
func (w *webhookAuthorizer) encode(review *authorizationv1.SubjectAccessReview) ([]byte, error) {
	if w.config.SubjectAccessReviewVersion != "v1beta1" {
		return json.Marshal(review)
	}
	spec := authorizationv1beta1.SubjectAccessReviewSpec{User: review.Spec.User, UID: review.Spec.UID,
		Groups:                review.Spec.Groups,
		ResourceAttributes:    (*authorizationv1beta1.ResourceAttributes)(review.Spec.ResourceAttributes),
		NonResourceAttributes: (*authorizationv1beta1.NonResourceAttributes)(review.Spec.NonResourceAttributes)}
	for key, values := range review.Spec.Extra {
		if spec.Extra == nil {
			spec.Extra = map[string]authorizationv1beta1.ExtraValue{}
		}
		spec.Extra[key] = authorizationv1beta1.ExtraValue(values)
	}
	return json.Marshal(authorizationv1beta1.SubjectAccessReview{Spec: spec, TypeMeta: metav1.TypeMeta{
		APIVersion: authorizationv1beta1.SchemeGroupVersion.String(), Kind: review.Kind}})
}

// RulesFor implements Lister. The other server's rules are unknown.
func (w *webhookAuthorizer) RulesFor(*authn.User, string) ([]rbacv1.PolicyRule, bool, error) {
	return nil, true, errors.New("webhook authorizer does not support user rule resolution")
}

func (w *webhookAuthorizer) recall(key [sha256.Size]byte) (authorizationv1.SubjectAccessReviewStatus, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r, ok := w.memory[key]
	return r.status, ok && w.clock.Now().Before(r.until)
}

func (w *webhookAuthorizer) remember(key [sha256.Size]byte, status authorizationv1.SubjectAccessReviewStatus) {
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
func (w *webhookAuthorizer) ask(ctx context.Context,
	body []byte) (status authorizationv1.SubjectAccessReviewStatus, err error) {
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

func (w *webhookAuthorizer) post(ctx context.Context,
	body []byte) (status authorizationv1.SubjectAccessReviewStatus, again bool, err error) {
	content, err := webhook.Post(ctx, w.client, w.url, "", body, maxAnswer)
	var failed *webhook.CodeError
	switch {
	case errors.As(err, &failed):
		return status, failed.Code >= 500 || failed.Code == http.StatusTooManyRequests, err
	case err != nil:
		// A server that used its whole time is not asked again.
		again = resultOf(ctx, err) == resultError && !errors.Is(err, webhook.ErrTooLarge)
		return status, again, err
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
	if len(a.Fields) > 0 {
		review.Spec.ResourceAttributes.FieldSelector = fieldSelector(a.Fields)
	}
	if a.Labels != "" {
		review.Spec.ResourceAttributes.LabelSelector = labelSelector(a.Labels)
	}
	return review
}

func fieldSelector(list fields.Requirements) *authorizationv1.FieldSelectorAttributes {
	s := &authorizationv1.FieldSelectorAttributes{}
	for _, r := range list {
		operator := metav1.FieldSelectorOpIn
		if r.Operator == selection.NotEquals {
			operator = metav1.FieldSelectorOpNotIn
		}
		s.Requirements = append(s.Requirements, metav1.FieldSelectorRequirement{Key: r.Field, Operator: operator,
			Values: []string{r.Value}})
	}
	return s
}

// labelOperators are the operators that a review supports. It has none for greater and less.
var labelOperators = map[selection.Operator]metav1.LabelSelectorOperator{
	selection.Equals: metav1.LabelSelectorOpIn, selection.DoubleEquals: metav1.LabelSelectorOpIn,
	selection.In: metav1.LabelSelectorOpIn, selection.NotEquals: metav1.LabelSelectorOpNotIn,
	selection.NotIn: metav1.LabelSelectorOpNotIn, selection.Exists: metav1.LabelSelectorOpExists,
	selection.DoesNotExist: metav1.LabelSelectorOpDoesNotExist,
}

// labelSelector returns the requirements that a review supports. Each of them narrows the request, so leaving one
// out makes the request look wider than it is, and never more harmless. It returns nil if there are none.
func labelSelector(text string) *authorizationv1.LabelSelectorAttributes {
	list, err := labels.ParseToRequirements(text)
	if err != nil {
		return nil
	}
	var supported []metav1.LabelSelectorRequirement
	for _, r := range list {
		if operator, ok := labelOperators[r.Operator()]; ok {
			supported = append(supported, metav1.LabelSelectorRequirement{Key: r.Key(), Operator: operator,
				Values: r.ValuesUnsorted()})
		}
	}
	if supported == nil {
		return nil
	}
	return &authorizationv1.LabelSelectorAttributes{Requirements: supported}
}
