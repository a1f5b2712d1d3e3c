package dns

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
	"k8s.io/utils/clock"
)

// Time limits of a question to other servers: one attempt, and all attempts. Resolvers of pods give up after five
// seconds.
const (
	attemptTimeout  = 2 * time.Second
	questionTimeout = 4500 * time.Millisecond
	// restAfterFailure is how long an upstream that did not answer comes after all others.
	restAfterFailure = 5 * time.Second
)

// errNoUpstream is returned if there is no usable upstream.
var errNoUpstream = errors.New("no upstream to forward to")

// forward asks other servers. It asks the same question only once at a time, and the servers in their order, except
// that recently failed servers come last. It is safe for concurrent use.
type forward struct {
	cache     *cache
	upstreams *upstreams
	clock     clock.PassiveClock
	log       *slog.Logger
	metrics   *metrics
	probes    probes

	mu      sync.Mutex
	flights map[cacheKey]*flight
	down    map[netip.AddrPort]time.Time // until when each failed upstream rests
	probing sync.WaitGroup
}

// flight is a question in progress. Others that ask the same wait for it.
type flight struct {
	done chan struct{}
	msg  *dns.Msg
	err  error
}

// ask returns the answer to a question, from the upstreams or from a question in progress. The caller owns it.
func (f *forward) ask(ctx context.Context, key cacheKey) (*dns.Msg, error) {
	f.mu.Lock()
	if other := f.flights[key]; other != nil {
		f.mu.Unlock()
		select {
		case <-other.done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if other.err != nil {
			return nil, other.err
		}
		return other.msg.Copy(), nil
	}
	own := &flight{done: make(chan struct{})}
	f.flights[key] = own
	f.mu.Unlock()

	own.msg, own.err = f.exchange(ctx, key)
	if own.err == nil {
		f.cache.put(key, own.msg)
	}
	f.mu.Lock()
	delete(f.flights, key)
	f.mu.Unlock()
	close(own.done)
	if own.err != nil {
		return nil, own.err
	}
	return own.msg.Copy(), nil
}

// exchange asks the upstreams one after the other until one answers.
func (f *forward) exchange(ctx context.Context, key cacheKey) (*dns.Msg, error) {
	list := f.current(ctx)
	ctx, cancel := context.WithTimeout(ctx, questionTimeout)
	defer cancel()
	query := new(dns.Msg).SetQuestion(key.name, key.qtype)
	query.CheckingDisabled, query.AuthenticatedData = key.checking, true
	query.SetEdns0(largestUDP, key.dnssec)

	var last *dns.Msg
	err := errNoUpstream
	for _, upstream := range f.order(list) {
		if ctx.Err() != nil {
			break
		}
		query.Id = dns.Id()
		m, failed := f.attempt(ctx, upstream, query)
		if failed != nil {
			err = fmt.Errorf("ask %s: %w", upstream, failed)
			f.rest(upstream, failed)
			continue
		}
		if m.Rcode != dns.RcodeServerFailure && m.Rcode != dns.RcodeRefused && m.Rcode != dns.RcodeNotImplemented {
			return m, nil
		}
		last = m
	}
	if last != nil {
		return last, nil
	}
	if ctx.Err() == nil {
		return new(dns.Msg).SetRcode(query, dns.RcodeServerFailure), nil // cached for a moment (RFC 9520)
	}
	return nil, err
}

// current returns the currently configured upstreams. It starts a check for loops of new ones, which lasts until ctx
// ends.
func (f *forward) current(ctx context.Context) []netip.AddrPort {
	list, fresh := f.upstreams.current()
	for _, upstream := range fresh {
		f.probing.Go(func() { f.probe(ctx, upstream) })
	}
	return list
}

// order returns the upstreams that do not loop. The ones that rest come last.
func (f *forward) order(all []netip.AddrPort) []netip.AddrPort {
	now := f.clock.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	var up, down []netip.AddrPort
	for _, upstream := range all {
		switch until, failed := f.down[upstream]; {
		case f.probes.loops(upstream):
		case failed && now.Before(until):
			down = append(down, upstream)
		default:
			up = append(up, upstream)
		}
	}
	return append(up, down...)
}

func (f *forward) rest(upstream netip.AddrPort, err error) {
	f.log.Debug("failed to ask an upstream", "address", upstream, "err", err)
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.down) > maxUpstreams { // left over from earlier configurations
		clear(f.down)
	}
	f.down[upstream] = f.clock.Now().Add(restAfterFailure)
}

// attempt asks one upstream, and again over TCP if the answer does not fit into a packet. Each question has a random
// number and a random port: a forged answer has to match both.
func (f *forward) attempt(ctx context.Context, upstream netip.AddrPort, query *dns.Msg) (*dns.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	f.metrics.forwarded.WithLabelValues(upstream.String()).Inc()
	began := f.clock.Now()
	m, err := exchangeOver(ctx, "udp", upstream, query)
	if err == nil && m.Truncated {
		m, err = exchangeOver(ctx, "tcp", upstream, query)
	}
	if err != nil {
		return nil, err
	}
	duration := f.clock.Since(began)
	f.metrics.answered.WithLabelValues("forward", upstream.String(), rcodeLabel(m.Rcode)).Observe(duration.Seconds())
	return m, nil
}

func exchangeOver(ctx context.Context, network string, upstream netip.AddrPort, query *dns.Msg) (*dns.Msg, error) {
	client := &dns.Client{Net: network, UDPSize: largestUDP, Timeout: attemptTimeout}
	m, _, err := client.ExchangeContext(ctx, query, upstream.String())
	if err != nil {
		return nil, err
	}
	if len(m.Question) != 1 || !strings.EqualFold(m.Question[0].Name, query.Question[0].Name) ||
		m.Question[0].Qtype != query.Question[0].Qtype || !m.Response {
		return nil, errors.New("the answer is to another question")
	}
	m.Extra = withoutConnection(m.Extra)
	return copyOf(m, 0, uint32(longestTTL/time.Second)), nil
}

// withoutConnection removes the records that concern the connection to the upstream, and its signatures.
func withoutConnection(extra []dns.RR) []dns.RR {
	rest := extra[:0]
	for _, rr := range extra {
		switch rr.Header().Rrtype {
		case dns.TypeOPT, dns.TypeTSIG, dns.TypeSIG:
		default:
			rest = append(rest, rr)
		}
	}
	return rest
}
