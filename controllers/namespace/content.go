package namespace

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"
)

// resource is a namespaced resource whose objects can be listed and deleted.
type resource struct {
	schema.GroupVersionResource
	// collection reports whether all its objects can be deleted in one request.
	collection bool
}

var pods = schema.GroupVersionResource{Version: "v1", Resource: "pods"}

// remaining is the result of one pass over a namespace.
type remaining struct {
	// objects counts the remaining objects of each resource, finalizers those with each finalizer.
	objects    map[schema.GroupVersionResource]int
	finalizers map[string]int
	// discovery, versions and content are the errors of discovery, of parsing group versions, and of deleting.
	discovery, versions, content []error
}

func (r *remaining) err() error {
	return errors.Join(slices.Concat(r.discovery, r.versions, r.content)...)
}

// deleteContent deletes all objects of the namespace and returns the remaining ones. Pods are deleted first, other
// objects only after the last pod has ended: until then pods may need their policies, secrets and accounts (KEP-5080).
func (n *namespaces) deleteContent(ctx context.Context, ns *corev1.Namespace) remaining {
	rest := remaining{objects: map[schema.GroupVersionResource]int{}, finalizers: map[string]int{}}
	resources := n.discover(&rest)
	slices.SortStableFunc(resources, podsFirst)
	for i, res := range resources {
		if i > 0 && resources[i-1].GroupVersionResource == pods && rest.objects[pods] > 0 {
			break
		}
		if err := n.deleteAll(ctx, ns.Name, res, &rest); err != nil {
			rest.content = append(rest.content, err)
			if res.GroupVersionResource == pods {
				break
			}
		}
	}
	return rest
}

func podsFirst(a, b resource) int {
	switch {
	case a.GroupVersionResource == b.GroupVersionResource:
		return 0
	case a.GroupVersionResource == pods:
		return -1
	case b.GroupVersionResource == pods:
		return 1
	}
	return 0
}

// discover returns the namespaced resources that can be listed and deleted. Groups that cannot be discovered are
// reported and keep the namespace, but the objects of all other groups are deleted.
func (n *namespaces) discover(rest *remaining) []resource {
	lists, err := discovery.ServerPreferredNamespacedResources(n.client().Discovery())
	var failed *discovery.ErrGroupDiscoveryFailed
	if errors.As(err, &failed) {
		err = fmt.Errorf("Discovery failed for some groups, %d failing: %w", len(failed.Groups), err)
	}
	if err != nil {
		rest.discovery = append(rest.discovery, err)
	}
	var found []resource
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			rest.versions = append(rest.versions, err)
			continue
		}
		for _, r := range list.APIResources {
			if slices.Contains(r.Verbs, "list") && slices.Contains(r.Verbs, "delete") {
				found = append(found, resource{gv.WithResource(r.Name), slices.Contains(r.Verbs, "deletecollection")})
			}
		}
	}
	return found
}

// deleteAll deletes the namespace's objects of one resource and counts the remaining ones.
func (n *namespaces) deleteAll(ctx context.Context, namespace string, res resource, rest *remaining) error {
	client := n.metadata().Resource(res.GroupVersionResource).Namespace(namespace)
	list, err := client.List(ctx, metav1.ListOptions{})
	if gone(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list %s: %w", res.Resource, err)
	}
	fresh := slices.ContainsFunc(list.Items, func(o metav1.PartialObjectMetadata) bool {
		return o.DeletionTimestamp == nil
	})
	if fresh {
		if err := deleteListed(ctx, client, res, list.Items); err != nil {
			return fmt.Errorf("delete %s: %w", res.Resource, err)
		}
		if list, err = client.List(ctx, metav1.ListOptions{}); gone(err) {
			return nil
		} else if err != nil {
			return fmt.Errorf("list %s: %w", res.Resource, err)
		}
	}
	rest.add(res.GroupVersionResource, list.Items)
	return nil
}

// deleteListed deletes the objects with one request, if the resource supports that, else one by one. Their dependents
// are deleted by the garbage collector or by this pass.
func deleteListed(ctx context.Context, client metadata.ResourceInterface, res resource,
	objects []metav1.PartialObjectMetadata) error {
	options := metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationBackground)}
	if res.collection {
		err := client.DeleteCollection(ctx, options, metav1.ListOptions{})
		if !gone(err) {
			return err
		}
	}
	for _, o := range objects {
		if o.DeletionTimestamp != nil {
			continue
		}
		if err := client.Delete(ctx, o.Name, options); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
}

// gone reports whether a resource, or this verb of it, is no longer served.
func gone(err error) bool {
	return apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err)
}

func (r *remaining) add(gvr schema.GroupVersionResource, objects []metav1.PartialObjectMetadata) {
	if len(objects) == 0 {
		return
	}
	r.objects[gvr] += len(objects)
	for _, o := range objects {
		for _, f := range o.Finalizers {
			r.finalizers[f]++
		}
	}
}

// sortedResources puts the keys of objects in a fixed order, for messages.
func (r *remaining) sortedResources() []schema.GroupVersionResource {
	return slices.SortedFunc(maps.Keys(r.objects), func(a, b schema.GroupVersionResource) int {
		return strings.Compare(a.GroupResource().String(), b.GroupResource().String())
	})
}
