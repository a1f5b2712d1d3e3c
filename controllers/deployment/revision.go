package deployment

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

// Annotations that kubectl and other controllers read.
const (
	revisionAnnotation        = "deployment.kubernetes.io/revision"
	revisionHistoryAnnotation = "deployment.kubernetes.io/revision-history"
	desiredReplicasAnnotation = "deployment.kubernetes.io/desired-replicas"
	maxReplicasAnnotation     = "deployment.kubernetes.io/max-replicas"

	// maxHistoryLength bounds the revision history of one ReplicaSet, in characters.
	maxHistoryLength = 2000
)

// notInherited lists annotations of a Deployment that its ReplicaSets do not inherit.
var notInherited = map[string]bool{
	corev1.LastAppliedConfigAnnotation: true,
	controller.TTLAnnotation:           true,
	revisionAnnotation:                 true,
	revisionHistoryAnnotation:          true,
	desiredReplicasAnnotation:          true,
	maxReplicasAnnotation:              true,
	appsv1.DeprecatedRollbackTo:        true,
}

func olderFirst(a, b *appsv1.ReplicaSet) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
}

// classify finds the new ReplicaSet: the oldest with the Deployment's template. It compares templates, not
// hashes, which another release may have computed differently.
func (r *rollout) classify() {
	r.current, r.old = nil, nil
	for _, rs := range r.sets {
		if r.current == nil && sameTemplate(&rs.Spec.Template, &r.d.Spec.Template) {
			r.current = rs
		} else {
			r.old = append(r.old, rs)
		}
	}
}

// sameTemplate compares templates, ignoring the label that holds the hash.
func sameTemplate(a, b *corev1.PodTemplateSpec) bool {
	without := func(t *corev1.PodTemplateSpec) *corev1.PodTemplateSpec {
		t = t.DeepCopy()
		delete(t.Labels, appsv1.DefaultDeploymentUniqueLabelKey)
		return t
	}
	return equality.Semantic.DeepEqual(without(a), without(b))
}

func active(sets []*appsv1.ReplicaSet) []*appsv1.ReplicaSet {
	return slices.DeleteFunc(slices.Clone(sets), func(rs *appsv1.ReplicaSet) bool {
		return rs == nil || replicasOf(rs) == 0
	})
}

// revisionOf returns a ReplicaSet's revision, or 0 if the annotation is missing or not a number.
func revisionOf(rs *appsv1.ReplicaSet) int64 {
	n, err := strconv.ParseInt(rs.Annotations[revisionAnnotation], 10, 64)
	if err != nil {
		return 0
	}
	return n
}

func (r *rollout) nextRevision() int64 {
	var highest int64
	for _, rs := range r.old {
		highest = max(highest, revisionOf(rs))
	}
	return highest + 1
}

// syncRevision gives the new ReplicaSet the highest revision and the Deployment's annotations and
// minReadySeconds. It then copies the revision to the Deployment.
func (r *rollout) syncRevision(ctx context.Context) error {
	rs := r.current
	changed := inherit(rs, r.d, r.nextRevision())
	if changed || rs.Spec.MinReadySeconds != r.d.Spec.MinReadySeconds {
		rs.Spec.MinReadySeconds = r.d.Spec.MinReadySeconds
		updated, err := r.client().AppsV1().ReplicaSets(rs.Namespace).Update(ctx, rs, metav1.UpdateOptions{})
		if err != nil {
			return err
		}
		r.replace(updated)
	}
	if err := r.annotateRevision(ctx); err != nil {
		return err
	}
	if r.hasDeadline() && conditionOf(r.d.Status, appsv1.DeploymentProgressing) == nil {
		return r.setProgressing(ctx, corev1.ConditionTrue, foundNewReplicaSet,
			fmt.Sprintf("Found new replica set %q", r.current.Name))
	}
	return nil
}

