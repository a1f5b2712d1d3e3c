package dns

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"
	"k8s.io/utils/clock"
)

// Sizes of messages, in bytes. largestUDP reaches every client without fragments (DNS flag day 2020). It also limits
// amplification: how much a question with a forged source address can send to a victim.
const (
	smallestUDP = 512
	largestUDP  = 1232
	largestTCP  = dns.MaxMsgSize - 1
	headerSize  = 12
)

// maxAliases limits how many ExternalNames of the cluster an answer follows.
const maxAliases = 8

// handler turns request packets into reply packets. It is safe for concurrent use.
type handler struct {
	zone    *zone
	forward *forward
	filled  chan struct{} // closed when the index has all objects of the API
	clock   clock.Clock
	metrics *metrics
}

// request is a well-formed question.
type request struct {
	msg    dns.Msg
	name   string // in lower case
	qtype  uint16
	client netip.Addr
	tcp    bool
	size   int // limit of the answer
	edns   bool
	dnssec bool // the DO bit
	start  time.Time
}

// pending is a request whose answer takes time: it asks other servers, or waits for the index.
type pending struct {
	request *request
	reply   *dns.Msg
	name    string // to ask other servers for: the request's, or the end of its aliases; "" waits for the index
}

// fillTimeout is how long a question about the cluster's names waits until the index is filled. A server that starts
// beside another one gets its share of the questions at once, and resolvers of pods would take SERVFAIL for an answer.
const fillTimeout = questionTimeout

// receive answers a packet if it can without waiting. Otherwise it returns the pending request. If both results are
// nil, the packet must not be answered.
func (h *handler) receive(packet []byte, client netip.Addr, tcp bool) ([]byte, *pending) {
	// An answer to an answer could loop forever.
	if len(packet) < headerSize || packet[2]&0x80 != 0 {
		return nil, nil
	}
	q := &request{client: client, tcp: tcp, start: h.clock.Now(), size: smallestUDP}
	if tcp {
		q.size = largestTCP
	}
	if err := q.msg.Unpack(packet); err != nil {
		return h.refuseMalformed(q, packet), nil
	}
	h.metrics.request(q)
	m := new(dns.Msg).SetReply(&q.msg)
	m.RecursionAvailable, m.Compress = true, true
	if rcode := q.check(); rcode != dns.RcodeSuccess {
		m.Rcode = rcode
		return h.finish(q, m, "."), nil
	}
	return h.answer(q, m)
}

// refuseMalformed returns FORMERR, with no part of the packet except its number.
func (h *handler) refuseMalformed(q *request, packet []byte) []byte {
	reply := make([]byte, headerSize)
	copy(reply, packet[:2])
	reply[2] = packet[2]&0x79 | 0x80 // opcode and RD are repeated, QR is set
	reply[3] = dns.RcodeFormatError
	h.metrics.response(q, ".", dns.RcodeFormatError, headerSize)
	return reply
}

// check completes the request. It returns the response code for a question that is not supported.
func (q *request) check() int {
	if q.msg.Opcode != dns.OpcodeQuery {
		return dns.RcodeNotImplemented
	}
	if len(q.msg.Question) != 1 {
		return dns.RcodeFormatError
	}
	if opt := q.msg.IsEdns0(); opt != nil {
		q.edns, q.dnssec = true, opt.Do()
		if !q.tcp {
			q.size = min(max(int(opt.UDPSize()), smallestUDP), largestUDP)
		}
		if opt.Version() != 0 {
			return dns.RcodeBadVers
		}
	}
	one := &q.msg.Question[0]
	q.name, q.qtype = strings.ToLower(one.Name), one.Qtype
	switch {
	case one.Qclass != dns.ClassINET, q.qtype == dns.TypeAXFR, q.qtype == dns.TypeIXFR, q.qtype == dns.TypeOPT,
		q.qtype == dns.TypeMAILA, q.qtype == dns.TypeMAILB, q.qtype == dns.TypeTSIG, q.qtype == dns.TypeTKEY:
		return dns.RcodeRefused
	}
	return dns.RcodeSuccess
}

// answer looks the question up, and follows aliases as long as they stay in the cluster.
func (h *handler) answer(q *request, m *dns.Msg) ([]byte, *pending) {
	if !h.isFilled() && h.ours(q.name) {
		return nil, &pending{q, m, ""}
	}
	room := q.size/16 + 1 // the smallest record
	f := h.zone.find(q.name, q.msg.Question[0].Name, q.qtype, room)
	if f.zone == "" {
		return h.elsewhere(q, m, q.name)
	}
	zone := f.zone
	m.Authoritative = true
	m.Answer, m.Extra = f.answer, f.extra
	for n := 0; f.alias != "" && q.qtype != dns.TypeCNAME && q.qtype != dns.TypeANY; n++ {
		if n == maxAliases {
			m.Answer, m.Rcode = nil, dns.RcodeServerFailure
			return h.finish(q, m, zone), nil
		}
		alias := f.alias
		if f = h.zone.find(alias, alias, q.qtype, room); f.zone == "" {
			return h.elsewhere(q, m, alias)
		}
		m.Answer = append(m.Answer, f.answer...)
	}
	switch {
	case !f.exists:
		m.Rcode = dns.RcodeNameError
		m.Ns = []dns.RR{h.zone.soa(f.zone)}
	case q.qtype == dns.TypeANY:
		m.Answer, m.Extra = minimalAny(q), nil
	case len(f.answer) == 0:
		m.Ns = []dns.RR{h.zone.soa(f.zone)}
	}
	return h.finish(q, m, zone), nil
}

