package policy

import (
	"log/slog"
	"net/netip"
	"time"
)

// flows is the enforcer's state about connections that began under earlier rules.
type flows struct {
	unchecked bool      // the current rules may deny some connections
	notBefore time.Time // the earliest time of the next check; the more connections, the longer the wait
}

// checkShare is the pause after a check of all connections, as a multiple of the time that the check took.
const checkShare = 4

// maxSteps limits the rules that are evaluated for the connections of one pod. Further connections end, because no rule
// is known to allow them.
const maxSteps = 1 << 20

// restrict reports whether changes may deny a flow that was allowed. Only changes that just add members to peers
// cannot.
func (c *Changes) restrict() bool {
	if len(c.Chains)+len(c.OldChains)+len(c.OldSets) > 0 {
		return true
	}
	for _, e := range c.Elements {
		if len(e.Gone) > 0 || e.Set.Kind == Verdicts {
			return true
		}
	}
	return false
}

// recheck ends connections that the rules no longer allow, if there may be any and the last check was long enough ago.
func (e *Enforcer) recheck() {
	begin := e.clock.Now()
	if !e.unchecked || begin.Before(e.notBefore) {
		return
	}
	e.unchecked = false
	if len(e.Sets["ingress4"].Elements)+len(e.Sets["ingress6"].Elements)+len(e.Sets["egress4"].Elements)+
		len(e.Sets["egress6"].Elements) == 0 {
		return // no pod is isolated
	}
	ended, err := e.kernel.End(e.denier())
	if err != nil {
		e.options.Log.Error("failed to end connections that network policies deny", slog.Any("err", err))
	}
	e.metrics.ended.Add(float64(ended))
	e.notBefore = e.clock.Now().Add(checkShare * e.clock.Since(begin))
}

// denier returns a function that reports whether the rules deny a connection, judged by its first packet.
func (e *Enforcer) denier() func(Flow) bool {
	j, steps := newJudge(&e.Ruleset), map[netip.Addr]int{}
	isolates := func(d Direction, a netip.Addr) bool {
		_, is := e.Sets[d.String()+family(a)].Elements[Element{First: a}]
		return is
	}
	served := func(a netip.Addr) bool {
		_, is := e.Sets["served"+family(a)].Elements[Element{First: a}]
		return is
	}
	return func(f Flow) bool {
		in, out := isolates(Ingress, f.Destination), isolates(Egress, f.Source)
		if f.ToServer = served(f.Destination); !in && !out || served(f.Source) {
			return false // packets that the namespace itself sends pass no chain
		}
		pod := f.Source
		if !out {
			pod = f.Destination
		}
		if steps[pod] > maxSteps {
			return true
		}
		before := j.steps
		allowed := j.allows(f)
		steps[pod] += j.steps - before
		return !allowed
	}
}

// due returns a channel that fires when connections must be checked again, or nil if that is not needed.
func (e *Enforcer) due() <-chan time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.unchecked {
		return nil
	}
	return e.clock.After(max(0, e.notBefore.Sub(e.clock.Now())))
}
