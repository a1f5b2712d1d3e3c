package controller

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/internal/backoff"
)

const (
	// firstFailureDelay is the delay of the second replacement; the first has none.
	firstFailureDelay = time.Second
	// MaxFailureDelay bounds the delay where a controller has no other bound.
	MaxFailureDelay = 5 * time.Minute
	// settled is the age at which a pod has proved that it can run. When it fails after that, it is replaced at once.
	settled = 10 * time.Minute
	// KeepFailed is how many pods of one owner that have failed are kept for inspection; the oldest are deleted first.
	KeepFailed = 500
)

// Failures delays the replacement of pods that fail soon after their creation, where the next will probably fail
// too: a node may refuse every one. The first replacement is made at once, those after it after 1 s, 2 s, 4
// s, …. The delay is forgotten when no replacement has been needed for twice the longest delay; a restart
// forgets it too, which makes the next replacement come sooner, and no more.
//
// It is safe for concurrent use.
type Failures struct {
	clock clock.PassiveClock
	most  time.Duration
	mu    sync.Mutex
	// owners has the delays of each owner by place: a Node, a pod's name, or "" for all pods together.
	owners map[string]map[string]*setback
}

type setback struct {
	times int       // how many replacements since pods did well: they make the delay
	last  time.Time // when the last replacement was made; zero where none was
	// known are the failed pods that have been seen; owed is how many of them have not been replaced.
	known map[types.UID]bool
	owed  int
}

// NewFailures returns an empty set whose delays are at most so long.
func NewFailures(c clock.PassiveClock, most time.Duration) *Failures {
	return &Failures{clock: c, most: most, owners: map[string]map[string]*setback{}}
}

// Due returns how long the pod of a place must wait to be replaced. 0 means that it is replaced now.
func (f *Failures) Due(owner, place string) (wait time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.next(f.at(owner, place), f.clock.Now(), false)
}

// Failed notes that the pod of a place has failed before it had proved that it can run, or was taken away:
// Replace delays the next. Several notes before that are one.
func (f *Failures) Failed(owner, place string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.at(owner, place).owed = 1
}

// Replace is Due for a place whose pod has Failed. The pod of any other place is due at once.
func (f *Failures) Replace(owner, place string) (wait time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	x := f.owners[owner][place]
	if x == nil || x.owed == 0 {
		return 0
	}
	if wait = f.next(x, f.clock.Now(), false); wait == 0 {
		x.owed = 0
	}
	return wait
}

// Allow returns how many of the missing pods of an owner may be made now, and how long the rest must wait.
// pods are all that the owner has, those that have ended included. Pods beyond those that failed, as when the
// owner is scaled up, never wait.
func (f *Failures) Allow(owner string, missing int, pods []*corev1.Pod) (n int, wait time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.clock.Now()
	failed := map[types.UID]bool{}
	for _, pod := range pods {
		if failedSoon(pod, now) {
			failed[pod.UID] = true
		}
	}
	x := f.owners[owner][""]
	if x == nil && len(failed) == 0 {
		return missing, 0
	}
	if x == nil {
		x = f.at(owner, "")
	}
	for uid := range failed {
		if !x.known[uid] {
			x.owed++
		}
	}
	x.known, x.owed = failed, min(x.owed, max(0, missing))
	if x.owed == 0 {
		if len(failed) == 0 && f.forgotten(x, now) {
			delete(f.owners, owner)
		}
		return missing, 0
	}
	if wait := f.next(x, now, readySince(pods, x.last) >= x.owed); wait > 0 {
		return missing - x.owed, wait
	}
	x.owed = 0
	return missing, 0
}

// failedSoon reports whether a pod failed soon after its creation: it ended so, or was evicted from a Node
// whose taint it does not tolerate.
func failedSoon(pod *corev1.Pod, now time.Time) bool {
	if now.Sub(pod.CreationTimestamp.Time) > settled {
		return false
	}
	if pod.Status.Phase == corev1.PodFailed {
		return true
	}
	c := PodCondition(pod, corev1.DisruptionTarget)
	return pod.DeletionTimestamp != nil && c != nil && c.Status == corev1.ConditionTrue &&
		c.Reason == "DeletionByTaintManager"
}

// FailedSoon reports whether a pod has failed before it proved that it can run.
func (f *Failures) FailedSoon(pod *corev1.Pod) bool { return failedSoon(pod, f.clock.Now()) }

// readySince is how many of the pods that were made since then are ready.
func readySince(pods []*corev1.Pod, since time.Time) int {
	n := 0
	for _, pod := range pods {
		if PodActive(pod) && PodReady(pod) && !pod.CreationTimestamp.Time.Before(since.Truncate(time.Second)) {
			n++
		}
	}
	return n
}

// Forget drops the delays of an owner that is no more.
func (f *Failures) Forget(owner string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.owners, owner)
}

// crowded is how many places an owner has before those that need no delay any more are removed.
const crowded = 1000

func (f *Failures) at(owner, place string) *setback {
	places := f.owners[owner]
	if places == nil {
		places = map[string]*setback{}
		f.owners[owner] = places
	}
	x := places[place]
	if x == nil {
		if len(places) >= crowded {
			for other, y := range places {
				if f.forgotten(y, f.clock.Now()) {
					delete(places, other)
				}
			}
		}
		x = &setback{}
		places[place] = x
	}
	return x
}

func (f *Failures) forgotten(x *setback, now time.Time) bool { return now.Sub(x.last) > 2*f.most }

// next notes a replacement, if it may be made now, and makes the delay of the one after it twice as long,
// unless as many of the last are well as have failed.
func (f *Failures) next(x *setback, now time.Time, well bool) (wait time.Duration) {
	if f.forgotten(x, now) {
		x.times, x.last = 1, now
		return 0
	}
	if wait := x.last.Add(backoff.After(x.times, firstFailureDelay, f.most)).Sub(now); wait > 0 {
		return wait
	}
	x.last, x.times = now, x.times+1
	if well {
		x.times = 1
	}
	return 0
}

// PruneFailed deletes the oldest of an owner's pods that have failed, but for KeepFailed.
func PruneFailed(ctx context.Context, client kubernetes.Interface, owner metav1.Object, pods []*corev1.Pod) error {
	var failed []*corev1.Pod
	for _, pod := range pods {
		if pod.Status.Phase == corev1.PodFailed && pod.DeletionTimestamp == nil && metav1.IsControlledBy(pod, owner) {
			failed = append(failed, pod)
		}
	}
	surplus := len(failed) - KeepFailed
	if surplus <= 0 {
		return nil
	}
	slices.SortFunc(failed, func(a, b *corev1.Pod) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	errs := make([]error, surplus)
	InParallel(surplus, func(i int) {
		err := client.CoreV1().Pods(failed[i].Namespace).Delete(ctx, failed[i].Name,
			*metav1.NewPreconditionDeleteOptions(string(failed[i].UID)))
		if !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			errs[i] = err
		}
	})
	return FirstError(errs...)
}
