package aggregation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"strings"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// A client discovers the resources of all servers with one request for /apis, so this server's aggregated discovery
// includes the resources of the others. A server that does not support the aggregated form is asked for
// /apis/GROUP/VERSION instead.

// maxDiscovery limits the size of a server's discovery document, in bytes.
const maxDiscovery = 4 << 20

const acceptDiscovery = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

// Discovery returns a function that describes a group and version of another server. It first fetches the documents
// that are due, all in parallel. A server that does not answer is described by its last known document, marked as
// stale. If this server has already proxied the request, Discovery does not fetch.
func (a *Aggregation) Discovery(ctx context.Context, h http.Header) func(
	schema.GroupVersion) apidiscoveryv2.APIVersionDiscovery {
	var fetched map[schema.GroupVersion]known[[]apidiscoveryv2.APIResourceDiscovery]
	if current := a.now(); current != nil {
		fetched = askAll(ctx, a, h, current, func(l *link) *document[[]apidiscoveryv2.APIResourceDiscovery] {
			return &l.resources
		})
	}
	return func(gv schema.GroupVersion) apidiscoveryv2.APIVersionDiscovery {
		k, found := fetched[gv]
		v := apidiscoveryv2.APIVersionDiscovery{Version: gv.Version, Resources: k.value,
			Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent}
		if !found || k.err != nil {
			v.Freshness = apidiscoveryv2.DiscoveryFreshnessStale
		}
		return v
	}
}

// fetchResources fetches the resources of a server's group and version.
func (a *Aggregation) fetchResources(ctx context.Context, l *link, etag string) ([]apidiscoveryv2.APIResourceDiscovery,
	string, error) {
	r, err := a.ask(ctx, l, "/apis", maxDiscovery, acceptDiscovery, etag)
	switch {
	case err != nil:
		return nil, "", err
	case r.code == http.StatusServiceUnavailable:
		return nil, "", r.failure("/apis")
	case r.code != http.StatusOK || !isAggregated(r.header.Get("Content-Type")):
		resources, err := a.fetchLegacy(ctx, l)
		return resources, "", err
	}
	var list apidiscoveryv2.APIGroupDiscoveryList
	if err := json.Unmarshal(r.body, &list); err != nil {
		return nil, "", fmt.Errorf("/apis: %w", err)
	}
	for _, group := range list.Items {
		for _, v := range group.Versions {
			if group.Name == l.gv.Group && v.Version == l.gv.Version {
				return complete(v.Resources), r.header.Get("Etag"), nil
			}
		}
	}
	return nil, r.header.Get("Etag"), nil
}

func isAggregated(contentType string) bool {
	media, params, err := mime.ParseMediaType(contentType)
	return err == nil && media == "application/json" && params["g"] == "apidiscovery.k8s.io" && params["v"] == "v2" &&
		params["as"] == "APIGroupDiscoveryList"
}

// complete fills in missing response kinds, since some clients crash without them
// (https://github.com/kubernetes/kubernetes/issues/118361).
func complete(resources []apidiscoveryv2.APIResourceDiscovery) []apidiscoveryv2.APIResourceDiscovery {
	for i := range resources {
		if resources[i].ResponseKind == nil {
			resources[i].ResponseKind = &metav1.GroupVersionKind{}
		}
		for j := range resources[i].Subresources {
			if sub := &resources[i].Subresources[j]; sub.ResponseKind == nil {
				sub.ResponseKind = &metav1.GroupVersionKind{}
			}
		}
	}
	return resources
}

// fetchLegacy fetches the older form and converts it.
func (a *Aggregation) fetchLegacy(ctx context.Context, l *link) ([]apidiscoveryv2.APIResourceDiscovery, error) {
	path := "/apis/" + l.gv.Group + "/" + l.gv.Version
	r, err := a.ask(ctx, l, path, maxDiscovery, "application/json", "")
	if err != nil {
		return nil, err
	}
	if r.code != http.StatusOK {
		return nil, r.failure(path)
	}
	var list metav1.APIResourceList
	if err := json.Unmarshal(r.body, &list); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return converted(l.gv, list.APIResources)
}

// converted converts the entries of an APIResourceList to the aggregated form, which nests subresources in their
// resources.
func converted(gv schema.GroupVersion, list []metav1.APIResource) ([]apidiscoveryv2.APIResourceDiscovery, error) {
	var resources []apidiscoveryv2.APIResourceDiscovery
	index := map[string]int{}
	for _, r := range list {
		if strings.Contains(r.Name, "/") {
			continue
		}
		index[r.Name] = len(resources)
		resources = append(resources, apidiscoveryv2.APIResourceDiscovery{Resource: r.Name, Scope: scopeOf(&r),
			ResponseKind: kindOf(gv, &r), Verbs: r.Verbs, ShortNames: r.ShortNames, Categories: r.Categories,
			SingularResource: r.SingularName})
	}
	for _, r := range list {
		parent, sub, found := strings.Cut(r.Name, "/")
		if !found {
			continue
		}
		i, found := index[parent]
		if !found { // a subresource without its resource, as metrics-server has
			i, index[parent] = len(resources), len(resources)
			resources = append(resources, apidiscoveryv2.APIResourceDiscovery{Resource: parent, Scope: scopeOf(&r),
				ResponseKind: &metav1.GroupVersionKind{}})
		}
		if resources[i].Scope != scopeOf(&r) {
			return nil, errors.New("the scopes of " + parent + " and of its subresource " + sub + " differ")
		}
		resources[i].Subresources = append(resources[i].Subresources, apidiscoveryv2.APISubresourceDiscovery{
			Subresource: sub, Verbs: r.Verbs, ResponseKind: kindOf(gv, &r)})
	}
	return resources, nil
}

func scopeOf(r *metav1.APIResource) apidiscoveryv2.ResourceScope {
	if r.Namespaced {
		return apidiscoveryv2.ScopeNamespace
	}
	return apidiscoveryv2.ScopeCluster
}

// kindOf returns the kind of an entry. An entry without group and version has the ones of its list.
func kindOf(gv schema.GroupVersion, r *metav1.APIResource) *metav1.GroupVersionKind {
	k := &metav1.GroupVersionKind{Group: r.Group, Version: r.Version, Kind: r.Kind}
	if r.Kind != "" && k.Group == "" && k.Version == "" {
		k.Group, k.Version = gv.Group, gv.Version
	}
	return k
}
