package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/apiserver/authz"
)

// authorizationFlags select the authorizers.
type authorizationFlags struct {
	modes              []string
	webhookConfig      string
	webhookVersion     string
	allowed, forbidden time.Duration
}

func (f *authorizationFlags) add(fs *pflag.FlagSet) {
	fs.StringSliceVar(&f.modes, "authorization-mode", []string{"Node", "RBAC"},
		"authorizers, in the order in which they decide, of: AlwaysAllow, AlwaysDeny, Node, RBAC, Webhook")
	fs.StringVar(&f.webhookConfig, "authorization-webhook-config-file", "",
		"kubeconfig of the server that the mode Webhook asks")
	fs.StringVar(&f.webhookVersion, "authorization-webhook-version", "v1",
		"version of the SubjectAccessReview that is sent to it")
	fs.DurationVar(&f.allowed, "authorization-webhook-cache-authorized-ttl", 5*time.Minute,
		"how long its approvals are cached")
	fs.DurationVar(&f.forbidden, "authorization-webhook-cache-unauthorized-ttl", 30*time.Second,
		"how long its other answers are cached")
}

// webhook returns the authorizer of the mode Webhook, nil without that mode.
func (f *authorizationFlags) webhook() (*authz.Webhook, error) {
	if !slices.Contains(f.modes, "Webhook") {
		return nil, nil
	}
	if f.webhookVersion != "v1" {
		return nil, fmt.Errorf("--authorization-webhook-version: %q is not one of: v1", f.webhookVersion)
	}
	config, err := clientcmd.BuildConfigFromFlags("", f.webhookConfig)
	if err != nil {
		return nil, fmt.Errorf("--authorization-webhook-config-file: %w", err)
	}
	return authz.NewWebhook(config, f.allowed, f.forbidden, clock.RealClock{})
}
