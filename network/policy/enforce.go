package policy

import (
	"context"
	"log/slog"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/internal/backoff"
	"github.com/coxswain-dev/coxswain/internal/clock/virtualtime"
)

const (
	// collect is how long changes are collected that go to the kernel together.
	collect = 5 * time.Millisecond
	// resync is how often all rules are written anew: someone else may have deleted the table, and what the kernel
	// refused for lack of memory it may accept now.
	resync = 10 * time.Minute
	// A refused transaction is repeated after a pause, which doubles from one failure to the next.
	firstPause, lastPause = 100 * time.Millisecond, 30 * time.Second
)

// Enforcer brings the policies of a cluster into the kernel. Informers change the compiler, and one goroutine writes.
// All exported methods are safe for concurrent use.
type Enforcer struct {
	options     Options
	clock       clock.WithTicker
	client      kubernetes.Interface
	connections *http.Client
	kernel      kernel // nil before Run
	metrics     *metrics
	changed     chan struct{} // has room for one
	listing     sync.Mutex    // held while a Protect lists policies, so that others find its list

	mu       sync.Mutex // of what follows
	compiler            // its methods are called under the lock
	machine  map[string][]netip.Addr
	gate
	flows
}

func newEnforcer(k kernel, o Options) *Enforcer {
	return &Enforcer{
		options: o, clock: o.Clock, kernel: k, metrics: newMetrics(), changed: make(chan struct{}, 1),
		compiler: *newCompiler(o.Nodes), machine: map[string][]netip.Addr{}, gate: newGate(o.Clock.Now()),
	}
}

// change makes a change to the compiler, and wakes the writer if anything follows from it.
func (e *Enforcer) change(do func() bool) {
	e.mu.Lock()
	some := do()
	if some {
		e.generation++
	}
	e.advance()
	e.mu.Unlock()
	if some {
		select {
		case e.changed <- struct{}{}:
		default:
		}
	}
}

// run writes changes until ctx ends.
func (e *Enforcer) run(ctx context.Context) {
	whole, pause := true, backoff.Doubling(firstPause, lastPause)
	again := virtualtime.Periodic(e.clock).NewTicker(resync)
	defer again.Stop()
	for {
		wait := time.Duration(-1)
		err := e.sync(whole)
		e.fail(err)
		if err == nil {
			whole, pause = false, backoff.Doubling(firstPause, lastPause)
		} else {
			whole, wait = true, pause.Step()
			e.options.Log.Error("Network policies: the kernel did not take the rules; those before are enforced",
				slog.Any("error", err), slog.Duration("retry", wait))
		}
		if wait < 0 {
			select {
			case <-e.changed:
				wait = virtualtime.Pause(e.clock, collect)
			case <-e.due():
			case <-again.C():
				e.change(e.forgive)
				whole = true
			case <-ctx.Done():
			}
		}
		if !virtualtime.Wait(ctx, e.clock, wait) {
			return
		}
	}
}

// sync writes what has changed, or all rules, and ends connections that they no longer allow.
func (e *Enforcer) sync(whole bool) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	begin := e.clock.Now()
	node := e.options.NodeAddresses()
	for _, addresses := range e.machine {
		node = append(node[:len(node):len(node)], addresses...)
	}
	e.setMachine(node, e.options.Served())
	e.settle()
	err := e.write(whole)
	e.logFailures()
	e.metrics.synced(whole, err, e.clock.Since(begin))
	e.metrics.count(&e.compiler)
	if err == nil {
		e.recheck()
	}
	if err == nil && !e.unchecked {
		e.written = e.generation
		e.advance()
	}
	return err
}

func (e *Enforcer) write(whole bool) error {
	changes := e.take()
	e.unchecked = e.unchecked || whole || changes.restrict()
	if !whole {
		if changes.Empty() {
			return nil
		}
		err := e.kernel.Apply(changes)
		if err == nil {
			return nil
		}
		e.options.Log.Warn("Network policies: the kernel refused a change; all rules are written anew",
			slog.Any("error", err))
		e.metrics.failures.Inc()
	}
	return e.replace()
}

// replace writes all rules. A policy whose rules the kernel refuses must not keep the others from being enforced: it is
// found, and from then on isolates the pods that it selects and allows nothing.
func (e *Enforcer) replace() error {
	defer e.take() // the kernel has them with all others, or is to be given them again
	err := e.kernel.Replace(&e.Ruleset)
	if err == nil {
		return nil
	}
	var suspects []*policy
	for _, p := range e.policies {
		if (p.bodies[Ingress].users > 0 || p.bodies[Egress].users > 0) && !p.refused {
			suspects = append(suspects, p)
		}
	}
	e.refuse(suspects, true)
	if e.kernel.Replace(&e.Ruleset) != nil { // then it is not for what policies allow
		e.refuse(suspects, false)
		return err
	}
	e.metrics.failures.Inc()
	e.admit(suspects)
	return e.kernel.Replace(&e.Ruleset)
}

// admit lets policies allow again what they allow, but for those whose rules the kernel refuses: it halves them until
// each of those is alone.
func (e *Enforcer) admit(some []*policy) {
	if len(some) == 0 {
		return
	}
	e.refuse(some, false)
	if e.kernel.Replace(&e.Ruleset) == nil {
		return
	}
	e.refuse(some, true)
	if half := len(some) / 2; half > 0 {
		e.admit(some[:half])
		e.admit(some[half:])
	}
}

// refuse sets whether policies allow nothing because the kernel has refused their rules.
func (e *Enforcer) refuse(some []*policy, refused bool) {
	for _, p := range some {
		p.refused = refused
		for _, b := range p.bodies {
			e.stale[b] = struct{}{}
		}
	}
	e.settle()
}

// forgive has the kernel asked once more about the policies that it has refused.
func (e *Enforcer) forgive() bool {
	var refused []*policy
	for b := range e.failing {
		if b.of.refused {
			refused = append(refused, b.of)
		}
	}
	e.refuse(refused, false)
	return false // all rules are written in any case
}

// logFailures logs the policies that have become ones that allow nothing.
func (e *Enforcer) logFailures() {
	logged := map[failure]bool{}
	for _, f := range e.failed {
		if b := e.bodyOf(f); b != nil && b.err == f.err && !logged[f] {
			logged[f] = true
			e.options.Log.Error("Network policy is not enforced as written: it isolates its pods, and allows nothing",
				slog.String("policy", f.policy.String()), slog.String("direction", f.direction.String()),
				slog.Any("error", f.err))
		}
	}
	e.failed = nil
}

func (e *Enforcer) bodyOf(f failure) *body {
	if p := e.policies[f.policy]; p != nil {
		return p.bodies[f.direction]
	}
	return nil
}
