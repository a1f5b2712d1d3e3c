package dns

import (
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/miekg/dns"
	"k8s.io/utils/clock"
)

// maxUpstreams is how many servers are asked, as CoreDNS has it.
const maxUpstreams = 15

// lookEvery is how often the file with the upstreams is looked at, while there are questions.
const lookEvery = 5 * time.Second

// upstreams are the servers that questions are forwarded to: fixed ones, or those of a resolv.conf as it is now. It is
// safe for concurrent use.
type upstreams struct {
	file  string           // empty for fixed ones
	own   []netip.AddrPort // where this server listens
	clock clock.PassiveClock
	log   *slog.Logger

	mu     sync.Mutex
	list   []netip.AddrPort
	fresh  bool // nobody has been given the list yet
	looked time.Time
	seen   fileState
}

type fileState struct {
	modified time.Time
	size     int64
}

// parseUpstreams reads addresses with or without ports.
func parseUpstreams(texts []string) ([]netip.AddrPort, error) {
	var list []netip.AddrPort
	for _, text := range texts {
		to, err := netip.ParseAddrPort(text)
		if err != nil {
			ip, err := netip.ParseAddr(text)
			if err != nil {
				return nil, fmt.Errorf("upstream %q is no address", text)
			}
			to = netip.AddrPortFrom(ip, 53)
		}
		list = append(list, to)
	}
	if len(list) > maxUpstreams {
		return nil, fmt.Errorf("%d upstreams: there may be at most %d", len(list), maxUpstreams)
	}
	return list, nil
}

// current returns the upstreams, and those of them that it has not returned before.
func (u *upstreams) current() (list, fresh []netip.AddrPort) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.file != "" {
		u.look()
	}
	if u.fresh {
		u.fresh = false
		return u.list, u.list
	}
	return u.list, nil
}

// look reads the file again if it has changed. A file that is not readable leaves the upstreams as they are.
func (u *upstreams) look() {
	now := u.clock.Now()
	if !u.looked.IsZero() && now.Sub(u.looked) < lookEvery {
		return
	}
	u.looked = now
	info, err := os.Stat(u.file)
	if err != nil {
		u.log.Warn("reading upstreams", "error", err)
		return
	}
	state := fileState{info.ModTime(), info.Size()}
	if state == u.seen {
		return
	}
	c, err := dns.ClientConfigFromFile(u.file)
	if err != nil {
		u.log.Warn("reading upstreams", "file", u.file, "error", err)
		return
	}
	u.seen = state
	u.set(c.Servers)
}

func (u *upstreams) set(servers []string) {
	var list []netip.AddrPort
	for _, server := range servers {
		one, err := parseUpstreams([]string{server})
		switch {
		case err != nil:
			u.log.Warn("upstream", "error", err)
		case slices.Contains(u.own, one[0]):
			u.log.Error("an upstream is this server itself, and is not asked", "upstream", one[0])
		case len(list) < maxUpstreams && !slices.Contains(list, one[0]):
			list = append(list, one[0])
		}
	}
	if !slices.Equal(list, u.list) {
		u.list, u.fresh = list, true
		u.log.Info("forwarding", "upstreams", list)
	}
}
