package garbagecollector

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// An object may name many thousands of owners that do not exist, and each takes a request. A user who may
// create objects must not block the collection of other users' objects by that. So a worker makes at most
// askAtOnce requests for one object, all in parallel. An object that needs more is judged in a queue of its
// own, askInTurn requests at a time, and goes to the end of the queue after each turn.
const (
	askAtOnce = 10
	askInTurn = 100
	// askTogether is the number of concurrent requests of a turn.
	askTogether = 4
)

// standing is the result of looking up an owner.
type standing byte

const (
	unknown standing = iota
	lost             // it does not exist
	waiting          // it exists, deleted in the foreground, and waits for the dependent's deletion
	solid            // it exists
	unseen           // it exists, but is not in the graph yet
)

// inquiry holds the results of looking up an object's owners. Both slices have the indices of n.owners. One
// worker at a time uses it: the worker of the ordinary queue creates it and, if it is not complete, hands it to
// the slow queue.
type inquiry struct {
	n *node
	// answers has the API server's answers. lost stays true, since uids are not reused.
	answers []standing
	// found has the current results, from answers and the graph.
	found []standing
}

func newInquiry(n *node) *inquiry {
	return &inquiry{n: n, answers: make([]standing, len(n.owners)), found: make([]standing, len(n.owners))}
}

// inquiries holds the unfinished inquiries of the slow queue. It is safe for concurrent use.
type inquiries struct {
	mu    sync.Mutex
	byUID map[types.UID]*inquiry
}

// begun returns the unfinished inquiry about a node, or nil. An inquiry about other owner references does not
// count.
func (i *inquiries) begun(n *node) *inquiry {
	i.mu.Lock()
	defer i.mu.Unlock()
	if q := i.byUID[n.uid]; q != nil && (q.n == n || slices.EqualFunc(q.n.owners, n.owners, sameOwner)) {
		return q
	}
	return nil
}

func sameOwner(a, b metav1.OwnerReference) bool {
	return a.UID == b.UID && a.Name == b.Name && a.Kind == b.Kind && a.APIVersion == b.APIVersion
}

func (i *inquiries) keep(q *inquiry) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.byUID[q.n.uid] = q
}

func (i *inquiries) end(uid types.UID) {
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.byUID, uid)
}

// judgeSlowly takes one turn of an object in the slow queue, and judges the object after the last one.
func (g *collector) judgeSlowly(ctx context.Context, key string) error {
	uid := types.UID(key)
	n := g.graph.node(uid)
	if n == nil || n.deleting {
		g.inquiries.end(uid)
		return nil
	}
	q := g.inquiries.begun(n)
	if q == nil {
		q = newInquiry(n)
		g.inquiries.keep(q)
	}
	complete, err := g.inquire(ctx, q, askInTurn, askTogether)
	if err != nil {
		return g.unlessUnknown(n, err)
	}
	if !complete {
		g.slow.Enqueue(key)
		return nil
	}
	g.inquiries.end(uid)
	return g.act(ctx, n, q.verdict(n))
}

// verdict sorts n's owners. ok is false if they take more requests than one turn may make; the object is then
// in the slow queue.
func (g *collector) verdict(ctx context.Context, n *node) (v verdict, ok bool, err error) {
	if g.inquiries.begun(n) != nil {
		g.slow.Enqueue(string(n.uid))
		return v, false, nil
	}
	q := newInquiry(n)
	complete, err := g.inquire(ctx, q, askAtOnce, askAtOnce)
	if err != nil {
		return v, false, err
	}
	if !complete {
		g.inquiries.keep(q)
		g.slow.Enqueue(string(n.uid))
		return v, false, nil
	}
	return q.verdict(n), true, nil
}

// inquire looks up the owners: in the graph, among earlier answers, or from the API server by at most limit
// requests, with at most concurrency requests at once. It reports whether all owners are looked up. The caller
// owns the inquiry.
func (g *collector) inquire(ctx context.Context, q *inquiry, limit, concurrency int) (complete bool, err error) {
	var open []int
	for i, ref := range q.n.owners {
		owner := g.graph.node(ref.UID)
		switch {
		case q.answers[i] == lost || owner == nil || !owner.isNamedBy(ref, q.n):
			if q.found[i] = q.answers[i]; q.found[i] == unknown {
				open = append(open, i)
			}
		case owner.deleting && owner.foreground():
			q.found[i] = waiting
		default:
			q.found[i] = solid
		}
	}
	complete = true
	if open, err = g.unremembered(q, open); err != nil {
		return false, err
	}
	if len(open) > limit {
		open, complete = open[:limit], false
	}
	return complete, g.askAll(ctx, q, open, concurrency)
}

