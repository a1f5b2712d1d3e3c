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
	// collect is how long changes are collected before they are written to the kernel together.
	collect = 5 * time.Millisecond
	// resync is the interval between full rewrites: another program may have deleted the table, and the kernel may
	// accept rules now that it rejected for lack of memory.
	resync = 10 * time.Minute
	// A rejected transaction is repeated after a pause, which doubles with each failure.
	firstPause, lastPause = 100 * time.Millisecond, 30 * time.Second
)

// Enforcer writes the policies of a cluster to the kernel. Informers change the compiler, and one goroutine writes. All
// exported methods are safe for concurrent use.
type Enforcer struct {
	options     Options
	clock       clock.WithTicker
	client      kubernetes.Interface
	connections *http.Client
	kernel      kernel // nil before Run
	metrics     *metrics
	changed     chan struct{} // wakes the writer; buffers one signal
	listing     sync.Mutex    // held while a Protect lists policies, so that others reuse its list

	mu       sync.Mutex // guards the fields below
	compiler            // its methods require the lock
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

// change applies a change to the compiler, and wakes the writer if it had an effect.
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
			e.options.Log.Error("failed to write network policies; the earlier rules stay in force",
				slog.Any("err", err), slog.Duration("retry", wait))
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

// sync writes changes, or all rules, and ends connections that the rules no longer allow.
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
		e.options.Log.Warn("failed to change the rules of network policies; rewriting all of them",
			slog.Any("err", err))
		e.metrics.failures.Inc()
	}
	return e.replace()
}

// replace writes all rules. A policy with rules that the kernel rejects must not prevent the enforcement of others:
// replace isolates it, so that it still isolates its pods but allows no traffic.
func (e *Enforcer) replace() error {
	defer e.take() // all changes are written, or will be with the next replace
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
	if e.kernel.Replace(&e.Ruleset) != nil { // the cause is not in the rules of policies
		e.refuse(suspects, false)
		return err
	}
	e.metrics.failures.Inc()
	e.admit(suspects)
	return e.kernel.Replace(&e.Ruleset)
}

// admit re-enables policies in batches. It bisects a batch that the kernel rejects, until each bad policy is isolated.
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

// refuse sets whether policies allow no traffic because the kernel rejected their rules.
func (e *Enforcer) refuse(some []*policy, refused bool) {
	for _, p := range some {
		p.refused = refused
		for _, b := range p.bodies {
			e.stale[b] = struct{}{}
		}
	}
	e.settle()
}

// forgive re-enables the policies that the kernel rejected, so that it is asked again.
func (e *Enforcer) forgive() bool {
	var refused []*policy
	for b := range e.failing {
		if b.policy.refused {
			refused = append(refused, b.policy)
		}
	}
	e.refuse(refused, false)
	return false // all rules are written in any case
}

// logFailures logs the policies that newly allow no traffic.
func (e *Enforcer) logFailures() {
	logged := map[failure]bool{}
	for _, f := range e.failed {
		if b := e.bodyOf(f); b != nil && b.err == f.err && !logged[f] {
			logged[f] = true
			e.options.Log.Error("cannot enforce network policy: it isolates its pods and allows no traffic",
				slog.String("policy", f.policy.String()), slog.String("direction", f.direction.String()),
				slog.Any("err", f.err))
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
