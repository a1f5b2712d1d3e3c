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

// authorizationFlags say who decides what an identity may do.
type authorizationFlags struct {
	modes              []string
	webhookConfig      string
	webhookVersion     string
	allowed, forbidden time.Duration
}

func (f *authorizationFlags) add(fs *pflag.FlagSet) {
	fs.StringSliceVar(&f.modes, "authorization-mode", []string{"Node", "RBAC"},
		"who decides what a user may do, in this order: AlwaysAllow, AlwaysDeny, Node, RBAC, Webhook")
	fs.StringVar(&f.webhookConfig, "authorization-webhook-config-file", "", "kubeconfig of the server that the mode Webhook asks")
	fs.StringVar(&f.webhookVersion, "authorization-webhook-version", "v1", "version of the SubjectAccessReview that it is asked with")
	fs.DurationVar(&f.allowed, "authorization-webhook-cache-authorized-ttl", 5*time.Minute, "how long what it allowed holds")
	fs.DurationVar(&f.forbidden, "authorization-webhook-cache-unauthorized-ttl", 30*time.Second, "how long what it did not allow holds")
}

// webhook is the one of the mode Webhook, nil without that mode.
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
