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
	// firstFailureDelay delays the second replacement; the first is not delayed.
	firstFailureDelay = time.Second
	// MaxFailureDelay bounds the delay, unless a controller sets another bound.
	MaxFailureDelay = 5 * time.Minute
	// stableAge is the age at which a pod has proved that it can run. A pod that fails later is replaced at
	// once.
	stableAge = 10 * time.Minute
	// KeepFailed is how many failed pods of one owner are kept for inspection; older ones are deleted.
	KeepFailed = 500
)

// Failures delays the replacement of pods that fail soon after their creation: their replacements will probably
// fail too, for example if a node rejects every pod. The first replacement is created at once, the following
// ones after 1 s, 2 s, 4 s, …. The delay is reset when no replacement has been needed for twice the longest
// delay. A restart resets it too, which only makes the next replacement come sooner.
//
// It is safe for concurrent use.
type Failures struct {
	clock clock.PassiveClock
	limit time.Duration
	mu    sync.Mutex
	// owners has the delays by owner and place: a Node, a pod's name, or "" for all pods together. mu guards it
	// and everything in it.
	owners map[string]map[string]*setback
}

type setback struct {
	times int       // replacements since pods last ran well; the delay doubles with each
	last  time.Time // of the last replacement; zero if there was none
	// known has the failed pods that have been seen; owed is how many of them have not been replaced yet.
	known map[types.UID]bool
	owed  int
}

// NewFailures returns an empty set with delays of at most limit.
func NewFailures(c clock.PassiveClock, limit time.Duration) *Failures {
	return &Failures{clock: c, limit: limit, owners: map[string]map[string]*setback{}}
}

// Due returns how long the replacement of the pod at a place must wait. 0 means that it is created now: Due
// counts it as created.
func (f *Failures) Due(owner, place string) (wait time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.next(f.setback(owner, place), f.clock.Now(), false)
}

// Failed records that the pod at a place failed before it proved that it can run, or was evicted: Replace
// delays the next one. Several calls before that count once.
func (f *Failures) Failed(owner, place string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.setback(owner, place).owed = 1
}

// Replace is Due for a place whose pod has Failed. It returns 0 for every other place.
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

// Allow returns how many of an owner's missing pods may be created now, and how long the rest must wait. pods
// are all pods of the owner, ended ones included. Pods beyond the number that failed, as when the owner is
// scaled up, never wait.
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
		x = f.setback(owner, "")
	}
	for uid := range failed {
		if !x.known[uid] {
			x.owed++
		}
	}
	x.known, x.owed = failed, min(x.owed, max(0, missing))
	if x.owed == 0 {
		if len(failed) == 0 && f.expired(x, now) {
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

// failedSoon reports whether a pod failed soon after its creation: its phase is Failed, or it was evicted
// because it does not tolerate a Node's taint.
func failedSoon(pod *corev1.Pod, now time.Time) bool {
	if now.Sub(pod.CreationTimestamp.Time) > stableAge {
		return false
	}
	if pod.Status.Phase == corev1.PodFailed {
		return true
	}
	c := PodCondition(pod, corev1.DisruptionTarget)
	return pod.DeletionTimestamp != nil && c != nil && c.Status == corev1.ConditionTrue &&
		c.Reason == "DeletionByTaintManager"
}

// FailedSoon reports whether a pod failed before it proved that it can run.
func (f *Failures) FailedSoon(pod *corev1.Pod) bool { return failedSoon(pod, f.clock.Now()) }

// readySince returns how many of the pods that were created after since are ready.
func readySince(pods []*corev1.Pod, since time.Time) int {
	n := 0
	for _, pod := range pods {
		if PodActive(pod) && PodReady(pod) && !pod.CreationTimestamp.Time.Before(since.Truncate(time.Second)) {
			n++
		}
	}
	return n
}

// Forget drops the delays of an owner that no longer exists.
func (f *Failures) Forget(owner string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.owners, owner)
}

// maxPlaces is the number of an owner's places above which the places without a delay are removed.
const maxPlaces = 1000

func (f *Failures) setback(owner, place string) *setback {
	places := f.owners[owner]
	if places == nil {
		places = map[string]*setback{}
		f.owners[owner] = places
	}
	x := places[place]
	if x == nil {
		if len(places) >= maxPlaces {
			for other, y := range places {
				if f.expired(y, f.clock.Now()) {
					delete(places, other)
				}
			}
		}
		x = &setback{}
		places[place] = x
	}
	return x
}

func (f *Failures) expired(x *setback, now time.Time) bool { return now.Sub(x.last) > 2*f.limit }

// next records a replacement if it may be created now, and returns 0. It then doubles the delay of the next one
// or, if well, starts again with the shortest. Otherwise it returns the remaining delay. The caller holds mu.
func (f *Failures) next(x *setback, now time.Time, well bool) (wait time.Duration) {
	if f.expired(x, now) {
		x.times, x.last = 1, now
		return 0
	}
	if wait := x.last.Add(backoff.After(x.times, firstFailureDelay, f.limit)).Sub(now); wait > 0 {
		return wait
	}
	x.last, x.times = now, x.times+1
	if well {
		x.times = 1
	}
	return 0
}

// PruneFailed deletes the oldest of an owner's failed pods beyond KeepFailed.
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
