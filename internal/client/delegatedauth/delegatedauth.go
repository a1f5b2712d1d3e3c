// Package delegatedauth guards a component's own endpoint by asking the API server, as the kubelet, kube-scheduler and
// kube-controller-manager do: a client certificate or a TokenReview authenticates a request, a SubjectAccessReview
// authorizes it.
//
// Guard serves components that know which resource a request is about; Guard.Protect is a filter for paths such as
// /metrics. Answers of the API server are cached for a while. If it does not answer, requests without a cached answer
// are refused.
package delegatedauth

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"
)

// How long answers of the API server are cached. The durations are those of the kubelet's webhooks.
const (
	holdToken   = 2 * time.Minute
	holdAllowed = 5 * time.Minute
	holdDenied  = 30 * time.Second
	maxAnswers  = 4096
)

// askTimeout limits the time that the API server may take to answer.
const askTimeout = 10 * time.Second

// Guard authenticates and authorizes the requests to an endpoint that is served over TLS. Its methods are safe for
// concurrent use. Its fields must not be changed after the first request.
type Guard struct {
	// ClientCAs verify client certificates; nil accepts no certificate.
	ClientCAs *x509.CertPool
	Clock     clock.PassiveClock

	tokens  answers[*authenticationv1.UserInfo]
	reviews answers[bool]
}

// Authenticate returns the user who makes a request, or nil if the user is unknown. An error means that the API
// server could not review the token.
func (g *Guard) Authenticate(r *http.Request, client kubernetes.Interface) (*authenticationv1.UserInfo, error) {
	if user := g.certified(r); user != nil {
		return user, nil
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") || token == "" {
		return nil, nil
	}
	return g.tokens.get(digest(token), g.Clock.Now(), func() (*authenticationv1.UserInfo, time.Duration, error) {
		ctx, cancel := context.WithTimeout(r.Context(), askTimeout)
		defer cancel()
		review, err := client.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{
			Spec: authenticationv1.TokenReviewSpec{Token: token},
		}, metav1.CreateOptions{})
		if err != nil || !review.Status.Authenticated {
			return nil, holdDenied, err
		}
		return &review.Status.User, holdToken, nil
	})
}

// certified returns the user of the client certificate; nil without an accepted one.
func (g *Guard) certified(r *http.Request) *authenticationv1.UserInfo {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 || g.ClientCAs == nil {
		return nil
	}
	certs, intermediates := r.TLS.PeerCertificates, x509.NewCertPool()
	for _, c := range certs[1:] {
		intermediates.AddCert(c)
	}
	_, err := certs[0].Verify(x509.VerifyOptions{
		Roots: g.ClientCAs, Intermediates: intermediates, CurrentTime: g.Clock.Now(),
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return nil
	}
	return &authenticationv1.UserInfo{Username: certs[0].Subject.CommonName, Groups: certs[0].Subject.Organization}
}

// Allowed reports whether a user may make the request that a review's spec describes by its ResourceAttributes or
// NonResourceAttributes. Allowed fills in the spec's user.
func (g *Guard) Allowed(ctx context.Context, client kubernetes.Interface, user *authenticationv1.UserInfo,
	spec authorizationv1.SubjectAccessReviewSpec) (bool, error) {
	spec.User, spec.UID, spec.Groups, spec.Extra = user.Username, user.UID, user.Groups, nil
	for key, values := range user.Extra {
		if spec.Extra == nil {
			spec.Extra = map[string]authorizationv1.ExtraValue{}
		}
		spec.Extra[key] = authorizationv1.ExtraValue(values)
	}
	key, err := json.Marshal(spec) // unique for the user and the request
	if err != nil {
		return false, err
	}
	return g.reviews.get(digest(string(key)), g.Clock.Now(), func() (bool, time.Duration, error) {
		ctx, cancel := context.WithTimeout(ctx, askTimeout)
		defer cancel()
		answer, err := client.AuthorizationV1().SubjectAccessReviews().Create(ctx,
			&authorizationv1.SubjectAccessReview{Spec: spec}, metav1.CreateOptions{})
		switch {
		case err != nil:
			return false, 0, err
		case answer.Status.Allowed:
			return true, holdAllowed, nil
		}
		return false, holdDenied, nil
	})
}

// Healthy lists the paths that are open to all clients, as in kube-scheduler's --authorization-always-allow-paths.
var Healthy = []string{"/healthz", "/readyz", "/livez"}

// Protect serves requests for the open paths without a check. A request for any other path passes if its user may
// use the method, in lower case, on the path. Other requests are answered with 401 or 403.
func (g *Guard) Protect(client kubernetes.Interface, open []string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if slices.ContainsFunc(open, func(pattern string) bool { return covers(pattern, r.URL.Path) }) {
			endHTTP2(w, r)
			next.ServeHTTP(w, r)
			return
		}
		user, err := g.Authenticate(r, client)
		if user == nil {
			endHTTP2(w, r)
			if err != nil {
				slog.Warn("cannot review a token", "err", err)
			}
			http.Error(w, "Unauthorized", http.StatusUnauthorized)
			return
		}
		verb := strings.ToLower(r.Method)
		allowed, err := g.Allowed(r.Context(), client, user, authorizationv1.SubjectAccessReviewSpec{
			NonResourceAttributes: &authorizationv1.NonResourceAttributes{Verb: verb, Path: r.URL.Path},
		})
		switch {
		case err != nil:
			slog.Warn("cannot review access", "user", user.Username, "path", r.URL.Path, "err", err)
			http.Error(w, "Internal Server Error: access cannot be reviewed", http.StatusInternalServerError)
		case !allowed:
			http.Error(w, fmt.Sprintf("Forbidden: User %q cannot %s path %q", user.Username, verb, r.URL.Path),
				http.StatusForbidden)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// endHTTP2 closes an HTTP/2 connection after the answer: a client without a credential must not keep one open.
// kube-apiserver does the same (UnauthenticatedHTTP2DOSMitigation).
func endHTTP2(w http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor == 2 {
		w.Header().Set("Connection", "close")
	}
}

// covers reports whether a pattern matches a path. A pattern that ends with a star matches all paths with its
// prefix.
func covers(pattern, path string) bool {
	if prefix, ok := strings.CutSuffix(pattern, "*"); ok {
		return strings.HasPrefix(path, prefix)
	}
	return path == pattern
}

func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// answers caches answers of the API server. Its zero value is ready for use, and it is safe for concurrent use.
type answers[T any] struct {
	mu     sync.Mutex
	cached map[string]answer[T]
}

type answer[T any] struct {
	value T
	until time.Time
}

// get returns the cached answer for a key or, if there is none, asks for it. Errors are not cached.
func (a *answers[T]) get(key string, now time.Time, ask func() (T, time.Duration, error)) (T, error) {
	a.mu.Lock()
	cached, ok := a.cached[key]
	a.mu.Unlock()
	if ok && now.Before(cached.until) {
		return cached.value, nil
	}
	value, hold, err := ask()
	if err != nil {
		return value, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.cached == nil || len(a.cached) >= maxAnswers {
		a.cached = map[string]answer[T]{}
	}
	a.cached[key] = answer[T]{value, now.Add(hold)}
	return value, nil
}
