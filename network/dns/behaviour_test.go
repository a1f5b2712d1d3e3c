package dns

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"
	testingclock "k8s.io/utils/clock/testing"
)

// offline returns a handler whose index is filled by the test.
func offline(t testing.TB, services int) *handler {
	t.Helper()
	sockets, err := Listen([]string{"127.0.0.1:0"}, nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = sockets.Close() })
	o := Options{Sockets: sockets, Upstreams: []string{"127.0.0.1:1"}}
	require.NoError(t, o.complete())
	h, _, err := newHandler(o)
	require.NoError(t, err)
	h.zone.index.setNamespace("default", true)
	for i := range services {
		name := fmt.Sprintf("svc-%d", i)
		s := makeService("default", name, netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}).String(), servicePort("http", "TCP", 80))
		h.zone.index.put(serviceKey("default", name), newService(s, nil))
	}
	return h
}

func pack(t testing.TB, name string, qtype uint16) []byte {
	t.Helper()
	packet, err := new(dns.Msg).SetQuestion(name, qtype).Pack()
	require.NoError(t, err)
	return packet
}

func TestHandler_WaitsUntilTheIndexIsFilled(t *testing.T) {
	t.Parallel()
	h := offline(t, 1)
	passing := testingclock.NewFakeClock(time.Now())
	h.clock = passing
	question := pack(t, "svc-0.default.svc.cluster.local.", dns.TypeA)
	rcodes := make(chan int, 2)
	ask := func() {
		reply, rest := h.receive(question, netip.Addr{}, false)
		if rest == nil {
			t.Error("an answer before the index is filled")
		} else {
			reply = h.resolve(t.Context(), rest)
		}
		var m dns.Msg
		if err := m.Unpack(reply); err != nil {
			t.Error(err)
		}
		rcodes <- m.Rcode
	}
	go ask()
	eventually(t, passing.HasWaiters)
	passing.Step(fillTimeout)
	require.Equal(t, dns.RcodeServerFailure, <-rcodes, "not NXDOMAIN, which clients would cache")
	go ask()
	eventually(t, passing.HasWaiters)
	close(h.filled)
	require.Equal(t, dns.RcodeSuccess, <-rcodes)
	_, rest := h.receive(question, netip.Addr{}, false)
	require.Nil(t, rest, "answers are immediate once the index is filled")
}

// late is a context that closes its Done channel before it calls the functions registered by context.AfterFunc, as any
// context may. If the function is stopped in between, it never runs.
type late struct{ context.Context }

func (late) AfterFunc(func()) (stop func() bool) { return func() bool { return true } }

// Value hides the context inside, which context.AfterFunc would use otherwise instead of the method above.
func (late) Value(any) any { return nil }

func TestServer_ClosesItsSocketsAtTheEnd(t *testing.T) {
	t.Parallel()
	h := offline(t, 1)
	close(h.filled)
	sockets, err := Listen([]string{"127.0.0.1:0"}, nil)
	require.NoError(t, err)
	s := &server{handler: h, log: slog.Default(), clock: clock.RealClock{},
		forwards: newShare(1, 1), connections: newShare(1, 1)}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { s.run(late{ctx}, sockets); close(ended) }()
	query := new(dns.Msg).SetQuestion("svc-0.default.svc.cluster.local.", dns.TypeA)
	_, err = dns.Exchange(query, sockets.Addresses()[0].String())
	require.NoError(t, err, "the server answers")
	cancel()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		_ = sockets.Close()
		t.Fatal("the server did not stop")
	}
}

