package authz

import (
	"fmt"
	"os"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/apiserver/configfile"
)

// Configuration is an AuthorizationConfiguration of apiserver.config.k8s.io.
// https://kubernetes.io/docs/reference/access-authn-authz/authorization/#using-configuration-file-for-authorization
type Configuration struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// Authorizers are asked in this order.
	Authorizers []AuthorizerConfiguration `json:"authorizers"`
}

// AuthorizerConfiguration is one authorizer.
type AuthorizerConfiguration struct {
	// Type is a mode of --authorization-mode. Only Webhook may occur several times.
	Type string `json:"type"`
	// Name is a webhook's name in metrics; for other types it must be the type in lower case.
	Name    string                `json:"name"`
	Webhook *WebhookConfiguration `json:"webhook"`
}

// WebhookConfiguration describes a webhook.
type WebhookConfiguration struct {
	// AuthorizedTTL and UnauthorizedTTL are how long answers are cached, if they are cached.
	AuthorizedTTL             metav1.Duration `json:"authorizedTTL"`
	CacheAuthorizedRequests   *bool           `json:"cacheAuthorizedRequests"`
	UnauthorizedTTL           metav1.Duration `json:"unauthorizedTTL"`
	CacheUnauthorizedRequests *bool           `json:"cacheUnauthorizedRequests"`
	// Timeout limits one answer; it is at most 30 seconds.
	Timeout metav1.Duration `json:"timeout"`
	// SubjectAccessReviewVersion is the version that is sent; the version of the conditions may differ.
	SubjectAccessReviewVersion               string `json:"subjectAccessReviewVersion"`
	MatchConditionSubjectAccessReviewVersion string `json:"matchConditionSubjectAccessReviewVersion"`
	// FailurePolicy is the decision if there is no answer: NoOpinion or Deny.
	FailurePolicy   string                  `json:"failurePolicy"`
	ConnectionInfo  WebhookConnectionInfo   `json:"connectionInfo"`
	MatchConditions []WebhookMatchCondition `json:"matchConditions"`
}

// WebhookConnectionInfo is the address of the server.
type WebhookConnectionInfo struct {
	Type           string  `json:"type"`
	KubeConfigFile *string `json:"kubeConfigFile"`
}

// WebhookMatchCondition is an expression. The server is called only if it is true.
type WebhookMatchCondition struct {
	Expression string `json:"expression"`
}

// The types of authorizers, and a webhook's failure policies.
const (
	TypeAlwaysAllow = "AlwaysAllow"
	TypeAlwaysDeny  = "AlwaysDeny"
	TypeNode        = "Node"
	TypeRBAC        = "RBAC"
	TypeWebhook     = "Webhook"

	FailureNoOpinion = "NoOpinion"
	FailureDeny      = "Deny"

	kubeConfigFile = "KubeConfigFile"
)

// types are the supported types, sorted.
var types = []string{TypeAlwaysAllow, TypeAlwaysDeny, TypeNode, TypeRBAC, TypeWebhook}

// configVersions are the versions of AuthorizationConfiguration. Its fields are the same in all of them.
var configVersions = []string{"v1", "v1beta1", "v1alpha1"}

// DefaultAuthorizedTTL and DefaultUnauthorizedTTL are how long a webhook's answers are cached.
const (
	DefaultAuthorizedTTL   = 5 * time.Minute
	DefaultUnauthorizedTTL = 30 * time.Second
)

// ReadConfig reads and validates the file of --authorization-config.
func ReadConfig(path string) (*Configuration, []byte, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, fmt.Errorf("authorization configuration: %w", err)
	}
	config, err := ParseConfig(content)
	if err != nil {
		return nil, nil, fmt.Errorf("authorization configuration %s: %w", path, err)
	}
	return config, content, nil
}

// ParseConfig decodes and validates an AuthorizationConfiguration.
func ParseConfig(content []byte) (*Configuration, error) {
	c := &Configuration{}
	if err := configfile.Decode(content, "AuthorizationConfiguration", configVersions, c); err != nil {
		return nil, err
	}
	for i := range c.Authorizers {
		if w := c.Authorizers[i].Webhook; w != nil {
			w.setDefaults()
		}
	}
	return c, c.validate().ToAggregate()
}

func (w *WebhookConfiguration) setDefaults() {
	if w.AuthorizedTTL.Duration == 0 {
		w.AuthorizedTTL.Duration = DefaultAuthorizedTTL
	}
	if w.UnauthorizedTTL.Duration == 0 {
		w.UnauthorizedTTL.Duration = DefaultUnauthorizedTTL
	}
}

// Modes returns the configuration of --authorization-mode. webhook configures the mode Webhook, and may be nil
// without it.
func Modes(modes []string, webhook *WebhookConfiguration) *Configuration {
	c := &Configuration{}
	for _, mode := range modes {
		a := AuthorizerConfiguration{Type: mode, Name: strings.ToLower(mode)}
		if mode == TypeWebhook {
			a.Name, a.Webhook = "default", webhook
		}
		c.Authorizers = append(c.Authorizers, a)
	}
	return c
}

// Types returns the types of the authorizers.
func (c *Configuration) Types() []string {
	list := make([]string, len(c.Authorizers))
	for i, a := range c.Authorizers {
		list[i] = a.Type
	}
	return list
}
