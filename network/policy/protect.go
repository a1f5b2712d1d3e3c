package policy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// starting is how long an enforcer may take to sync before that counts as a problem.
	starting = 5 * time.Second
	// protectPatience is how long Protect waits for the kernel.
	protectPatience = 10 * time.Second
	// listAgain is how long Protect waits for the informer to show a policy before it lists policies again: the policy
	// may have been deleted.
	listAgain = time.Second
	// deniedFor is how long rights count as missing after a request was rejected. Informers retry more often.
	deniedFor = 2 * time.Minute
	// maxLists limits the namespaces with cached lists of policies.
	maxLists = 1000
)

// gate is the enforcer's state about whether pods may start.
type gate struct {
	began      time.Time
	synced     bool
	failure    error // of the last write
	listError  error // of the last list or watch
	listFailed time.Time
	reported   string

	generation uint64        // counts changes
	written    uint64        // the generation that is in the kernel
	progress   chan struct{} // closed and replaced when any of this changes

	assigned map[types.NamespacedName]assignment // addresses of protected pods
	lists    map[string]*policyList              // by namespace
}

// assignment is the set of addresses that were assigned to a pod of this machine. Its status may not show them yet.
type assignment struct {
	pod       types.UID
	addresses []netip.Addr
}

// policyList is a list of a namespace's policies at a revision, with the revision of each.
type policyList struct {
	revision uint64
	policies map[string]uint64
}

func newGate(now time.Time) gate {
	return gate{began: now, progress: make(chan struct{}), assigned: map[types.NamespacedName]assignment{},
		lists: map[string]*policyList{}}
}

// advance wakes all goroutines that wait for progress. The caller holds the lock.
func (g *gate) advance() {
	close(g.progress)
	g.progress = make(chan struct{})
}

// Problem reports why policies are not enforced, so that no pod may start. It returns nil if they are, or will be in a
// moment.
func (e *Enforcer) Problem() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.problem()
}

func (e *Enforcer) problem() error {
	now := e.clock.Now()
	lacking := apierrors.IsForbidden(e.listError) || apierrors.IsUnauthorized(e.listError)
	switch {
	case e.failure != nil:
		return e.failure
	case !e.synced && e.listError != nil && (lacking || now.Sub(e.began) > starting),
		e.synced && lacking && now.Sub(e.listFailed) < deniedFor:
		return fmt.Errorf("network policies are not known: %w", e.listError)
	case !e.synced && now.Sub(e.began) > starting:
		return errors.New("network policies are not known yet")
	}
	return nil
}

// note changes the state behind Problem, and calls Options.Changed if the problem changed.
func (e *Enforcer) note(change func()) {
	e.mu.Lock()
	change()
	e.advance()
	text := ""
	if problem := e.problem(); problem != nil {
		text = problem.Error()
	}
	changed := text != e.reported
	e.reported = text
	e.mu.Unlock()
	if changed {
		e.options.Changed()
	}
}

// fail records the result of the last write to the kernel.
func (e *Enforcer) fail(err error) { e.note(func() { e.failure = err }) }

// refused records that a list or a watch failed.
func (e *Enforcer) refused(err error) {
	e.note(func() { e.listError, e.listFailed = err, e.clock.Now() })
}

// known records that all informers have synced.
func (e *Enforcer) known() { e.note(func() { e.synced, e.listError = true, nil }) }

// Protect returns when the policies of a new pod of this machine are in force at its addresses, including all policies
// that existed when the pod was bound. From then on the addresses belong to the pod, whatever its status says. After an
// error the pod must not be connected, and Protect must be called again.
func (e *Enforcer) Protect(ctx context.Context, pod *corev1.Pod, addresses ...netip.Addr) error {
	ctx, cancel := context.WithTimeout(ctx, protectPatience)
	defer cancel()
	late := e.clock.After(protectPatience)
	list, err := e.policiesOf(ctx, pod, revisionOf(pod))
	again := e.clock.After(listAgain)
	begun, generation := false, uint64(0)
	for err == nil {
		e.mu.Lock()
		problem, progress := e.problem(), e.progress
		if !begun && e.synced && e.sees(pod, list) {
			generation, begun = e.give(pod, addresses), true
		}
		done := begun && e.written >= generation && e.owns(pod, addresses)
		e.mu.Unlock()
		switch {
		case problem != nil:
			return problem
		case done:
			return nil
		}
		select {
		case <-progress:
		case <-again: // a policy may be deleted before the informer showed it
			list, err = e.policiesOf(ctx, pod, list.revision+1)
			again = e.clock.After(listAgain)
		case <-late:
			return fmt.Errorf("network policies are not in force after %v", protectPatience)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return fmt.Errorf("network policies of the namespace %s: %w", pod.Namespace, err)
}

// policiesOf returns the policies of a pod's namespace, at a revision or later. The informer's may be older.
func (e *Enforcer) policiesOf(ctx context.Context, pod *corev1.Pod, revision uint64) (*policyList, error) {
	e.listing.Lock()
	defer e.listing.Unlock()
	e.mu.Lock()
	list := e.lists[pod.Namespace]
	e.mu.Unlock()
	if list != nil && list.revision >= revision && revision > 0 {
		return list, nil
	}
	found, err := e.client.NetworkingV1().NetworkPolicies(pod.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	list = &policyList{policies: map[string]uint64{}}
	list.revision, _ = strconv.ParseUint(found.ResourceVersion, 10, 64)
	for i := range found.Items {
		list.policies[found.Items[i].Name] = revisionOf(&found.Items[i])
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.lists) >= maxLists {
		clear(e.lists)
	}
	e.lists[pod.Namespace] = list
	return list, nil
}

// revisionOf returns the revision of an object, or 0 if it is not a number. Revisions can be compared (KEP-5504).
func revisionOf(o metav1.Object) uint64 {
	revision, _ := strconv.ParseUint(o.GetResourceVersion(), 10, 64)
	return revision
}

// sees reports whether the informers have shown this state of the pod, and the policies of a list.
func (e *Enforcer) sees(pod *corev1.Pod, list *policyList) bool {
	seen := e.pods[nameOf(pod)]
	if seen == nil || seen.UID != pod.UID || !maps.Equal(seen.Labels, pod.Labels) {
		return false
	}
	for name, revision := range list.policies {
		p := e.policies[types.NamespacedName{Namespace: pod.Namespace, Name: name}]
		if p == nil || p.revision < revision {
			return false
		}
	}
	return true
}

// give assigns addresses to a pod, and returns the generation with this assignment.
func (e *Enforcer) give(pod *corev1.Pod, addresses []netip.Addr) uint64 {
	name := nameOf(pod)
	e.assigned[name] = assignment{pod.UID, addresses}
	now := e.pods[name].Pod
	if now.Addresses = addresses; e.setPod(now) {
		e.generation++
		select {
		case e.changed <- struct{}{}:
		default:
		}
	}
	return e.generation
}

// owns reports whether a pod owns addresses, so that no other known pod precedes it there.
func (e *Enforcer) owns(pod *corev1.Pod, addresses []netip.Addr) bool {
	seen := e.pods[nameOf(pod)]
	return seen != nil && seen.UID == pod.UID &&
		!slices.ContainsFunc(addresses, func(a netip.Addr) bool { return !slices.Contains(seen.owned, a) })
}
