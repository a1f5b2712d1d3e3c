package session

import (
	"context"
	"slices"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/coxswain-dev/coxswain/kubectl-lite/diagnose"
)

// Descendants reads every kind whose objects may have owners and sorts the objects under their owners. Objects that the
// user may not list are missing. The objects of a root without a namespace may be in any namespace.
func (s *Session) Descendants(ctx context.Context, root *unstructured.Unstructured) (diagnose.Family, error) {
	resources, err := s.Ownable(root.GetNamespace() != "")
	if err != nil {
		return nil, err
	}
	objects, err := s.Everything(ctx, resources, root.GetNamespace())
	return diagnose.Owned(objects), err
}

// Everything lists the objects of some resources in a namespace, or in all if namespace is "". It skips resources that
// the user may not list. The lists come from the watch cache, at any revision.
func (s *Session) Everything(ctx context.Context, resources []schema.GroupVersionResource,
	namespace string) (found []*unstructured.Unstructured, err error) {
	client, err := s.QuietClient()
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	var running sync.WaitGroup
	errs := NewErrorSet(nil)
	for _, r := range resources {
		running.Go(func() {
			var from dynamic.ResourceInterface = client.Resource(r)
			if namespace != "" {
				from = client.Resource(r).Namespace(namespace)
			}
			list, err := from.List(ctx, metav1.ListOptions{ResourceVersion: "0"})
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				if !apierrors.IsForbidden(err) && !apierrors.IsNotFound(err) && !apierrors.IsMethodNotSupported(err) {
					errs.Add(err)
				}
				return
			}
			for i := range list.Items {
				found = append(found, &list.Items[i])
			}
		})
	}
	running.Wait()
	return found, errs.Err()
}

// QuietClient returns a client that does not print warnings. It reads kinds that the user did not ask for: a warning
// that one of them is deprecated would be noise.
func (s *Session) QuietClient() (dynamic.Interface, error) {
	config, err := s.ToRESTConfig()
	if err != nil {
		return nil, err
	}
	config = rest.CopyConfig(config)
	config.WarningHandler, config.WarningHandlerWithContext = rest.NoWarnings{}, nil
	return dynamic.NewForConfig(config)
}

// Ownable returns the resources that can be listed and whose objects may have owners: all except Events.
func (s *Session) Ownable(namespacedOnly bool) ([]schema.GroupVersionResource, error) {
	client, err := s.ToDiscoveryClient()
	if err != nil {
		return nil, err
	}
	lists, err := client.ServerPreferredResources()
	if err != nil && !discovery.IsGroupDiscoveryFailedError(err) {
		return nil, err
	}
	var found []schema.GroupVersionResource
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return nil, err
		}
		for _, r := range list.APIResources {
			if r.Kind == "Event" || strings.Contains(r.Name, "/") || !slices.Contains(r.Verbs, "list") ||
				namespacedOnly && !r.Namespaced {
				continue
			}
			found = append(found, gv.WithResource(r.Name))
		}
	}
	return found, nil
}