func (h *handler) isFilled() bool {
	select {
	case <-h.filled:
		return true
	default:
		return false
	}
}

// ours reports whether a name belongs to the index, so that it must be filled first.
func (h *handler) ours(name string) bool {
	_, is := under(name, h.zone.domain)
	_, _, reverse := reversed(name)
	return is || reverse
}

// minimalAny returns the whole answer to a question for all types (RFC 8482, 4.2).
func minimalAny(q *request) []dns.RR {
	r := &records{owner: q.msg.Question[0].Name}
	return []dns.RR{&dns.HINFO{Hdr: r.header(dns.TypeHINFO, recordTTL), Cpu: "RFC8482"}}
}

// elsewhere forwards a name to other servers, if the client desires recursion.
func (h *handler) elsewhere(q *request, m *dns.Msg, name string) ([]byte, *pending) {
	switch {
	case h.forward.isProbe(name):
		m.Rcode = dns.RcodeRefused
	case !q.msg.RecursionDesired && len(m.Answer) == 0:
		m.Rcode = dns.RcodeRefused
	case !q.msg.RecursionDesired: // the alias is an answer
	case q.qtype == dns.TypeANY:
		m.Answer = minimalAny(q)
	default:
		key := cacheKey{name, q.qtype, q.dnssec, q.msg.CheckingDisabled}
		if cached := h.forward.cache.get(key); cached != nil {
			return h.adopt(q, m, cached), nil
		}
		return nil, &pending{q, m, name}
	}
	return h.finish(q, m, "."), nil
}

// resolve waits for what the request needs, then answers it, within its time limit.
func (h *handler) resolve(ctx context.Context, p *pending) []byte {
	if p.name == "" {
		return h.await(ctx, p)
	}
	q := p.request
	key := cacheKey{p.name, q.qtype, q.dnssec, q.msg.CheckingDisabled}
	found, err := h.forward.ask(ctx, key)
	if err != nil {
		return h.fail(p, dns.RcodeServerFailure)
	}
	return h.adopt(q, p.reply, found)
}

// await answers once the index is filled, or with SERVFAIL after fillTimeout: clients would cache NXDOMAIN.
func (h *handler) await(ctx context.Context, p *pending) []byte {
	select {
	case <-h.filled:
	case <-ctx.Done():
		return h.fail(p, dns.RcodeServerFailure)
	case <-h.clock.After(fillTimeout):
		return h.fail(p, dns.RcodeServerFailure)
	}
	reply, rest := h.answer(p.request, p.reply)
	if rest != nil {
		return h.resolve(ctx, rest)
	}
	return reply
}

// refuse answers a request that exceeds the limit of concurrent questions.
func (h *handler) refuse(p *pending) []byte {
	h.metrics.rejected.Inc()
	return h.fail(p, dns.RcodeRefused)
}

func (h *handler) fail(p *pending, rcode int) []byte {
	p.reply.Answer, p.reply.Rcode, p.reply.Authoritative = nil, rcode, false
	return h.finish(p.request, p.reply, ".")
}

// adopt copies another server's answer into the reply. It owns the records of found.
func (h *handler) adopt(q *request, m, found *dns.Msg) []byte {
	if len(m.Answer) == 0 {
		m.Authoritative = false
		m.AuthenticatedData = found.AuthenticatedData && (q.dnssec || q.msg.AuthenticatedData)
		for _, rr := range found.Answer { // repeat the letter case of the question
			if h := rr.Header(); strings.EqualFold(h.Name, q.name) {
				h.Name = q.msg.Question[0].Name
			}
		}
	}
	m.Rcode = found.Rcode
	m.Answer = append(m.Answer, found.Answer...)
	m.Ns, m.Extra = found.Ns, found.Extra
	return h.finish(q, m, ".")
}

// finish packs the reply: with EDNS if the question has it, truncated to the size that the client accepts.
func (h *handler) finish(q *request, m *dns.Msg, zone string) []byte {
	rcode := m.Rcode
	if q.edns {
		opt := &dns.OPT{Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeOPT}}
		opt.SetUDPSize(largestUDP)
		if q.dnssec {
			opt.SetDo()
		}
		m.Extra = append(slices.Clip(m.Extra), opt)
	}
	m.Truncate(q.size)
	packet, err := m.Pack()
	if err != nil {
		// Only records of other servers can fail to pack.
		rcode = dns.RcodeServerFailure
		failed := new(dns.Msg).SetRcode(&q.msg, rcode)
		if packet, err = failed.Pack(); err != nil {
			return nil
		}
	}
	h.metrics.response(q, zone, rcode, len(packet))
	return packet
}
