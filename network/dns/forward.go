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

// Times that a question to other servers takes at most: one attempt, and all of them. Resolvers of pods give up after
// five seconds.
const (
	attemptTimeout  = 2 * time.Second
	questionTimeout = 4500 * time.Millisecond
	// restAfterFailure is how long an upstream that has not answered is asked after all others.
	restAfterFailure = 5 * time.Second
)

// errNoUpstream is returned where there is nobody to ask.
var errNoUpstream = errors.New("no upstream to forward to")

// forward asks other servers: each question once at a time, the servers in their order, those that have failed lately
// last. It is safe for concurrent use.
type forward struct {
	cache     *cache
	upstreams *upstreams
	clock     clock.PassiveClock
	log       *slog.Logger
	metrics   *metrics
	probes    probes

	mu      sync.Mutex
	flights map[cacheKey]*flight
	down    map[netip.AddrPort]time.Time // until when
	probing sync.WaitGroup
}

// flight is a question under way, which others that ask the same wait for.
type flight struct {
	done chan struct{}
	msg  *dns.Msg
	err  error
}

// ask returns the answer to a question, from the cache or from the upstreams. The caller owns it.
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

// exchange asks one upstream after the other until one has an answer.
func (f *forward) exchange(ctx context.Context, key cacheKey) (*dns.Msg, error) {
	list := f.current(ctx)
	ctx, cancel := context.WithTimeout(ctx, questionTimeout)
	defer cancel()
	query := new(dns.Msg).SetQuestion(key.name, key.qtype)
	query.CheckingDisabled, query.AuthenticatedData = key.checking, true
	query.SetEdns0(largestUDP, key.dnssec)

	var last *dns.Msg
	err := errNoUpstream
	for _, to := range f.order(list) {
		if ctx.Err() != nil {
			break
		}
		query.Id = dns.Id()
		m, failed := f.attempt(ctx, to, query)
		if failed != nil {
			err = fmt.Errorf("ask %s: %w", to, failed)
			f.rest(to, failed)
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
		return new(dns.Msg).SetRcode(query, dns.RcodeServerFailure), nil // remembered for a moment (RFC 9520)
	}
	return nil, err
}

// current returns the upstreams as they are configured now, and has new ones checked for loops until ctx ends.
func (f *forward) current(ctx context.Context) []netip.AddrPort {
	list, fresh := f.upstreams.current()
	for _, to := range fresh {
		f.probing.Go(func() { f.probe(ctx, to) })
	}
	return list
}

// order has the upstreams that are not looping, those that rest last.
func (f *forward) order(all []netip.AddrPort) []netip.AddrPort {
	now := f.clock.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	var up, down []netip.AddrPort
	for _, to := range all {
		switch until, failed := f.down[to]; {
		case f.probes.loops(to):
		case failed && now.Before(until):
			down = append(down, to)
		default:
			up = append(up, to)
		}
	}
	return append(up, down...)
}

func (f *forward) rest(to netip.AddrPort, err error) {
	f.log.Debug("upstream", "address", to, "error", err)
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.down) > maxUpstreams { // of configurations that have changed
		clear(f.down)
	}
	f.down[to] = f.clock.Now().Add(restAfterFailure)
}

// attempt asks one upstream, over TCP where the answer does not fit into a packet. Each question has a number and a
// port of its own, both random: an answer that was not asked for has to meet both.
func (f *forward) attempt(ctx context.Context, to netip.AddrPort, query *dns.Msg) (*dns.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	f.metrics.forwarded.WithLabelValues(to.String()).Inc()
	began := f.clock.Now()
	m, err := exchangeOver(ctx, "udp", to, query)
	if err == nil && m.Truncated {
		m, err = exchangeOver(ctx, "tcp", to, query)
	}
	if err != nil {
		return nil, err
	}
	took := f.clock.Since(began)
	f.metrics.answered.WithLabelValues("forward", to.String(), rcodeLabel(m.Rcode)).Observe(took.Seconds())
	return m, nil
}

func exchangeOver(ctx context.Context, network string, to netip.AddrPort, query *dns.Msg) (*dns.Msg, error) {
	client := &dns.Client{Net: network, UDPSize: largestUDP, Timeout: attemptTimeout}
	m, _, err := client.ExchangeContext(ctx, query, to.String())
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

// withoutConnection leaves out the records that are about the connection to the upstream, and signatures of it.
func withoutConnection(extra []dns.RR) []dns.RR {
	kept := extra[:0]
	for _, rr := range extra {
		switch rr.Header().Rrtype {
		case dns.TypeOPT, dns.TypeTSIG, dns.TypeSIG:
		default:
			kept = append(kept, rr)
		}
	}
	return kept
}
