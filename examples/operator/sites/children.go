package sites

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	applyapps "k8s.io/client-go/applyconfigurations/apps/v1"
	applycore "k8s.io/client-go/applyconfigurations/core/v1"
	applymeta "k8s.io/client-go/applyconfigurations/meta/v1"
)

// The children are described by the fields that the operator decides about; server-side apply leaves all others to
// whoever sets them. The owner reference has the garbage collector delete them after their site.

const pagesAnnotation = "example.com/pages"

// pagesDir is where the web server looks for pages.
const pagesDir = "/usr/share/nginx/html"

func labelsOf(site *Site) labels.Set { return labels.Set{"example.com/site": site.Name} }

func ownedBy(site *Site) *applymeta.OwnerReferenceApplyConfiguration {
	return applymeta.OwnerReference().WithAPIVersion(GroupVersion.String()).WithKind("Site").
		WithName(site.Name).WithUID(site.UID).WithController(true).WithBlockOwnerDeletion(true)
}

// pages is the ConfigMap of the site's pages.
func pages(site *Site) *applycore.ConfigMapApplyConfiguration {
	return applycore.ConfigMap(site.Name+"-pages", site.Namespace).
		WithLabels(labelsOf(site)).WithOwnerReferences(ownedBy(site)).WithData(site.Spec.Pages)
}

// servers is the Deployment of the site's web servers. Its template names the content of the pages, so that new pages
// are rolled out as a new image is.
func servers(site *Site) *applyapps.DeploymentApplyConfiguration {
	server := applycore.Container().WithName("server").WithImage(site.Spec.Image).
		WithVolumeMounts(applycore.VolumeMount().WithName("pages").WithMountPath(pagesDir))
	return applyapps.Deployment(site.Name, site.Namespace).
		WithLabels(labelsOf(site)).WithOwnerReferences(ownedBy(site)).
		WithSpec(applyapps.DeploymentSpec().
			WithReplicas(*site.Spec.Replicas).
			WithSelector(applymeta.LabelSelector().WithMatchLabels(labelsOf(site))).
			WithTemplate(applycore.PodTemplateSpec().
				WithLabels(labelsOf(site)).
				WithAnnotations(map[string]string{pagesAnnotation: fingerprint(site.Spec.Pages)}).
				WithSpec(applycore.PodSpec().WithContainers(server).
					WithVolumes(applycore.Volume().WithName("pages").WithConfigMap(
						applycore.ConfigMapVolumeSource().WithName(site.Name + "-pages"))))))
}

// fingerprint is the same for the same pages.
func fingerprint(pages map[string]string) string {
	sorted, _ := json.Marshal(pages) // strings always can be
	return fmt.Sprintf("%x", sha256.Sum256(sorted))[:16]
}

// key is the site's name with its namespace.
func key(site metav1.Object) string { return site.GetNamespace() + "/" + site.GetName() }
