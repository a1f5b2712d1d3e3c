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
	// starting is how long an enforcer may take to know the cluster before that is a problem.
	starting = 5 * time.Second
	// protectPatience is how long Protect waits for the kernel.
	protectPatience = 10 * time.Second
	// listAgain is how long Protect waits for the informer to show a policy before it asks whether it is still there.
	listAgain = time.Second
	// deniedFor is how long rights count as missing after a request without them was refused. Informers ask more often.
	deniedFor = 2 * time.Minute
	// maxLists bounds the namespaces whose lists of policies are remembered.
	maxLists = 1000
)

// gate is what an enforcer knows of whether pods may start.
type gate struct {
	began      time.Time
	synced     bool
	failure    error // of the last write
	listError  error // of the last list or watch
	listFailed time.Time
	reported   string

	generation uint64        // counts changes
	written    uint64        // the generation that is in the kernel
	progress   chan struct{} // closed when any of this changes

	given map[types.NamespacedName]given // pods that were protected
	lists map[string]*policyList         // by namespace
}

// given are the addresses that a pod of this machine was given, whether its status has them or not.
type given struct {
	pod       types.UID
	addresses []netip.Addr
}

// policyList are the policies that a namespace had at a revision, with the revisions of each.
type policyList struct {
	revision uint64
	policies map[string]uint64
}

func newGate(now time.Time) gate {
	return gate{began: now, progress: make(chan struct{}), given: map[types.NamespacedName]given{},
		lists: map[string]*policyList{}}
}

// advance wakes those that wait for a change. The caller has the lock.
func (g *gate) advance() {
	close(g.progress)
	g.progress = make(chan struct{})
}

// Problem reports why policies are not enforced, so that no pod may start; nil where they are, or will be in a moment.
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

// note changes what Problem depends on, and reports it if it is another one.
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

// fail notes that the kernel did not take the rules, or that it did.
func (e *Enforcer) fail(err error) { e.note(func() { e.failure = err }) }

// refused notes that a list or a watch has failed.
func (e *Enforcer) refused(err error) {
	e.note(func() { e.listError, e.listFailed = err, e.clock.Now() })
}

// known notes that all informers have seen their first lists.
func (e *Enforcer) known() { e.note(func() { e.synced, e.listError = true, nil }) }

// Protect returns when the policies that a new pod of this machine has are in force at its addresses, all of those that
// were there when the pod was bound included. The addresses are the pod's from then on, whatever its status says. An
// error means that the pod must not be connected: it is to be called again.
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
		case <-again: // a policy may have gone before it was seen
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

// policiesOf are the policies of a pod's namespace, at a revision or later. What the informer has may be older.
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

// revisionOf is the revision of an object; 0 where it is no number. Revisions can be compared (KEP-5504).
func revisionOf(o metav1.Object) uint64 {
	revision, _ := strconv.ParseUint(o.GetResourceVersion(), 10, 64)
	return revision
}

// sees reports whether the informers have shown the pod as it is, and the policies of a list.
func (e *Enforcer) sees(pod *corev1.Pod, list *policyList) bool {
	known := e.pods[nameOf(pod)]
	if known == nil || known.UID != pod.UID || !maps.Equal(known.Labels, pod.Labels) {
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

// give gives a pod its addresses, and returns the generation in which it has them.
func (e *Enforcer) give(pod *corev1.Pod, addresses []netip.Addr) uint64 {
	name := nameOf(pod)
	e.given[name] = given{pod.UID, addresses}
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

// owns reports whether addresses are a pod's, and no earlier pod is known that had one of them.
func (e *Enforcer) owns(pod *corev1.Pod, addresses []netip.Addr) bool {
	known := e.pods[nameOf(pod)]
	return known != nil && known.UID == pod.UID &&
		!slices.ContainsFunc(addresses, func(a netip.Addr) bool { return !slices.Contains(known.owned, a) })
}
