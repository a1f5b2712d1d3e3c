// Package authzflags has the flags that select the API server's authorizers.
package authzflags

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/apiserver/authz"
	"github.com/coxswain-dev/coxswain/apiserver/webhook"
)

// Flags select the authorizers. Add must be called first.
type Flags struct {
	configFile         string
	modes              []string
	webhookConfig      string
	webhookVersion     string
	allowed, forbidden time.Duration
	set                *pflag.FlagSet // records which flags are set
}

// Add adds the flags to a set.
func (f *Flags) Add(fs *pflag.FlagSet) {
	f.set = fs
	fs.StringVar(&f.configFile, "authorization-config", "", "AuthorizationConfiguration: the authorizers and their "+
		"webhooks; reloaded when it changes. Excludes --authorization-mode and --authorization-webhook-*")
	fs.StringSliceVar(&f.modes, "authorization-mode", authz.DefaultModes,
		"authorizers, in the order of their decisions, of: AlwaysAllow, AlwaysDeny, Node, RBAC, Webhook")
	fs.StringVar(&f.webhookConfig, "authorization-webhook-config-file", "",
		"kubeconfig of the webhook of the mode Webhook")
	fs.StringVar(&f.webhookVersion, "authorization-webhook-version", "v1",
		"version of the SubjectAccessReview that the webhook receives: v1 or v1beta1")
	fs.DurationVar(&f.allowed, "authorization-webhook-cache-authorized-ttl", authz.DefaultAuthorizedTTL,
		"how long the webhook's approvals are cached")
	fs.DurationVar(&f.forbidden, "authorization-webhook-cache-unauthorized-ttl", authz.DefaultUnauthorizedTTL,
		"how long the webhook's other responses are cached")
}

// AddNode puts the mode Node before the others if RBAC is one of them: without it, Nodes have no rights.
func (f *Flags) AddNode() {
	if f.configFile == "" && slices.Contains(f.modes, "RBAC") && !slices.Contains(f.modes, "Node") {
		f.modes = append([]string{"Node"}, f.modes...)
	}
}

// Options returns the authorizers of the file or of the flags.
func (f *Flags) Options() (o authz.Options, err error) {
	if f.configFile != "" {
		var flags bool
		f.set.VisitAll(func(flag *pflag.Flag) {
			flags = flags || flag.Changed && (flag.Name == "authorization-mode" ||
				strings.HasPrefix(flag.Name, "authorization-webhook-"))
		})
		if flags {
			return o, errors.New("--authorization-config can not be specified when --authorization-mode or " +
				"--authorization-webhook-* flags are defined")
		}
		o.File = f.configFile
		if o.Configuration, o.Content, err = authz.ReadConfig(f.configFile); err != nil {
			return o, fmt.Errorf("--authorization-config: %w", err)
		}
		return o, nil
	}
	if !slices.Contains([]string{"v1", "v1beta1"}, f.webhookVersion) {
		return o, fmt.Errorf("--authorization-webhook-version: %q is not one of: v1, v1beta1", f.webhookVersion)
	}
	for i, mode := range f.modes {
		if slices.Contains(f.modes[:i], mode) {
			return o, fmt.Errorf("--authorization-mode has mode %s twice", mode)
		}
	}
	o.Configuration = authz.Modes(f.modes, &authz.WebhookConfiguration{
		AuthorizedTTL: metav1.Duration{Duration: f.allowed}, UnauthorizedTTL: metav1.Duration{Duration: f.forbidden},
		Timeout: metav1.Duration{Duration: webhook.Timeout}, SubjectAccessReviewVersion: f.webhookVersion,
		FailurePolicy:  authz.FailureNoOpinion,
		ConnectionInfo: authz.WebhookConnectionInfo{KubeConfigFile: &f.webhookConfig},
	})
	return o, nil
}
