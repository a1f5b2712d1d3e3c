package sites

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
	applycore "k8s.io/client-go/applyconfigurations/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// The directory is a ConfigMap that maps each domain to its site. Each site applies its entry with a field manager of
// its own and without force: if two sites request the same domain, the API server rejects the later one with a
// conflict. Garbage collection does not cover entries of a shared object, so a finalizer keeps the site until its entry
// is removed.

// Directory names the ConfigMap.
var Directory = types.NamespacedName{Namespace: "default", Name: "site-directory"}

const finalizer = "example.com/site-directory"

// claim writes the site's domain into the directory. The error is a conflict if another site has the domain.
func (r *Reconciler) claim(ctx context.Context, site *Site) error {
	return r.applyEntry(ctx, site, map[string]string{site.Spec.Domain: key(site)})
}

// release removes the site's entry.
func (r *Reconciler) release(ctx context.Context, site *Site) error {
	return r.applyEntry(ctx, site, nil)
}

func (r *Reconciler) applyEntry(ctx context.Context, site *Site, entry map[string]string) error {
	directory := applycore.ConfigMap(Directory.Name, Directory.Namespace).WithData(entry)
	return r.Apply(ctx, directory, client.FieldOwner("site-"+site.UID))
}

// everySite returns requests for all sites if the directory has changed: a site may be waiting for a domain that is now
// free.
func (r *Reconciler) everySite(ctx context.Context, changed client.Object) (requests []reconcile.Request) {
	var sites SiteList
	if client.ObjectKeyFromObject(changed) != Directory || r.List(ctx, &sites) != nil {
		return nil
	}
	for i := range sites.Items {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&sites.Items[i])})
	}
	return requests
}