func TestHandler_RejectsUnsupportedQuestions(t *testing.T) {
	t.Parallel()
	h := offline(t, 1)
	close(h.filled)
	question := func(change func(*dns.Msg)) []byte {
		m := new(dns.Msg).SetQuestion("svc-0.default.svc.cluster.local.", dns.TypeA)
		change(m)
		packet, err := m.Pack()
		require.NoError(t, err)
		return packet
	}
	for name, test := range map[string]struct {
		packet []byte
		rcode  int
	}{
		"another class":     {question(func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassCHAOS }), dns.RcodeRefused},
		"a zone transfer":   {question(func(m *dns.Msg) { m.Question[0].Qtype = dns.TypeAXFR }), dns.RcodeRefused},
		"an update":         {question(func(m *dns.Msg) { m.Opcode = dns.OpcodeUpdate }), dns.RcodeNotImplemented},
		"no question":       {question(func(m *dns.Msg) { m.Question = nil }), dns.RcodeFormatError},
		"not recursive":     {question(func(m *dns.Msg) { m.RecursionDesired, m.Question[0].Name = false, "example.com." }), dns.RcodeRefused},
		"cut in the middle": {pack(t, "svc-0.default.svc.cluster.local.", dns.TypeA)[:20], dns.RcodeFormatError},
		"EDNS version 1":    {question(func(m *dns.Msg) { m.SetEdns0(1232, false); m.IsEdns0().SetVersion(1) }), dns.RcodeBadVers},
	} {
		reply, rest := h.receive(test.packet, netip.Addr{}, false)
		require.Nil(t, rest, name)
		var m dns.Msg
		require.NoError(t, m.Unpack(reply), name)
		require.Equal(t, dns.RcodeToString[test.rcode], dns.RcodeToString[m.Rcode], name)
	}
	for name, packet := range map[string][]byte{"short": {1, 2, 3}, "an answer": question(func(m *dns.Msg) { m.Response = true })} {
		reply, rest := h.receive(packet, netip.Addr{}, false)
		require.Nil(t, reply, name)
		require.Nil(t, rest, name)
	}
}

func TestDNS_TruncatesOverUDPAndAnswersInFullOverTCP(t *testing.T) {
	t.Parallel()
	config := apiServer(t)
	client := clientOf(t, config)
	slice := makeSlice("default", "many-1", "many", nil)
	for i := range 200 {
		slice.Endpoints = append(slice.Endpoints, ready(fmt.Sprintf("10.3.1.%d", i), ""))
	}
	create(t, client, makeService("default", "many", "None"), slice)
	r := start(t, config, Options{})
	m := r.ask("udp", "many.default.svc.cluster.local.", dns.TypeA)
	require.True(t, m.Truncated)
	m.Compress = true // as it was sent
	require.LessOrEqual(t, m.Len(), smallestUDP)
	require.Len(t, r.ask("tcp", "many.default.svc.cluster.local.", dns.TypeA).Answer, 200)
}

func TestDNS_ForwardsOnceAndCaches(t *testing.T) {
	t.Parallel()
	var questions atomic.Int32
	dead, err := net.ListenPacket("udp", "127.0.0.1:0") // never reads
	require.NoError(t, err)
	defer func() { _ = dead.Close() }()
	alive := upstream(t, func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg).SetReply(q)
		if q.Question[0].Qtype == dns.TypeA {
			questions.Add(1)
			m.Answer = []dns.RR{address(q.Question[0].Name)}
		}
		_ = w.WriteMsg(m)
	})
	r := start(t, apiServer(t), Options{Upstreams: []string{dead.LocalAddr().String(), alive.address}})
	for i := range 3 {
		m := r.ask("udp", "wWw.example.com.", dns.TypeA)
		require.Equal(t, []string{"wWw.example.com. IN A 192.0.2.1"}, texts(m.Answer))
		require.False(t, m.Authoritative)
		if i > 0 {
			require.LessOrEqual(t, m.Answer[0].Header().Ttl, uint32(30))
		}
	}
	require.Equal(t, int32(1), questions.Load())
}

func TestDNS_DoesNotForwardInALoop(t *testing.T) {
	t.Parallel()
	var own atomic.Pointer[string]
	loop := upstream(t, func(w dns.ResponseWriter, q *dns.Msg) {
		if m, err := dns.Exchange(q, *own.Load()); err == nil {
			_ = w.WriteMsg(m)
		}
	})
	sockets, err := Listen([]string{"127.0.0.1:0"}, nil)
	require.NoError(t, err)
	address := sockets.Addresses()[0].String()
	own.Store(&address)
	r := start(t, apiServer(t), Options{Sockets: sockets, Upstreams: []string{loop.address, address}})
	n := 0
	eventually(t, func() bool {
		n++
		m := r.ask("udp", fmt.Sprintf("a%d.example.com.", n), dns.TypeA)
		return m.Rcode == dns.RcodeServerFailure
	})
}

