package daemonset

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

const (
	hashLabel       = appsv1.DefaultDaemonSetUniqueLabelKey
	generationLabel = "pod-template-generation"

	// burst bounds how many pods one sync creates or deletes.
	burst = 250
	// maxFailureDelay bounds the delay after pods that failed on one Node.
	maxFailureDelay = 15 * time.Minute
)

func templateGeneration(d *appsv1.DaemonSet) string {
	if n := d.Annotations[appsv1.DeprecatedTemplateGeneration]; n != "" {
		return n
	}
	return strconv.FormatInt(d.Generation, 10)
}

// scale creates missing pods and deletes surplus ones on each Node.
func (s *sync) scale(ctx context.Context) error {
	var need []string
	var excess []*corev1.Pod
	existing := map[string]bool{}
	for _, node := range s.nodes {
		existing[node.Name] = true
		more, less := s.judge(node)
		if more {
			need = append(need, node.Name)
		}
		excess = append(excess, less...)
	}
	for name, pods := range s.byNode {
		if existing[name] {
			continue
		}
		for _, pod := range pods { // not bound, and its Node no longer exists
			if pod.Spec.NodeName == "" && pod.DeletionTimestamp == nil {
				excess = append(excess, pod)
			}
		}
	}
	slices.Sort(need)
	return controller.FirstError(s.delete(ctx, excess[:min(len(excess), burst)]),
		s.create(ctx, need[:min(len(need), burst)]))
}

// judge decides whether a Node needs a new pod, and which of its pods must be deleted.
func (s *sync) judge(node *corev1.Node) (need bool, excess []*corev1.Pod) {
	run, keep := s.suits(node)
	var alive []*corev1.Pod
	for _, pod := range s.byNode[node.Name] {
		switch {
		case pod.DeletionTimestamp != nil:
			if run {
				return false, nil // the replacement is created after the deletion
			}
		case controller.PodEnded(pod):
			if wait := s.Failures.Due(s.key, node.Name); wait > 0 {
				s.EnqueueAfter(s.key, wait)
				return false, nil
			}
			s.recordEnded(pod, node)
			excess = append(excess, pod)
		default:
			alive = append(alive, pod)
		}
	}
	switch {
	case !keep:
		return false, append(excess, alive...)
	case len(alive) == 0:
		// The replacement of an ended pod is created after its deletion.
		return run && len(excess) == 0, excess
	}
	return false, append(excess, s.surplus(alive)...)
}

func (s *sync) recordEnded(pod *corev1.Pod, node *corev1.Node) {
	if pod.Status.Phase == corev1.PodFailed {
		s.recorder.Eventf(s.set, corev1.EventTypeWarning, "FailedDaemonPod",
			"Found failed daemon pod %s/%s on node %s, will try to kill it", pod.Namespace, pod.Name, node.Name)
		return
	}
	s.recorder.Eventf(s.set, corev1.EventTypeNormal, "SucceededDaemonPod",
		"Found succeeded daemon pod %s/%s on node %s, will try to delete it", pod.Namespace, pod.Name, node.Name)
}

// surplus returns the pods of a Node beyond the one that it should have. With maxSurge a Node may have two: one
// of the old template, and one of the new template that will replace it.
func (s *sync) surplus(alive []*corev1.Pod) []*corev1.Pod {
	slices.SortFunc(alive, s.boundThenOlderFirst)
	if s.maxSurge() == 0 {
		return alive[1:]
	}
	var excess []*corev1.Pod
	seen := map[bool]*corev1.Pod{}
	for _, pod := range alive {
		current := s.isCurrent(pod)
		if seen[current] != nil {
			excess = append(excess, pod)
			continue
		}
		seen[current] = pod
	}
	if next, old := seen[true], seen[false]; next != nil && old != nil &&
		(s.available(next) || !controller.PodReady(old)) {
		excess = append(excess, old)
	}
	return excess
}

// boundThenOlderFirst orders the pods of a Node. Of two pods created in the same second, the one of the old
// template counts as older.
func (s *sync) boundThenOlderFirst(a, b *corev1.Pod) int {
	return cmp.Or(falseFirst(b.Spec.NodeName != "", a.Spec.NodeName != ""),
		a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
		falseFirst(s.isCurrent(a), s.isCurrent(b)), cmp.Compare(a.Name, b.Name))
}

func falseFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

func (s *sync) create(ctx context.Context, nodes []string) error {
	created := make([]*corev1.Pod, len(nodes))
	_, err := controller.SlowStart(len(nodes), func(i int) (err error) {
		created[i], err = s.client().CoreV1().Pods(s.set.Namespace).Create(ctx, s.newPod(nodes[i]),
			metav1.CreateOptions{})
		switch {
		case err == nil:
			s.recorder.Eventf(s.set, corev1.EventTypeNormal, "SuccessfulCreate", "Created pod: %v", created[i].Name)
		case !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
			s.recorder.Eventf(s.set, corev1.EventTypeWarning, "FailedCreate", "Error creating: %v", err)
			created[i] = nil
		}
		return err
	})
	for _, pod := range created {
		if pod != nil && pod.ResourceVersion != "" {
			s.Versions.Expect(s.key, s.daemonSets.pods, pod.ResourceVersion)
		}
	}
	if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return nil
	}
	return err
}

func (s *sync) delete(ctx context.Context, pods []*corev1.Pod) error {
	uids := make([]types.UID, len(pods))
	for i, pod := range pods {
		uids[i] = pod.UID
	}
	if len(pods) > 0 {
		s.Expected.ExpectDeletions(s.key, uids...)
	}
	errs := make([]error, len(pods))
	controller.InParallel(len(pods), func(i int) {
		pod := pods[i]
		err := s.client().CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name,
			*metav1.NewPreconditionDeleteOptions(string(pod.UID)))
		if err == nil {
			s.recorder.Eventf(s.set, corev1.EventTypeNormal, "SuccessfulDelete", "Deleted pod: %v", pod.Name)
			return
		}
		s.Expected.DeletionObserved(s.key, pod.UID)
		if !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			s.recorder.Eventf(s.set, corev1.EventTypeWarning, "FailedDelete", "Error deleting: %v", err)
			errs[i] = err
		}
	})
	return controller.FirstError(errs...)
}
