package dns

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// Times to live, in seconds: the TTL of kubeadm's Corefile, and CoreDNS's for the version, which is also in the
// specification's example.
const (
	recordTTL  = 30
	versionTTL = 28800
)

// schemaVersion is the version of the Kubernetes DNS specification.
const schemaVersion = "1.1.0"

// PodNames selects the names below pod.DOMAIN that exist.
type PodNames string

// The modes of PodNames.
const (
	// PodNamesInsecure has a name for every address in every existing namespace, like CoreDNS with kubeadm.
	PodNamesInsecure PodNames = "insecure"
	// PodNamesVerified has names for the addresses of pods only. The server then watches all pods.
	PodNamesVerified PodNames = "verified"
	// PodNamesDisabled has no names.
	PodNamesDisabled PodNames = "disabled"
)

// zone answers from the index alone. It does no I/O and does not block.
type zone struct {
	domain string // in lower case, with a final dot
	index  *index
	pods   PodNames
	hasPod func(namespace string, ip netip.Addr) bool // for PodNamesVerified
	serial func() uint32
}

// finding is the zone's answer for a name and a type.
type finding struct {
	zone   string // of the name; "" if the zone is not responsible and other servers are asked
	exists bool   // the name or one below it exists
	answer []dns.RR
	extra  []dns.RR
	alias  string // the name that the answer continues with (CNAME)
}

// records makes records, at most room of them: an answer that does not fit is truncated anyway.
type records struct {
	owner string
	room  int
}

func (r *records) header(rrtype uint16, ttl uint32) dns.RR_Header {
	return dns.RR_Header{Name: r.owner, Rrtype: rrtype, Class: dns.ClassINET, Ttl: ttl}
}

// find looks a question up. The name is in lower case. owner is the name as the client wrote it, which answers repeat
// (draft-vixie-dnsext-dns0x20).
func (z *zone) find(name, owner string, qtype uint16, room int) finding {
	r := &records{owner: owner, room: room}
	rest, is := under(name, z.domain)
	if !is {
		return z.findReverse(name, qtype, r)
	}
	f := finding{zone: z.domain}
	switch branch, below := cutLast(rest); {
	case rest == "":
		f.exists = true
		z.apex(&f, qtype, r)
	case strings.IndexByte(rest, '\\') >= 0: // no name of the cluster has such characters
	case branch == "svc" && below == "", branch == "pod" && below == "" && z.pods != PodNamesDisabled:
		f.exists = true
	case branch == "svc":
		z.findService(&f, below, qtype, r)
	case branch == "pod" && z.pods != PodNamesDisabled:
		z.findPod(&f, below, qtype, r)
	case rest == "dns-version":
		f.exists = true
		if qtype == dns.TypeTXT {
			f.answer = []dns.RR{&dns.TXT{Hdr: r.header(qtype, versionTTL), Txt: []string{schemaVersion}}}
		}
	case rest == "dns":
		f.exists = true
	case rest == "ns.dns":
		f.exists = true
		f.answer = z.server(qtype, r)
	}
	return f
}

// cutLast splits off the last label.
func cutLast(name string) (label, before string) {
	i := strings.LastIndexByte(name, '.')
	if i < 0 {
		return name, ""
	}
	return name[i+1:], name[:i]
}

func (z *zone) apex(f *finding, qtype uint16, r *records) {
	switch qtype {
	case dns.TypeSOA:
		f.answer = []dns.RR{z.soa(r.owner)}
	case dns.TypeNS:
		name := "ns.dns." + z.domain
		f.answer = []dns.RR{&dns.NS{Hdr: r.header(qtype, recordTTL), Ns: name}}
		glue := &records{owner: name, room: r.room}
		f.extra = append(z.server(dns.TypeA, glue), z.server(dns.TypeAAAA, glue)...)
	}
}

// server returns the addresses of the name server: the Service kube-dns, which pods use.
func (z *zone) server(qtype uint16, r *records) []dns.RR {
	if s := z.index.service(serviceKey("kube-system", "kube-dns")); s != nil {
		return addresses(s.v4, s.v6, qtype, r)
	}
	return nil
}

// soa returns the start of authority of a zone. Its last field limits how long resolvers may cache that a name does not
// exist (RFC 2308, 4).
func (z *zone) soa(owner string) dns.RR {
	r := &records{owner: owner}
	return &dns.SOA{Hdr: r.header(dns.TypeSOA, recordTTL), Ns: "ns.dns." + z.domain, Mbox: "hostmaster." + z.domain,
		Serial: z.serial(), Refresh: 7200, Retry: 1800, Expire: 86400, Minttl: recordTTL}
}

