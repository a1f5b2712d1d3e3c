package deployment

import (
	"context"
	"fmt"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// rollbackTo returns the revision requested by the annotation that clients of extensions/v1beta1 wrote; 0 is
// the previous one. Newer clients write the earlier template themselves.
func rollbackTo(d *appsv1.Deployment) (revision int64, requested bool) {
	revision, err := strconv.ParseInt(d.Annotations[appsv1.DeprecatedRollbackTo], 10, 64)
	return revision, err == nil
}

// rollback writes the template of an earlier revision into the Deployment and records the outcome. The same
// write removes the annotation, so that a rollback happens once.
func (r *rollout) rollback(ctx context.Context, revision int64) error {
	d := r.d.DeepCopy()
	delete(d.Annotations, appsv1.DeprecatedRollbackTo)
	kind, reason, message := corev1.EventTypeWarning, "DeploymentRollbackRevisionNotFound",
		"Unable to find the revision to rollback to."
	if revision == 0 {
		if revision = r.lastRevision(); revision == 0 {
			message = "Unable to find last revision."
		}
	}
	for _, rs := range r.sets {
		if revision == 0 || revisionOf(rs) != revision {
			continue
		}
		if sameTemplate(&rs.Spec.Template, &d.Spec.Template) {
			reason, message = "DeploymentRollbackTemplateUnchanged",
				fmt.Sprintf("The rollback revision contains the same template as current deployment %q", d.Name)
			break
		}
		d.Spec.Template = *rs.Spec.Template.DeepCopy()
		delete(d.Spec.Template.Labels, appsv1.DefaultDeploymentUniqueLabelKey)
		takeAnnotations(d, rs)
		kind, reason, message = corev1.EventTypeNormal, "DeploymentRollback",
			fmt.Sprintf("Rolled back deployment %q to revision %d", d.Name, revision)
		break
	}
	if _, err := r.client().AppsV1().Deployments(d.Namespace).Update(ctx, d, metav1.UpdateOptions{}); err != nil {
		return err
	}
	r.recorder.Event(d, kind, reason, message)
	return nil
}

// lastRevision returns the second highest revision, or 0.
func (r *rollout) lastRevision() (last int64) {
	var highest int64
	for _, rs := range r.sets {
		switch n := revisionOf(rs); {
		case n > highest:
			highest, last = n, highest
		case n > last && n < highest:
			last = n
		}
	}
	return last
}

// takeAnnotations replaces the Deployment's annotations by the ReplicaSet's inherited ones, such as the change
// cause.
func takeAnnotations(d *appsv1.Deployment, rs *appsv1.ReplicaSet) {
	for key := range d.Annotations {
		if !notInherited[key] {
			delete(d.Annotations, key)
		}
	}
	for key, value := range rs.Annotations {
		if !notInherited[key] {
			d.Annotations[key] = value
		}
	}
}
