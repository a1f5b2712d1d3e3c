package dns

import (
	"container/list"
	"sync"
	"time"

	"github.com/miekg/dns"
	"k8s.io/utils/clock"
)

// cacheKey identifies a question to another server by all that its answer depends on. The name is in lower case.
type cacheKey struct {
	name             string
	qtype            uint16
	dnssec, checking bool // the DO and CD bits
}

// Limits of how long an answer is cached, whatever its TTL: at least as long as CoreDNS's minimum, at most as long as
// in kubeadm's Corefile.
const (
	leastTTL   = 5 * time.Second
	longestTTL = 30 * time.Second
	// failureTTL applies to questions that no server answered. RFC 9520, 3.2, requires at least a second.
	failureTTL = time.Second
)

// cache holds answers of other servers. Answers without records are separate, so that a flood of names that do not
// exist does not evict existing names. The cluster's own answers are never cached. It is safe for concurrent use.
type cache struct {
	clock   clock.PassiveClock
	metrics *metrics

	mu       sync.Mutex
	positive lru
	negative lru
}

// lru is a list of entries, the most recently used first, within limits.
type lru struct {
	label   string
	entries int // limit
	bytes   int // limit of messages and names
	size    int
	order   *list.List
	items   map[cacheKey]*list.Element
}

type entry struct {
	key            cacheKey
	msg            *dns.Msg
	size           int
	stored, expiry time.Time
}

// overhead estimates the memory of an entry besides its message: records as Go objects, the list, the map.
const overhead = 512

func newCache(entries, bytes int, c clock.PassiveClock, m *metrics) *cache {
	half := func(label string) lru {
		return lru{label: label, entries: entries / 2, bytes: bytes / 2, order: list.New(),
			items: map[cacheKey]*list.Element{}}
	}
	return &cache{clock: c, metrics: m, positive: half("success"), negative: half("denial")}
}

// get returns a copy of the cached answer to a question, with its TTLs reduced by the time that passed. It returns nil
// if there is none.
func (c *cache) get(key cacheKey) *dns.Msg {
	now := c.clock.Now()
	c.mu.Lock()
	e, label := c.positive.get(key, now), c.positive.label
	if e == nil {
		e, label = c.negative.get(key, now), c.negative.label
	}
	c.mu.Unlock()
	if e == nil {
		c.metrics.cacheMisses.Inc()
		return nil
	}
	c.metrics.cacheHits.WithLabelValues(label).Inc()
	left := uint32(e.expiry.Sub(now)/time.Second) + 1
	return copyOf(e.msg, uint32(now.Sub(e.stored)/time.Second), left)
}

// copyOf copies a message with its TTLs reduced by the seconds that passed, and limited to the seconds that its entry
// has left.
func copyOf(m *dns.Msg, passed, left uint32) *dns.Msg {
	m = m.Copy()
	for _, section := range [][]dns.RR{m.Answer, m.Ns, m.Extra} {
		for _, rr := range section {
			h := rr.Header()
			h.Ttl = min(h.Ttl-min(h.Ttl, passed), left)
		}
	}
	return m
}

// put caches an answer for as long as its TTL allows. The message must not be changed afterwards.
func (c *cache) put(key cacheKey, m *dns.Msg) {
	ttl, negative := lifetime(m)
	if ttl == 0 {
		return
	}
	now := c.clock.Now()
	e := &entry{key: key, msg: m, size: m.Len() + len(key.name) + overhead, stored: now, expiry: now.Add(ttl)}
	c.mu.Lock()
	defer c.mu.Unlock()
	into, other := &c.positive, &c.negative
	if negative {
		into, other = other, into
	}
	other.remove(key)
	into.put(e)
	for _, l := range []*lru{into, other} {
		c.metrics.cacheEntries.WithLabelValues(l.label).Set(float64(l.order.Len()))
	}
}

// lifetime returns how long an answer may be cached, and whether it is a negative one (RFC 2308).
func lifetime(m *dns.Msg) (ttl time.Duration, negative bool) {
	switch {
	case m.Rcode == dns.RcodeServerFailure:
		return failureTTL, true
	case m.Rcode == dns.RcodeSuccess && len(m.Answer) > 0:
		least := m.Answer[0].Header().Ttl
		for _, rr := range m.Answer {
			least = min(least, rr.Header().Ttl)
		}
		return bounded(least), false
	case m.Rcode == dns.RcodeNameError, m.Rcode == dns.RcodeSuccess:
		for _, rr := range m.Ns {
			if soa, ok := rr.(*dns.SOA); ok {
				return bounded(min(soa.Minttl, soa.Hdr.Ttl)), true
			}
		}
	}
	return 0, true
}

func bounded(ttl uint32) time.Duration {
	return min(max(time.Duration(ttl)*time.Second, leastTTL), longestTTL)
}

func (l *lru) get(key cacheKey, now time.Time) *entry {
	item := l.items[key]
	if item == nil {
		return nil
	}
	e := item.Value.(*entry)
	if !now.Before(e.expiry) {
		l.remove(key)
		return nil
	}
	l.order.MoveToFront(item)
	return e
}

func (l *lru) put(e *entry) {
	l.remove(e.key)
	if l.entries < 1 || e.size > l.bytes {
		return
	}
	l.items[e.key] = l.order.PushFront(e)
	l.size += e.size
	for l.order.Len() > l.entries || l.size > l.bytes {
		l.remove(l.order.Back().Value.(*entry).key)
	}
}

func (l *lru) remove(key cacheKey) {
	if item := l.items[key]; item != nil {
		l.size -= item.Value.(*entry).size
		l.order.Remove(item)
		delete(l.items, key)
	}
}
