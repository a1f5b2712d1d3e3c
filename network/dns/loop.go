package dns

import (
	"context"
	"net/netip"
	"strings"
	"sync"

	"github.com/miekg/dns"
	"k8s.io/apimachinery/pkg/util/rand"
)

// probes finds upstreams that forward questions back to this server. Each upstream is asked for a random name. If the
// question for that name arrives here, the upstream loops. The zero value is ready; it is safe for concurrent use.
type probes struct {
	mu      sync.Mutex
	pending map[string]netip.AddrPort // by name
	looping map[netip.AddrPort]bool
}

// probeZone is the suffix of probe names. ".invalid" has no name servers (RFC 6761, 6.4), so resolvers answer at once.
const probeZone = ".loop.coxswain.invalid."

// add returns a name to ask an upstream for.
func (p *probes) add(upstream netip.AddrPort) string {
	name := rand.String(32) + probeZone
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pending == nil {
		p.pending, p.looping = map[string]netip.AddrPort{}, map[netip.AddrPort]bool{}
	}
	delete(p.looping, upstream)
	p.pending[name] = upstream
	return name
}

// see records that a question for a probe's name arrived. It returns the upstream of the probe and whether the name is
// one.
func (p *probes) see(name string) (upstream netip.AddrPort, ok bool) {
	if !strings.HasSuffix(name, probeZone) {
		return upstream, false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if upstream, ok = p.pending[name]; ok {
		p.looping[upstream] = true
	}
	return upstream, ok
}

func (p *probes) end(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.pending, name)
}

func (p *probes) loops(upstream netip.AddrPort) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.looping[upstream]
}

// isProbe reports whether a name belongs to a probe. The probe's upstream is not asked from then on.
func (f *forward) isProbe(name string) bool {
	upstream, ok := f.probes.see(name)
	if ok {
		f.log.Error("this server's questions come back upstream it: the upstream ok not asked", "upstream", upstream)
	}
	return ok
}

// probe asks an upstream for a random name. The answer does not matter, only whether the question comes back.
func (f *forward) probe(ctx context.Context, upstream netip.AddrPort) {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	name := f.probes.add(upstream)
	defer f.probes.end(name)
	_, _ = exchangeOver(ctx, "udp", upstream, new(dns.Msg).SetQuestion(name, dns.TypeHINFO))
}
