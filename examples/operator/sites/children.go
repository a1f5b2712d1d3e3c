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

// The functions in this file return only the fields that the operator manages. Server-side apply leaves all other
// fields to other field managers. The owner reference makes the garbage collector delete the children after their site.

const pagesAnnotation = "example.com/pages"

// pagesDir is the web server's folder of pages.
const pagesDir = "/usr/share/nginx/html"

func labelsOf(site *Site) labels.Set { return labels.Set{"example.com/site": site.Name} }

func ownedBy(site *Site) *applymeta.OwnerReferenceApplyConfiguration {
	return applymeta.OwnerReference().WithAPIVersion(GroupVersion.String()).WithKind("Site").
		WithName(site.Name).WithUID(site.UID).WithController(true).WithBlockOwnerDeletion(true)
}

// pages returns the ConfigMap with the site's pages.
func pages(site *Site) *applycore.ConfigMapApplyConfiguration {
	return applycore.ConfigMap(site.Name+"-pages", site.Namespace).
		WithLabels(labelsOf(site)).WithOwnerReferences(ownedBy(site)).WithData(site.Spec.Pages)
}

// servers returns the Deployment of the site's web servers. Its template has a fingerprint of the pages, so that a
// change of pages causes a rollout, like a change of the image.
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

// fingerprint returns a text that is equal for equal pages.
func fingerprint(pages map[string]string) string {
	sorted, _ := json.Marshal(pages) // cannot fail for strings
	return fmt.Sprintf("%x", sha256.Sum256(sorted))[:16]
}

// key returns the site's namespace and name.
func key(site metav1.Object) string { return site.GetNamespace() + "/" + site.GetName() }