// unremembered returns the open references that need a request. The owners of the others are in the cache of
// absent owners.
func (g *collector) unremembered(q *inquiry, open []int) (ask []int, err error) {
	for _, i := range open {
		location, err := g.locate(q.n, q.n.owners[i])
		if err != nil {
			return nil, err
		}
		if _, ok := g.absent.Get(location); ok {
			q.answers[i], q.found[i] = lost, lost
		} else {
			ask = append(ask, i)
		}
	}
	return ask, nil
}

// askAll looks up the owners of the open references, with at most concurrency requests at once. Each goroutine
// writes only its own index of q.
func (g *collector) askAll(ctx context.Context, q *inquiry, open []int, concurrency int) error {
	if len(open) == 1 {
		return g.askInto(ctx, q, open[0])
	}
	errs := make([]error, len(open))
	slots := make(chan struct{}, concurrency)
	var asking sync.WaitGroup
	for k, i := range open {
		slots <- struct{}{}
		asking.Go(func() {
			defer func() { <-slots }()
			errs[k] = g.askInto(ctx, q, i)
		})
	}
	asking.Wait()
	return errors.Join(errs...)
}

func (g *collector) askInto(ctx context.Context, q *inquiry, i int) (err error) {
	q.answers[i], err = g.ask(ctx, q.n, q.n.owners[i])
	q.found[i] = q.answers[i]
	return err
}

// locate returns where the owner of a reference must be. It fails if the kind is unknown.
func (g *collector) locate(n *node, ref metav1.OwnerReference) (ownerLocation, error) {
	res, err := g.monitors.resourceOf(ref)
	if err != nil {
		return ownerLocation{}, fmt.Errorf("look up owner of %s: %w", n, err)
	}
	location := ownerLocation{ref.APIVersion, ref.Kind, "", ref.Name, ref.UID}
	if res.namespaced {
		location.namespace = n.namespace
	}
	return location, nil
}

// ask gets the owner in n's reference from the API server.
func (g *collector) ask(ctx context.Context, n *node, ref metav1.OwnerReference) (standing, error) {
	location, err := g.locate(n, ref)
	if err != nil {
		return unknown, err
	}
	res, err := g.monitors.resourceOf(ref)
	if err != nil {
		return unknown, fmt.Errorf("look up owner of %s: %w", n, err)
	}
	if res.namespaced && n.namespace == "" {
		g.recordInvalid(n, ref)
		return solid, nil // it cannot be judged, so it is left alone
	}
	live, err := g.client().Resource(res.gvr).Namespace(location.namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) || err == nil && live.UID != ref.UID:
		if len(n.owners) > askAtOnce {
			return lost, nil // too many for the cache and for Events
		}
		g.absent.Add(location, nil)
		if other := g.graph.node(ref.UID); other != nil && other.namespace != location.namespace {
			g.recordInvalid(n, ref)
		}
		return lost, nil
	case err != nil:
		return unknown, fmt.Errorf("look up owner of %s: %w", n, err)
	case live.DeletionTimestamp != nil && has(live.Finalizers, metav1.FinalizerDeleteDependents):
		return waiting, nil
	}
	return unseen, nil
}

// verdict sorts an object's owners.
type verdict struct {
	// solid owners exist, and the object stays while there is one. waiting owners exist and wait for the
	// object's deletion. lost owners do not exist.
	solid, waiting, lost []metav1.OwnerReference
	// unseen reports whether one of the solid owners is not in the graph yet.
	unseen bool
}

// verdict returns the result of a complete inquiry about n. n's owners are the inquiry's.
func (q *inquiry) verdict(n *node) (v verdict) {
	for i, ref := range n.owners {
		switch q.found[i] {
		case lost:
			v.lost = append(v.lost, ref)
		case waiting:
			v.waiting = append(v.waiting, ref)
		case unseen:
			v.solid, v.unseen = append(v.solid, ref), true
		default:
			v.solid = append(v.solid, ref)
		}
	}
	return v
}
