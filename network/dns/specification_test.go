package dns

import (
	"strings"
	"testing"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// specified are questions, each with the source of its rule. Numbers are sections of the Kubernetes DNS specification
// 1.1. The questions are its examples, with addresses of the test's cluster.
var specified = []struct {
	rule   string
	name   string
	qtype  uint16
	rcode  int
	answer []string
	extra  []string
}{
	{"2.2", "dns-version.cluster.local.", dns.TypeTXT, 0, []string{`dns-version.cluster.local. IN TXT "1.1.0"`}, nil},
	{"2.3.1", "web.default.svc.cluster.local.", dns.TypeA, 0, []string{"web.default.svc.cluster.local. IN A 10.96.0.81"}, nil},
	{"2.3.1, of another family", "web.default.svc.cluster.local.", dns.TypeAAAA, 0, nil, nil},
	{"2.3.2", "_https._tcp.web.default.svc.cluster.local.", dns.TypeSRV, 0,
		[]string{"_https._tcp.web.default.svc.cluster.local. IN SRV 0 100 443 web.default.svc.cluster.local."},
		[]string{"web.default.svc.cluster.local. IN A 10.96.0.81"}},
	{"2.3.2, of another protocol", "_https._udp.web.default.svc.cluster.local.", dns.TypeSRV, dns.RcodeNameError, nil, nil},
	{"2.3.2, of UDP", "_quic._udp.web.default.svc.cluster.local.", dns.TypeSRV, 0,
		[]string{"_quic._udp.web.default.svc.cluster.local. IN SRV 0 100 443 web.default.svc.cluster.local."},
		[]string{"web.default.svc.cluster.local. IN A 10.96.0.81"}},
	{"2.3.3", "81.0.96.10.in-addr.arpa.", dns.TypePTR, 0, []string{"81.0.96.10.in-addr.arpa. IN PTR web.default.svc.cluster.local."}, nil},
	{"2.4.1", "headless.default.svc.cluster.local.", dns.TypeA, 0, []string{
		"headless.default.svc.cluster.local. IN A 10.3.0.1",
		"headless.default.svc.cluster.local. IN A 10.3.0.100",
		"headless.default.svc.cluster.local. IN A 10.3.0.101",
	}, nil},
	{"2.4.1, IPv6", "headless.default.svc.cluster.local.", dns.TypeAAAA, 0, []string{"headless.default.svc.cluster.local. IN AAAA fd00::64"}, nil},
	{"2.4.1, with a hostname", "my-pet.headless.default.svc.cluster.local.", dns.TypeA, 0, []string{"my-pet.headless.default.svc.cluster.local. IN A 10.3.0.100"}, nil},
	{"2.4.1, the hostname's other family", "my-pet.headless.default.svc.cluster.local.", dns.TypeAAAA, 0, []string{"my-pet.headless.default.svc.cluster.local. IN AAAA fd00::64"}, nil},
	{"2.4.1, with CoreDNS's hostname", "10-3-0-1.headless.default.svc.cluster.local.", dns.TypeA, 0, []string{"10-3-0-1.headless.default.svc.cluster.local. IN A 10.3.0.1"}, nil},
	{"2.4.1, not ready", "unready.headless.default.svc.cluster.local.", dns.TypeA, dns.RcodeNameError, nil, nil},
	{"2.4.1, without ready endpoints", "empty.default.svc.cluster.local.", dns.TypeA, dns.RcodeNameError, nil, nil},
	{"publishNotReadyAddresses", "early.default.svc.cluster.local.", dns.TypeA, 0, []string{"early.default.svc.cluster.local. IN A 10.3.0.150"}, nil},
	{"2.4.2", "_https._tcp.headless.default.svc.cluster.local.", dns.TypeSRV, 0, []string{
		"_https._tcp.headless.default.svc.cluster.local. IN SRV 0 33 443 10-3-0-1.headless.default.svc.cluster.local.",
		"_https._tcp.headless.default.svc.cluster.local. IN SRV 0 33 443 my-pet-2.headless.default.svc.cluster.local.",
		"_https._tcp.headless.default.svc.cluster.local. IN SRV 0 33 443 my-pet.headless.default.svc.cluster.local.",
	}, []string{
		"10-3-0-1.headless.default.svc.cluster.local. IN A 10.3.0.1",
		"my-pet-2.headless.default.svc.cluster.local. IN A 10.3.0.101",
		"my-pet.headless.default.svc.cluster.local. IN A 10.3.0.100",
		"my-pet.headless.default.svc.cluster.local. IN AAAA fd00::64",
	}},
	{"2.4.3", "100.0.3.10.in-addr.arpa.", dns.TypePTR, 0, []string{"100.0.3.10.in-addr.arpa. IN PTR my-pet.headless.default.svc.cluster.local."}, nil},
	{"2.4.3, with CoreDNS's hostname", "1.0.3.10.in-addr.arpa.", dns.TypePTR, 0, []string{"1.0.3.10.in-addr.arpa. IN PTR 10-3-0-1.headless.default.svc.cluster.local."}, nil},
	{"2.4.3, IPv6", "4.6.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa.", dns.TypePTR, 0,
		[]string{"4.6.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa. IN PTR my-pet.headless.default.svc.cluster.local."}, nil},
	{"2.4.3, another type", "100.0.3.10.in-addr.arpa.", dns.TypeTXT, 0, nil, nil},
	{"2.5, as CNAME", "foo.default.svc.cluster.local.", dns.TypeCNAME, 0, []string{"foo.default.svc.cluster.local. IN CNAME www.example.com."}, nil},
	{"2.5", "foo.default.svc.cluster.local.", dns.TypeA, 0, []string{
		"foo.default.svc.cluster.local. IN CNAME www.example.com.", "www.example.com. IN A 192.0.2.53"}, nil},
	{"2.5, within the cluster", "near.default.svc.cluster.local.", dns.TypeA, 0, []string{
		"near.default.svc.cluster.local. IN CNAME web.default.svc.cluster.local.", "web.default.svc.cluster.local. IN A 10.96.0.81"}, nil},
	{"2.5, to nothing", "nowhere.default.svc.cluster.local.", dns.TypeA, dns.RcodeNameError,
		[]string{"nowhere.default.svc.cluster.local. IN CNAME no.default.svc.cluster.local."}, nil},
	{"2.5, in a circle", "circle.default.svc.cluster.local.", dns.TypeA, dns.RcodeServerFailure, nil, nil},
	{"2.6", "1-2-3-4.default.pod.cluster.local.", dns.TypeA, 0, []string{"1-2-3-4.default.pod.cluster.local. IN A 1.2.3.4"}, nil},
	{"2.6, IPv6", "fd00--5.default.pod.cluster.local.", dns.TypeAAAA, 0, []string{"fd00--5.default.pod.cluster.local. IN AAAA fd00::5"}, nil},
	{"2.6, without its namespace", "1-2-3-4.none.pod.cluster.local.", dns.TypeA, dns.RcodeNameError, nil, nil},
	{"2.6, no address", "1-2-3-400.default.pod.cluster.local.", dns.TypeA, dns.RcodeNameError, nil, nil},
	{"2.1, case-insensitive", "WeB.DEFAULT.svc.Cluster.LOCAL.", dns.TypeA, 0, []string{"WeB.DEFAULT.svc.Cluster.LOCAL. IN A 10.96.0.81"}, nil},

	{"1.1 has no wildcards", "*.default.svc.cluster.local.", dns.TypeA, dns.RcodeNameError, nil, nil},
	{"1.1 has no wildcards", "_any._tcp.web.default.svc.cluster.local.", dns.TypeSRV, dns.RcodeNameError, nil, nil},
	{"RFC 8020: a name above names", "default.svc.cluster.local.", dns.TypeA, 0, nil, nil},
	{"RFC 8020: a name above names", "svc.cluster.local.", dns.TypeA, 0, nil, nil},
	{"RFC 8020: a name above names", "default.pod.cluster.local.", dns.TypeA, 0, nil, nil},
	{"RFC 8020: a name above names", "_tcp.web.default.svc.cluster.local.", dns.TypeSRV, 0, nil, nil},
	{"no such Service", "no.default.svc.cluster.local.", dns.TypeA, dns.RcodeNameError, nil, nil},
	{"no such namespace", "web.none.svc.cluster.local.", dns.TypeA, dns.RcodeNameError, nil, nil},
	{"nothing beside svc and pod", "example.com.cluster.local.", dns.TypeA, dns.RcodeNameError, nil, nil},
	{"a dot within a label", `a\.web.default.svc.cluster.local.`, dns.TypeA, dns.RcodeNameError, nil, nil},
	{"a Service is no hostname", "x.web.default.svc.cluster.local.", dns.TypeA, dns.RcodeNameError, nil, nil},
	{"NS", "cluster.local.", dns.TypeNS, 0, []string{"cluster.local. IN NS ns.dns.cluster.local."}, []string{"ns.dns.cluster.local. IN A 10.96.0.10"}},
	{"NS", "ns.dns.cluster.local.", dns.TypeA, 0, []string{"ns.dns.cluster.local. IN A 10.96.0.10"}, nil},
	{"RFC 8482", "web.default.svc.cluster.local.", dns.TypeANY, 0, []string{`web.default.svc.cluster.local. IN HINFO "RFC8482" ""`}, nil},
}

func cluster() []any {
	https := []discoveryv1.EndpointPort{endpointPort("https", 443), endpointPort("", 80)}
	headless := makeService("default", "headless", "None", servicePort("https", "TCP", 443))
	early := makeService("default", "early", "None")
	early.Spec.PublishNotReadyAddresses = true
	return []any{
		makeService("kube-system", "kube-dns", "10.96.0.10", servicePort("dns", "UDP", 53)),
		makeService("default", "web", "10.96.0.81", servicePort("https", "TCP", 443), servicePort("quic", "UDP", 443)),
		headless, early, makeService("default", "empty", "None"),
		makeSlice("default", "headless-1", "headless", https, ready("10.3.0.1", ""), ready("10.3.0.100", "my-pet"),
			unready("10.3.0.200", "unready")),
		makeSlice("default", "headless-2", "headless", https, ready("10.3.0.101", "my-pet-2")),
		makeSlice("default", "headless-6", "headless", https, ready("fd00::64", "my-pet")),
		makeSlice("default", "early-1", "early", nil, unready("10.3.0.150", "")),
		makeSlice("default", "empty-1", "empty", nil, unready("10.3.0.151", "")),
		makeExternal("default", "foo", "www.example.com"),
		makeExternal("default", "near", "web.default.svc.cluster.local"),
		makeExternal("default", "nowhere", "no.default.svc.cluster.local"),
		makeExternal("default", "circle", "circle.default.svc.cluster.local"),
	}
}

func TestDNS_AnswersAsSpecified(t *testing.T) {
	t.Parallel()
	config := apiServer(t)
	create(t, clientOf(t, config), cluster()...)
	r := start(t, config, Options{Upstreams: []string{upstream(t, func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg).SetReply(q)
		rr, _ := dns.NewRR(q.Question[0].Name + " 28715 IN A 192.0.2.53")
		m.Answer = []dns.RR{rr}
		_ = w.WriteMsg(m)
	}).address}})
	for _, network := range []string{"udp", "tcp"} {
		for _, s := range specified {
			query := new(dns.Msg).SetQuestion(s.name, s.qtype)
			query.SetEdns0(largestUDP, false)
			m, err := r.try(network, query)
			require.NoError(t, err)
			about := strings.Join([]string{network, s.rule, m.String()}, "\n")
			require.Equal(t, dns.RcodeToString[s.rcode], dns.RcodeToString[m.Rcode], about)
			require.Equal(t, append([]string{}, s.answer...), texts(m.Answer), about)
			require.Equal(t, append([]string{}, s.extra...), texts(m.Extra), about)
			require.False(t, m.Truncated, about)
			require.Equal(t, s.rcode != dns.RcodeServerFailure || s.qtype == dns.TypeA, m.Authoritative, about)
			negative := s.rcode == dns.RcodeNameError || s.rcode == 0 && len(s.answer) == 0
			require.Equal(t, negative, len(m.Ns) == 1 && m.Ns[0].Header().Rrtype == dns.TypeSOA, about)
			for _, rr := range m.Answer {
				if rr.Header().Rrtype != dns.TypeTXT && !strings.Contains(rr.Header().Name, "example.com") {
					require.Equal(t, uint32(30), rr.Header().Ttl, about)
				}
			}
		}
	}
}

func TestDNS_FollowsChanges(t *testing.T) {
	t.Parallel()
	config := apiServer(t)
	client := clientOf(t, config)
	r := start(t, config, Options{})
	name := "late.default.svc.cluster.local."
	require.Equal(t, dns.RcodeNameError, r.ask("udp", name, dns.TypeA).Rcode)
	create(t, client, makeService("default", "late", "10.96.0.99", servicePort("http", corev1.ProtocolTCP, 80)))
	eventually(t, func() bool { return len(r.ask("udp", name, dns.TypeA).Answer) == 1 })
	require.NoError(t, client.CoreV1().Services("default").Delete(t.Context(), "late", deleteNow))
	eventually(t, func() bool { return r.ask("udp", name, dns.TypeA).Rcode == dns.RcodeNameError })
	eventually(t, func() bool { return !r.ask("udp", "99.0.96.10.in-addr.arpa.", dns.TypePTR).Authoritative })
}
