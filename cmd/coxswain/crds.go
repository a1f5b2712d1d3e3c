package main

import (
	"context"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/coxswain-dev/coxswain/internal/client/manifests"
)

// installCRDs applies the CustomResourceDefinitions of manifests and of folders of manifests, and waits until their
// kinds are served.
func installCRDs(ctx context.Context, config *rest.Config, paths []string) error {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	crds, err := manifests.Source{Paths: paths}.Read(manifests.Definition, manifests.IsDefinition)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return manifests.InstallDefinitions(ctx, client, "coxswain", crds)
}