// findService looks up NAMESPACE, SERVICE.NAMESPACE, HOSTNAME.SERVICE.NAMESPACE or _PORT._PROTOCOL.SERVICE.NAMESPACE.
func (z *zone) findService(f *finding, rest string, qtype uint16, r *records) {
	namespace, before := cutLast(rest)
	if before == "" {
		f.exists = z.index.hasNamespace(namespace)
		return
	}
	name, below := cutLast(before)
	s := z.index.service(rest[len(rest)-len(namespace)-1-len(name):])
	if s == nil || !s.exists() {
		return
	}
	switch {
	case below == "" && s.target != "":
		f.exists, f.alias = true, s.target
		f.answer = []dns.RR{&dns.CNAME{Hdr: r.header(dns.TypeCNAME, recordTTL), Target: s.target}}
	case below == "":
		f.exists = true
		f.answer = addresses(s.v4, s.v6, qtype, r)
	case slices.Contains(s.protocols, below):
		f.exists = true
	case s.srv[below] != nil:
		f.exists = true
		if qtype == dns.TypeSRV {
			z.ports(f, s, s.srv[below], r)
		}
	default:
		if e := s.endpoints[below]; e != nil {
			f.exists = true
			f.answer = addresses(e.v4, e.v6, qtype, r)
		}
	}
}

// ports adds the SRV records of a named port, and the addresses of their targets.
func (z *zone) ports(f *finding, s *service, targets []target, r *records) {
	weight := uint16(max(1, 100/len(targets)))
	for i, t := range rotated(targets, r.room) {
		name := z.name(t.endpoint)
		f.answer = append(f.answer, &dns.SRV{Hdr: r.header(dns.TypeSRV, recordTTL), Priority: 0, Weight: weight,
			Port: t.port, Target: name})
		if s.headless || i == 0 { // all targets of a cluster IP have the same addresses
			owner := &records{owner: name, room: r.room - len(f.extra)}
			f.extra = append(f.extra, addresses(t.endpoint.v4, nil, dns.TypeA, owner)...)
			f.extra = append(f.extra, addresses(nil, t.endpoint.v6, dns.TypeAAAA, owner)...)
		}
	}
}

// name returns the fully qualified name of an endpoint or a Service.
func (z *zone) name(e *endpoint) string {
	name := e.service.key + ".svc." + z.domain
	if e.hostname != "" {
		name = e.hostname + "." + name
	}
	return name
}

// addresses returns the A or AAAA records of addresses.
func addresses(v4, v6 []netip.Addr, qtype uint16, r *records) []dns.RR {
	var list []dns.RR
	switch qtype {
	case dns.TypeA:
		for _, ip := range rotated(v4, r.room) {
			list = append(list, &dns.A{Hdr: r.header(qtype, recordTTL), A: ip.AsSlice()})
		}
	case dns.TypeAAAA:
		for _, ip := range rotated(v6, r.room) {
			list = append(list, &dns.AAAA{Hdr: r.header(qtype, recordTTL), AAAA: ip.AsSlice()})
		}
	}
	return list
}

// rotated returns up to n elements of a list, beginning at a random one. Many clients take the first record, and each
// endpoint should be the first for some.
func rotated[T any](list []T, n int) []T {
	if len(list) < 2 || n < 1 {
		return list[:max(0, min(n, len(list)))]
	}
	start := rand.IntN(len(list))
	if n = min(n, len(list)); start+n <= len(list) {
		return list[start : start+n]
	}
	return append(slices.Clone(list[start:]), list[:n-(len(list)-start)]...)
}

// findPod looks up NAMESPACE or ADDRESS.NAMESPACE, with hyphens in the address.
func (z *zone) findPod(f *finding, rest string, qtype uint16, r *records) {
	namespace, label := cutLast(rest)
	if !z.index.hasNamespace(namespace) {
		return
	}
	if label == "" {
		f.exists = true
		return
	}
	ip, ok := undashed(label)
	if !ok || z.pods == PodNamesVerified && !z.hasPod(namespace, ip) {
		return
	}
	f.exists = true
	if one := []netip.Addr{ip}; ip.Is4() {
		f.answer = addresses(one, nil, qtype, r)
	} else {
		f.answer = addresses(nil, one, qtype, r)
	}
}

// findReverse looks up the name of an address. Other servers answer for addresses outside the cluster.
func (z *zone) findReverse(name string, qtype uint16, r *records) finding {
	ip, reverse, ok := reversed(name)
	if !ok {
		return finding{}
	}
	names := z.namesAt(ip, r.room)
	if len(names) == 0 {
		return finding{}
	}
	f := finding{zone: reverse, exists: true}
	if qtype == dns.TypePTR {
		for _, n := range names {
			f.answer = append(f.answer, &dns.PTR{Hdr: r.header(qtype, recordTTL), Ptr: n})
		}
	}
	return f
}

// namesAt returns the names of an address: of the Service that has it; else of endpoints with a hostname; else names
// that headless Services make from the address.
func (z *zone) namesAt(ip netip.Addr, room int) []string {
	var names [3][]string
	for _, e := range z.index.at(ip) {
		rank := 2
		switch {
		case e.hostname == "":
			rank = 0
		case e.explicit:
			rank = 1
		}
		if len(names[rank]) < room {
			names[rank] = append(names[rank], z.name(e))
		}
	}
	for _, list := range names {
		if len(list) > 0 {
			slices.Sort(list)
			return list
		}
	}
	return nil
}
