package ingress

import (
	"crypto/rand"
	"encoding/hex"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"strconv"
	"strings"
)

// ofProxies are the headers by which proxies describe a request's client. They are removed from requests of untrusted
// clients. httputil.ReverseProxy removes Forwarded, and X-Forwarded-For, -Host and -Proto, from all requests.
var ofProxies = []string{"X-Forwarded-Port", "X-Forwarded-Prefix", "X-Forwarded-Scheme", "X-Forwarded-Server",
	"X-Forwarded-Ssl", "X-Original-Forwarded-For", "X-Original-Host", "X-Original-Uri", "X-Original-Url",
	"X-Real-Ip", "X-Rewrite-Url", "X-Scheme"}

// maxForwarded limits the addresses of X-Forwarded-For that are evaluated and forwarded.
const maxForwarded = 32

// rewrite builds the request to the endpoint. Host, path and query stay unchanged.
func (p *proxy) rewrite(r *httputil.ProxyRequest) {
	r.Out.Host = r.In.Host
	r.Out.URL.RawQuery = r.In.URL.RawQuery // the backend judges an unparsable query
	h := r.Out.Header
	for name := range h {
		// Backends that convert names to variables read X_Real_Ip as X-Real-Ip.
		if strings.Contains(name, "_") {
			delete(h, name)
		}
	}
	client, _, err := net.SplitHostPort(r.In.RemoteAddr)
	if err != nil {
		client = r.In.RemoteAddr
	}
	if p.trusts(client) {
		p.forwardTrusted(r, client)
	} else {
		for _, name := range ofProxies {
			h.Del(name)
		}
		h.Set("X-Forwarded-For", client)
		h.Set("X-Real-Ip", client)
		h.Set("X-Forwarded-Host", r.In.Host)
		h.Set("X-Forwarded-Proto", scheme(r.In))
		h.Set("X-Forwarded-Port", p.port(r.In))
	}
	if id := h.Get("X-Request-Id"); id == "" || len(id) > 128 {
		h.Set("X-Request-Id", requestID())
	}
	if x := exchangeOf(r.In.Context()); x != nil {
		x.requestID = h.Get("X-Request-Id")
	}
}

// forwardTrusted forwards a trusted proxy's headers, and adds the proxy to them.
func (p *proxy) forwardTrusted(r *httputil.ProxyRequest, client string) {
	h := r.Out.Header
	chain := addresses(r.In.Header["X-Forwarded-For"])
	realClient := client
	for i := len(chain) - 1; i >= 0 && p.trusts(realClient); i-- {
		realClient = chain[i]
	}
	h.Set("X-Forwarded-For", strings.Join(append(chain, client), ", "))
	h.Set("X-Real-Ip", realClient)
	for name, own := range map[string]string{"X-Forwarded-Host": r.In.Host, "X-Forwarded-Proto": scheme(r.In),
		"X-Forwarded-Port": p.port(r.In)} {
		if theirs := r.In.Header.Get(name); theirs != "" {
			own = theirs
		}
		h.Set(name, own)
	}
}

// addresses returns the last addresses of X-Forwarded-For, up to maxForwarded.
func addresses(headers []string) []string {
	var all []string
	for _, h := range headers {
		for a := range strings.SplitSeq(h, ",") {
			if a = strings.TrimSpace(a); a != "" {
				all = append(all, a)
			}
		}
	}
	return all[max(0, len(all)-maxForwarded):]
}

// trusts reports whether a client's forwarding headers are trusted.
func (p *proxy) trusts(client string) bool {
	if len(p.trusted) == 0 {
		return false
	}
	ip, err := netip.ParseAddr(client)
	if err != nil {
		return false
	}
	ip = ip.Unmap().WithZone("")
	for _, prefix := range p.trusted {
		if prefix.Contains(ip) {
			return true
		}
	}
	return false
}

// secure reports whether the client uses HTTPS, to this process or to a trusted proxy in front of it.
func (p *proxy) secure(r *http.Request) bool {
	if r.TLS != nil {
		return true
	}
	theirs := r.Header.Get("X-Forwarded-Proto")
	if theirs == "" || len(p.trusted) == 0 {
		return false
	}
	client, _, err := net.SplitHostPort(r.RemoteAddr)
	return err == nil && p.trusts(client) && strings.EqualFold(theirs, "https")
}

func scheme(r *http.Request) string {
	if r.TLS != nil {
		return "https"
	}
	return "http"
}

// port returns the port that the client connected to.
func (p *proxy) port(r *http.Request) string {
	if a, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr); ok {
		return strconv.Itoa(a.Port)
	}
	return ""
}

func requestID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}
