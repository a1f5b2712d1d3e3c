package node

import (
	"context"
	"crypto/x509"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"
)

// How long answers of the API server hold, as with the kubelet's webhooks.
const (
	holdToken   = 2 * time.Minute
	holdAllowed = 5 * time.Minute
	holdDenied  = 30 * time.Second
	maxAnswers  = 4096
)

// guard decides who may use the agent's endpoint, as the kubelet does that has authentication by client
// certificate and webhook, authorization by webhook, and lets nobody in without a name: a certificate from
// the client CA or a TokenReview tells who it is, a SubjectAccessReview whether he may.
type guard struct {
	clients *x509.CertPool // nil where no certificate is trusted
	clock   clock.PassiveClock
	tokens  answers[*authenticationv1.UserInfo]
	reviews answers[string] // "" where allowed, else why not
}

// authenticate is who makes a request; nil where that is not known.
func (g *guard) authenticate(r *http.Request, client kubernetes.Interface) (*authenticationv1.UserInfo, error) {
	if certs := r.TLS.PeerCertificates; len(certs) > 0 && g.clients != nil {
		between := x509.NewCertPool()
		for _, c := range certs[1:] {
			between.AddCert(c)
		}
		_, err := certs[0].Verify(x509.VerifyOptions{
			Roots: g.clients, Intermediates: between, CurrentTime: g.clock.Now(),
			KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		})
		if err == nil {
			return &authenticationv1.UserInfo{Username: certs[0].Subject.CommonName, Groups: certs[0].Subject.Organization}, nil
		}
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") || token == "" {
		return nil, nil
	}
	return g.tokens.get(digest(token), g.clock.Now(), func() (*authenticationv1.UserInfo, time.Duration, error) {
		review, err := client.AuthenticationV1().TokenReviews().Create(r.Context(), &authenticationv1.TokenReview{
			Spec: authenticationv1.TokenReviewSpec{Token: token},
		}, metav1.CreateOptions{})
		if err != nil || !review.Status.Authenticated {
			return nil, holdDenied, err
		}
		return &review.Status.User, holdToken, nil
	})
}

// subresources are those of a Node that stand for a path, the narrowest first.
// https://kubernetes.io/docs/reference/access-authn-authz/kubelet-authn-authz/
func subresources(path string) []string {
	first, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	switch first {
	case "stats":
		return []string{"stats"}
	case "metrics", "checkpoint":
		return []string{first}
	case "logs":
		return []string{"log"}
	case "healthz", "pods", "configz", "statusz":
		return []string{first, "proxy"}
	case "runningpods":
		return []string{"pods", "proxy"}
	}
	return []string{"proxy"}
}

var verbs = map[string]string{
	http.MethodPost: "create", http.MethodGet: "get", http.MethodHead: "get",
	http.MethodPut: "update", http.MethodPatch: "patch", http.MethodDelete: "delete",
}

// authorize returns why a user may not make a request of a node; "" where he may.
func (g *guard) authorize(ctx context.Context, client kubernetes.Interface, user *authenticationv1.UserInfo, node, method, path string) (denied string, err error) {
	for _, subresource := range subresources(path) {
		attributes := &authorizationv1.ResourceAttributes{
			Verb: verbs[method], Version: "v1", Resource: "nodes", Subresource: subresource, Name: node,
		}
		key := digest(user.Username, user.UID, strings.Join(user.Groups, "\x01"), fmt.Sprint(user.Extra), node, attributes.Verb, subresource)
		denied, err = g.reviews.get(key, g.clock.Now(), func() (string, time.Duration, error) {
			return review(ctx, client, user, attributes)
		})
		if err != nil || denied == "" {
			return denied, err
		}
	}
	return denied, nil
}

func review(ctx context.Context, client kubernetes.Interface, user *authenticationv1.UserInfo, a *authorizationv1.ResourceAttributes) (string, time.Duration, error) {
	extra := map[string]authorizationv1.ExtraValue{}
	for key, values := range user.Extra {
		extra[key] = authorizationv1.ExtraValue(values)
	}
	answer, err := client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User: user.Username, UID: user.UID, Groups: user.Groups, Extra: extra, ResourceAttributes: a,
		},
	}, metav1.CreateOptions{})
	switch {
	case err != nil:
		return "", 0, err
	case answer.Status.Allowed:
		return "", holdAllowed, nil
	}
	return fmt.Sprintf("Forbidden (user=%s, verb=%s, resource=nodes, subresource(s)=[%s])", user.Username, a.Verb, a.Subresource), holdDenied, nil
}

// answers are those of the API server that still hold. The zero value is ready for use, by several at once.
type answers[T any] struct {
	mu   sync.Mutex
	held map[string]answer[T]
}

type answer[T any] struct {
	value T
	until time.Time
}

// get is the answer that holds or, where none does, a new one. Errors do not hold.
func (a *answers[T]) get(key string, now time.Time, ask func() (T, time.Duration, error)) (T, error) {
	a.mu.Lock()
	held, ok := a.held[key]
	a.mu.Unlock()
	if ok && now.Before(held.until) {
		return held.value, nil
	}
	value, hold, err := ask()
	if err != nil {
		return value, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.held == nil || len(a.held) >= maxAnswers {
		a.held = map[string]answer[T]{}
	}
	a.held[key] = answer[T]{value, now.Add(hold)}
	return value, nil
}
