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

// maxUpstreams limits the number of upstreams, as in CoreDNS.
const maxUpstreams = 15

// lookEvery is the least interval between checks of the file with the upstreams, while there are questions.
const lookEvery = 5 * time.Second

// upstreams is the list of servers that questions are forwarded to: a fixed list, or the current content of a
// resolv.conf. It is safe for concurrent use.
type upstreams struct {
	file  string           // empty for a fixed list
	own   []netip.AddrPort // the addresses of this server
	clock clock.PassiveClock
	log   *slog.Logger

	mu     sync.Mutex
	list   []netip.AddrPort
	fresh  bool // current has not returned the list yet
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
		upstream, err := netip.ParseAddrPort(text)
		if err != nil {
			ip, err := netip.ParseAddr(text)
			if err != nil {
				return nil, fmt.Errorf("upstream %q is not an address", text)
			}
			upstream = netip.AddrPortFrom(ip, 53)
		}
		list = append(list, upstream)
	}
	if len(list) > maxUpstreams {
		return nil, fmt.Errorf("%d upstreams: more than %d", len(list), maxUpstreams)
	}
	return list, nil
}

// current returns the upstreams, and the ones that it has not returned before.
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

// look reads the file again if it changed. If the file cannot be read, the upstreams stay.
func (u *upstreams) look() {
	now := u.clock.Now()
	if !u.looked.IsZero() && now.Sub(u.looked) < lookEvery {
		return
	}
	u.looked = now
	info, err := os.Stat(u.file)
	if err != nil {
		u.log.Warn("failed to read upstreams", "file", u.file, "err", err)
		return
	}
	state := fileState{info.ModTime(), info.Size()}
	if state == u.seen {
		return
	}
	c, err := dns.ClientConfigFromFile(u.file)
	if err != nil {
		u.log.Warn("failed to read upstreams", "file", u.file, "err", err)
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
			u.log.Warn("cannot use an upstream", "err", err)
		case slices.Contains(u.own, one[0]):
			u.log.Error("not forwarding to an upstream that is this server", "upstream", one[0])
		case len(list) < maxUpstreams && !slices.Contains(list, one[0]):
			list = append(list, one[0])
		}
	}
	if !slices.Equal(list, u.list) {
		u.list, u.fresh = list, true
		u.log.Info("forwarding questions", "upstreams", list)
	}
}
