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
	// collection is true if all its objects can be deleted in one request.
	collection bool
}

var pods = schema.GroupVersionResource{Version: "v1", Resource: "pods"}

// remaining is what a pass over a namespace has found and left.
type remaining struct {
	// objects and finalizers count, per resource and per finalizer, what is still there.
	objects    map[schema.GroupVersionResource]int
	finalizers map[string]int
	// discovery, versions and content are what went wrong while finding out which resources
	// there are, reading their group versions, and deleting.
	discovery, versions, content []error
}

func (r *remaining) err() error {
	return errors.Join(slices.Concat(r.discovery, r.versions, r.content)...)
}

// deleteContent deletes all that is in the namespace and reports what is left. Pods go
// first, and all else only when the last of them has ended: until then they may need the
// policies, secrets and accounts they were started with (KEP-5080).
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

// discover asks which namespaced resources there are. Groups that cannot be discovered are reported and
// keep the namespace; the objects of all others are deleted all the same.
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

// deleteAll deletes the namespace's objects of one resource, and counts those that stay.
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

// deleteListed deletes in one request where the resource has one, else one by one.
// Dependents are left to the garbage collector, or to their own turn in this pass.
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
