package sites

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
	applycore "k8s.io/client-go/applyconfigurations/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// The directory is a ConfigMap that says which site a domain belongs to. Each site applies its own line as a field
// manager of its own, and without force: of two sites that want one domain, the API server refuses the later one with
// a conflict. No garbage collector knows of a line in a shared object, so a finalizer holds the site until the line is
// gone.

// Directory names the ConfigMap.
var Directory = types.NamespacedName{Namespace: "default", Name: "site-directory"}

const finalizer = "example.com/site-directory"

// claim writes the site's domain into the directory. The error is a conflict if another site has the domain.
func (r *Reconciler) claim(ctx context.Context, site *Site) error {
	return r.applyLine(ctx, site, map[string]string{site.Spec.Domain: key(site)})
}

// release removes the site's line.
func (r *Reconciler) release(ctx context.Context, site *Site) error {
	return r.applyLine(ctx, site, nil)
}

func (r *Reconciler) applyLine(ctx context.Context, site *Site, line map[string]string) error {
	directory := applycore.ConfigMap(Directory.Name, Directory.Namespace).WithData(line)
	return r.Apply(ctx, directory, client.FieldOwner("site-"+site.UID))
}

// everySite is what a change of the directory may concern: a site that waits for a domain gets it now.
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