// annotateRevision writes the new ReplicaSet's revision to the Deployment, where "kubectl rollout" reads it.
func (r *rollout) annotateRevision(ctx context.Context) error {
	revision := r.current.Annotations[revisionAnnotation]
	if r.d.Annotations[revisionAnnotation] == revision {
		return nil
	}
	if r.d.Annotations == nil {
		r.d.Annotations = map[string]string{}
	}
	r.d.Annotations[revisionAnnotation] = revision
	updated, err := r.client().AppsV1().Deployments(r.d.Namespace).Update(ctx, r.d, metav1.UpdateOptions{})
	if err != nil {
		return err
	}
	r.d = updated
	return nil
}

// inherit sets rs's annotations from its Deployment and reports whether any changed. A ReplicaSet whose
// revision rises has been rolled back to: its earlier revision is added to its history.
func inherit(rs *appsv1.ReplicaSet, d *appsv1.Deployment, revision int64) (changed bool) {
	if rs.Annotations == nil {
		rs.Annotations = map[string]string{}
	}
	for key, value := range d.Annotations {
		if old, ok := rs.Annotations[key]; !notInherited[key] && (!ok || old != value) {
			rs.Annotations[key] = value
			changed = true
		}
	}
	before, ok := rs.Annotations[revisionAnnotation]
	if revisionOf(rs) >= revision {
		return changed
	}
	rs.Annotations[revisionAnnotation] = strconv.FormatInt(revision, 10)
	if ok {
		rs.Annotations[revisionHistoryAnnotation] = appendHistory(rs.Annotations[revisionHistoryAnnotation], before)
	}
	return true
}

// appendHistory adds a revision to the comma-separated list, and drops the oldest revisions that do not fit.
func appendHistory(history, revision string) string {
	if history == "" {
		return revision
	}
	history += "," + revision
	for len(history) > maxHistoryLength {
		_, history, _ = strings.Cut(history, ",")
	}
	return history
}

// replace replaces a ReplicaSet by the server's answer to a write.
func (r *rollout) replace(updated *appsv1.ReplicaSet) {
	for _, list := range [][]*appsv1.ReplicaSet{r.sets, r.old} {
		for i, rs := range list {
			if rs.UID == updated.UID {
				list[i] = updated
			}
		}
	}
	if r.current != nil && r.current.UID == updated.UID {
		r.current = updated
	}
}

// createCurrent creates the new ReplicaSet with as many replicas as the strategy allows now.
func (r *rollout) createCurrent(ctx context.Context) error {
	rs := newReplicaSet(r.d)
	inherit(rs, r.d, r.nextRevision())
	rs.Spec.Replicas = new(r.newReplicas(rs))
	setSizeAnnotations(rs, r.d)
	created, err := r.client().AppsV1().ReplicaSets(r.d.Namespace).Create(ctx, rs, metav1.CreateOptions{})
	switch {
	case apierrors.IsAlreadyExists(err):
		return r.resolveNameTaken(ctx, rs.Name, err)
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return err
	case err != nil:
		return r.recordCreateFailure(ctx, rs.Name, err)
	}
	r.current, r.sets = created, append(r.sets, created)
	if n := replicasOf(created); n > 0 {
		r.recorder.Eventf(r.d, corev1.EventTypeNormal, "ScalingReplicaSet",
			"Scaled up replica set %s from 0 to %d", created.Name, n)
	}
	if err := r.annotateRevision(ctx); err != nil {
		return err
	}
	if !r.hasDeadline() {
		return nil
	}
	setCondition(&r.d.Status, r.condition(appsv1.DeploymentProgressing, corev1.ConditionTrue,
		newReplicaSetCreated, fmt.Sprintf("Created new replica set %q", created.Name)))
	return r.writeStatus(ctx)
}