func TestCache_IsBoundedAndKeepsPositiveAnswersInAFlood(t *testing.T) {
	t.Parallel()
	c := newCache(100, 1<<20, clock.RealClock{}, newMetrics(clock.RealClock{}))
	answer := new(dns.Msg).SetQuestion("kept.", dns.TypeA)
	rr, _ := dns.NewRR("kept. 30 IN A 192.0.2.1")
	answer.Answer = []dns.RR{rr}
	c.put(cacheKey{name: "kept."}, answer)
	for i := range 1000 {
		no := new(dns.Msg).SetRcode(answer, dns.RcodeNameError)
		soa, _ := dns.NewRR(". 30 IN SOA a. b. 1 1 1 1 30")
		no.Ns = []dns.RR{soa}
		c.put(cacheKey{name: fmt.Sprintf("n%d.", i)}, no)
	}
	require.NotNil(t, c.get(cacheKey{name: "kept."}))
	require.Equal(t, 50, c.negative.order.Len())
	require.NotNil(t, c.get(cacheKey{name: "n999."}))
	require.Nil(t, c.get(cacheKey{name: "n0."}))
}

func TestShare_LimitsEachClient(t *testing.T) {
	t.Parallel()
	s := newShare(4, 2)
	a, b, c := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.3")
	require.True(t, s.take(a))
	require.True(t, s.take(a))
	require.False(t, s.take(a))
	require.True(t, s.take(b))
	require.True(t, s.take(b))
	require.False(t, s.take(c))
	s.give(a)
	require.True(t, s.take(c))
}

// A client with an IPv6 network has 2^64 addresses.
func TestShare_CountsAnIPv6NetworkAsOneClient(t *testing.T) {
	t.Parallel()
	s := newShare(10, 1)
	require.True(t, s.take(netip.MustParseAddr("2001:db8::1")))
	require.False(t, s.take(netip.MustParseAddr("2001:db8::2")))
	require.True(t, s.take(netip.MustParseAddr("2001:db8:0:1::1")))
	require.True(t, s.take(netip.MustParseAddr("fe80::1%eth0")))
	require.False(t, s.take(netip.MustParseAddr("fe80::1%eth1")))
	require.True(t, s.take(netip.MustParseAddr("10.0.0.1")))
	s.give(netip.MustParseAddr("2001:db8::3"))
	require.True(t, s.take(netip.MustParseAddr("2001:db8::2")))
}

func FuzzHandler(f *testing.F) {
	h := offline(f, 4)
	close(h.filled)
	f.Add(pack(f, "svc-0.default.svc.cluster.local.", dns.TypeA))
	f.Add(pack(f, "1.0.96.10.in-addr.arpa.", dns.TypePTR))
	f.Add(pack(f, "1-2-3-4.default.pod.cluster.local.", dns.TypeANY))
	f.Fuzz(func(t *testing.T, packet []byte) {
		reply, _ := h.receive(packet, netip.Addr{}, false)
		if len(reply) > largestUDP {
			t.Fatalf("%d bytes", len(reply))
		}
		if reply != nil && new(dns.Msg).Unpack(reply) != nil {
			t.Fatal("the answer is malformed")
		}
	})
}

func BenchmarkQuery(b *testing.B) {
	h := offline(b, 10_000)
	close(h.filled)
	cached := new(dns.Msg).SetQuestion("www.example.com.", dns.TypeA)
	rr, _ := dns.NewRR("www.example.com. 30 IN A 192.0.2.1")
	cached.Answer = []dns.RR{rr}
	for name, question := range map[string]string{"cluster": "svc-9999.default.svc.cluster.local.",
		"cached": "www.example.com.", "nxdomain": "www.example.com.default.svc.cluster.local."} {
		b.Run(name, func(b *testing.B) {
			packet := pack(b, question, dns.TypeA)
			h.forward.cache.put(cacheKey{name: "www.example.com.", qtype: dns.TypeA}, cached)
			b.ReportAllocs()
			for b.Loop() {
				if reply, _ := h.receive(packet, netip.Addr{}, false); reply == nil {
					h.forward.cache.put(cacheKey{name: "www.example.com.", qtype: dns.TypeA}, cached)
				}
			}
		})
	}
}

// address returns an A record of a name with a TTL of a minute.
func address(name string) dns.RR {
	return &dns.A{Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60},
		A: net.IPv4(192, 0, 2, 1)}
}
