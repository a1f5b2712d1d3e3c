package policy

import (
	"log/slog"
	"net/netip"
	"time"
)

// flows are what an enforcer knows of connections that began under earlier rules.
type flows struct {
	unchecked bool      // some may be denied by the rules as they are
	notBefore time.Time // the time of the next look, which takes longer the more connections there are
}

// checkShare is how many times as long as a look at all connections took there is none after it.
const checkShare = 4

// maxSteps bounds the rules that are looked at for the connections of one pod. Connections beyond it end, since nothing
// has shown that they are allowed.
const maxSteps = 1 << 20

// restrict reports whether changes may deny what was allowed: all do but those that only add members to peers.
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

// recheck ends connections that the rules no longer allow, if there may be any and the last look is long enough ago.
func (e *Enforcer) recheck() {
	begin := e.clock.Now()
	if !e.unchecked || begin.Before(e.notBefore) {
		return
	}
	e.unchecked = false
	if len(e.Sets["ingress4"].Elements)+len(e.Sets["ingress6"].Elements)+len(e.Sets["egress4"].Elements)+
		len(e.Sets["egress6"].Elements) == 0 {
		return // nothing is isolated
	}
	ended, err := e.kernel.End(e.denier())
	if err != nil {
		e.options.Log.Error("Network policies: connections that are denied now may go on", slog.Any("error", err))
	}
	e.metrics.ended.Add(float64(ended))
	e.notBefore = e.clock.Now().Add(checkShare * e.clock.Since(begin))
}

// denier returns what reports whether the rules deny a connection, by its first packet.
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
			return false // what the namespace itself sends passes no chain
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

// due is when connections are looked at again; nil where that is not needed.
func (e *Enforcer) due() <-chan time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.unchecked {
		return nil
	}
	return e.clock.After(max(0, e.notBefore.Sub(e.clock.Now())))
}
