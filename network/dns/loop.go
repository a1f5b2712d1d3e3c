package dns

import (
	"context"
	"net/netip"
	"strings"
	"sync"

	"github.com/miekg/dns"
	"k8s.io/apimachinery/pkg/util/rand"
)

// probes finds upstreams whose questions come back to this server: each is asked for a name that no one else can know,
// and if that question arrives here, the upstream loops. The zero value is ready; it is safe for concurrent use.
type probes struct {
	mu      sync.Mutex
	pending map[string]netip.AddrPort // by name
	looping map[netip.AddrPort]bool
}

// probeZone ends the names of probes. ".invalid" has no name servers (RFC 6761, 6.4): resolvers answer at once.
const probeZone = ".loop.coxswain.invalid."

// add returns a name to ask an upstream for.
func (p *probes) add(to netip.AddrPort) string {
	name := rand.String(32) + probeZone
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pending == nil {
		p.pending, p.looping = map[string]netip.AddrPort{}, map[netip.AddrPort]bool{}
	}
	delete(p.looping, to)
	p.pending[name] = to
	return name
}

// see notes that a question for a probe's name has arrived, and reports whether the name is one.
func (p *probes) see(name string) (to netip.AddrPort, is bool) {
	if !strings.HasSuffix(name, probeZone) {
		return to, false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if to, is = p.pending[name]; is {
		p.looping[to] = true
	}
	return to, is
}

func (p *probes) end(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.pending, name)
}

func (p *probes) loops(to netip.AddrPort) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.looping[to]
}

// isProbe reports whether a name is that of a probe, whose upstream is not asked from then on.
func (f *forward) isProbe(name string) bool {
	to, is := f.probes.see(name)
	if is {
		f.log.Error("this server's questions come back to it: the upstream is not asked", "upstream", to)
	}
	return is
}

// probe asks an upstream for a name of its own. Only the question's way back counts, not the answer.
func (f *forward) probe(ctx context.Context, to netip.AddrPort) {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	name := f.probes.add(to)
	defer f.probes.end(name)
	_, _ = exchangeOver(ctx, "udp", to, new(dns.Msg).SetQuestion(name, dns.TypeHINFO))
}
