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

// An object may name many thousands of owners that do not exist, each of which takes a request. A user that may
// create objects must not keep the collector from others' by them: a worker makes askAtOnce requests for one
// object, and all at once. An object that needs more is judged in a queue of its own, askInTurn requests at a time,
// and goes to the end of the queue after each turn.
const (
	askAtOnce = 10
	askInTurn = 100
	// askTogether is how many of the requests of a turn are under way at once.
	askTogether = 4
)

// standing is what is known of an owner.
type standing byte

const (
	unknown standing = iota
	lost             // it does not exist
	waiting          // it exists, and waits for the dependent to be deleted
	solid            // it exists
	unseen           // it exists, and is not in the graph yet
)

// inquiry is what has been found out about the owners of an object. Both lists have the indices of its references.
type inquiry struct {
	n *node
	// answers are the API server's. One that an owner does not exist stays true, since uids do not come back.
	answers []standing
	// found is what holds now, by the answers and the graph.
	found []standing
}

func newInquiry(n *node) *inquiry {
	return &inquiry{n: n, answers: make([]standing, len(n.owners)), found: make([]standing, len(n.owners))}
}

// inquiries are those that are under way. It is safe for concurrent use.
type inquiries struct {
	mu sync.Mutex
	of map[types.UID]*inquiry
}

// begun returns the inquiry about a node, or nil.
func (i *inquiries) begun(n *node) *inquiry {
	i.mu.Lock()
	defer i.mu.Unlock()
	if q := i.of[n.uid]; q != nil && (q.n == n || slices.EqualFunc(q.n.owners, n.owners, sameOwner)) {
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
	i.of[q.n.uid] = q
}

func (i *inquiries) end(uid types.UID) {
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.of, uid)
}

// judgeSlowly is a turn of an object in the slow queue.
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

// verdict sorts n's owners. It is false if there are too many to ask for: the slow queue has the object then.
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

// inquire finds out about the owners: by the graph, by earlier answers or, of so many at most and so many at once, by
// asking the API server. It reports whether it has found out about all. The inquiry belongs to the caller.
func (g *collector) inquire(ctx context.Context, q *inquiry, most, together int) (complete bool, err error) {
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
	if len(open) > most {
		open, complete = open[:most], false
	}
	return complete, g.askAll(ctx, q, open, together)
}

// unremembered returns those of the open references that must be asked for. The others' owners are known not to exist,
// or cannot be judged.
func (g *collector) unremembered(q *inquiry, open []int) (ask []int, err error) {
	for _, i := range open {
		at, err := g.whereabouts(q.n, q.n.owners[i])
		if err != nil {
			return nil, err
		}
		if _, known := g.absent.Get(at); known {
			q.answers[i], q.found[i] = lost, lost
		} else {
			ask = append(ask, i)
		}
	}
	return ask, nil
}

// askAll asks for the owners of some references, so many at once.
func (g *collector) askAll(ctx context.Context, q *inquiry, open []int, together int) error {
	if len(open) == 1 {
		return g.askInto(ctx, q, open[0])
	}
	errs := make([]error, len(open))
	slots := make(chan struct{}, together)
	var asking sync.WaitGroup
	for at, i := range open {
		slots <- struct{}{}
		asking.Go(func() {
			defer func() { <-slots }()
			errs[at] = g.askInto(ctx, q, i)
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

// whereabouts returns where the owner of a reference would have to be. An error means that its kind is not known.
func (g *collector) whereabouts(n *node, ref metav1.OwnerReference) (ownerAt, error) {
	res, err := g.monitors.resourceOf(ref)
	if err != nil {
		return ownerAt{}, fmt.Errorf("owner of %s: %w", n, err)
	}
	at := ownerAt{ref.APIVersion, ref.Kind, "", ref.Name, ref.UID}
	if res.namespaced {
		at.namespace = n.namespace
	}
	return at, nil
}

// ask reads an owner from the API server, by the coordinates of n's reference.
func (g *collector) ask(ctx context.Context, n *node, ref metav1.OwnerReference) (standing, error) {
	at, err := g.whereabouts(n, ref)
	if err != nil {
		return unknown, err
	}
	res, err := g.monitors.resourceOf(ref)
	if err != nil {
		return unknown, fmt.Errorf("owner of %s: %w", n, err)
	}
	if res.namespaced && n.namespace == "" {
		g.tellInvalid(n, ref)
		return solid, nil // it cannot be judged, so it is left alone
	}
	live, err := g.client().Resource(res.gvr).Namespace(at.namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) || err == nil && live.UID != ref.UID:
		if len(n.owners) > askAtOnce {
			return lost, nil // without a note and an Event, of which there would be too many
		}
		g.absent.Add(at, nil)
		if other := g.graph.node(ref.UID); other != nil && other.namespace != at.namespace {
			g.tellInvalid(n, ref)
		}
		return lost, nil
	case err != nil:
		return unknown, fmt.Errorf("owner of %s: %w", n, err)
	case live.DeletionTimestamp != nil && has(live.Finalizers, metav1.FinalizerDeleteDependents):
		return waiting, nil
	}
	return unseen, nil
}

// verdict sorts an object's owners.
type verdict struct {
	// solid exist, and the object must live as long as one does. waiting exist and wait for the object to be deleted.
	// lost do not exist.
	solid, waiting, lost []metav1.OwnerReference
	// unseen is true if one of the solid is not in the graph yet.
	unseen bool
}

// verdict is what a complete inquiry has found about n, whose owners are the inquiry's.
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