func newReplicaSet(d *appsv1.Deployment) *appsv1.ReplicaSet {
	hash := templateHash(&d.Spec.Template, d.Status.CollisionCount)
	template := d.Spec.Template.DeepCopy()
	template.Labels = withHash(template.Labels, hash)
	selector := d.Spec.Selector.DeepCopy()
	selector.MatchLabels = withHash(selector.MatchLabels, hash)
	return &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{
			Name:            setName(d.Name, hash),
			Namespace:       d.Namespace,
			Labels:          maps.Clone(template.Labels),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(d, Kind)},
		},
		Spec: appsv1.ReplicaSetSpec{
			MinReadySeconds: d.Spec.MinReadySeconds,
			Selector:        selector,
			Template:        *template,
		},
	}
}

func withHash(labels map[string]string, hash string) map[string]string {
	labels = maps.Clone(labels)
	if labels == nil {
		labels = map[string]string{}
	}
	labels[appsv1.DefaultDeploymentUniqueLabelKey] = hash
	return labels
}

// maxSetName leaves room for the suffix that pods' names append to the ReplicaSet's name.
const maxSetName = 253 - 10

func setName(deployment, hash string) string {
	return deployment[:min(len(deployment), maxSetName-len(hash)-1)] + "-" + hash
}

// templateHash returns the hash of a template's JSON form, which does not change when a later API release adds
// fields that are empty here.
func templateHash(template *corev1.PodTemplateSpec, collisions *int32) string {
	text, err := json.Marshal(template)
	if err != nil {
		panic(err) // API types always have a JSON form
	}
	return controller.TemplateHash(append(text, '\n'), collisions)
}

// resolveNameTaken handles a name that exists already. Either it is our own ReplicaSet, which the cache does
// not show yet, or a ReplicaSet of another template with the same hash: then collisionCount changes the next
// hash.
func (r *rollout) resolveNameTaken(ctx context.Context, name string, exists error) error {
	rs, err := r.client().AppsV1().ReplicaSets(r.d.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if metav1.IsControlledBy(rs, r.d) && sameTemplate(&rs.Spec.Template, &r.d.Spec.Template) {
		r.sets = append(r.sets, rs)
		r.classify()
		return r.syncRevision(ctx)
	}
	if r.d.Status.CollisionCount == nil {
		r.d.Status.CollisionCount = new(int32(0))
	}
	*r.d.Status.CollisionCount++
	if err := r.writeStatus(ctx); err != nil {
		return err
	}
	return fmt.Errorf("hash collision: %w", exists)
}

func (r *rollout) recordCreateFailure(ctx context.Context, name string, failure error) error {
	message := fmt.Sprintf("Failed to create new replica set %q: %v", name, failure)
	r.recorder.Event(r.d, corev1.EventTypeWarning, failedCreate, message)
	if r.hasDeadline() {
		// The failure itself is returned; the next try writes the status again.
		if err := r.setProgressing(ctx, corev1.ConditionFalse, failedCreate, message); err != nil {
			r.Log.Debug("cannot write status", "key", controller.KeyOf(r.d), "err", err)
		}
	}
	return failure
}

// cleanUp deletes the oldest ReplicaSets beyond revisionHistoryLimit, unless they have pods or expect any.
func (r *rollout) cleanUp(ctx context.Context) error {
	if r.d.Spec.RevisionHistoryLimit == nil || *r.d.Spec.RevisionHistoryLimit == math.MaxInt32 {
		return nil
	}
	existing := slices.DeleteFunc(slices.Clone(r.old), func(rs *appsv1.ReplicaSet) bool {
		return rs.DeletionTimestamp != nil
	})
	excess := len(existing) - int(*r.d.Spec.RevisionHistoryLimit)
	slices.SortFunc(existing, func(a, b *appsv1.ReplicaSet) int {
		return cmp.Or(cmp.Compare(revisionOf(a), revisionOf(b)), olderFirst(a, b))
	})
	for i := range max(excess, 0) {
		rs := existing[i]
		if rs.Status.Replicas != 0 || replicasOf(rs) != 0 || rs.Generation > rs.Status.ObservedGeneration {
			continue
		}
		err := r.client().AppsV1().ReplicaSets(rs.Namespace).Delete(ctx, rs.Name,
			*metav1.NewPreconditionDeleteOptions(string(rs.UID)))
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
}
