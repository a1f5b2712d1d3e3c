// Package webhook calls servers of others that take part in this server's requests, such as those that convert custom
// resources. A Target and a body come in, and the answer goes out (call.go). A Target that is a Service is resolved to
// the address of one of its endpoints for each call (service.go).
//
// Such a server may be slow, broken or hostile: a call ends with the request that needs it and after Timeout at the
// latest, answers and connections are bounded, and redirects are not followed. A call that waits holds nothing that
// other requests need. The meaning of the bodies is the caller's affair.
package webhook

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/coxswain-dev/coxswain/apiserver/x509metrics"
)

// Timeout bounds each call.
const Timeout = 30 * time.Second

const (
	dialTimeout = 10 * time.Second
	// idleTimeout is how long an unused connection is kept. The address behind it may not be the target's any more,
	// and is then not used again.
	idleTimeout = 90 * time.Second
	// maxConns bounds the connections to an address, maxIdle those that are kept.
	maxConns = 64
	maxIdle  = 8
	// maxTransports is how many targets have connections that are kept. A target's own are kept as long as it is among
	// those that were called last.
	maxTransports = 128
	defaultPort   = 443
)

// Target is what is called: a URL, or else a path of a Service.
type Target struct {
	URL     string
	Service *Service
	// CABundle are the certificates in PEM by which the server is verified; without any, this system's are.
	CABundle []byte
	// Query is added to the address, and UserAgent is the header of that name; both may be "".
	Query, UserAgent string
	// Credentials are what this server may show to targets, each to its own; nil for none.
	Credentials *Credentials
}

// Service names a port of a Service. Port 0 is 443.
type Service struct {
	Namespace, Name, Path string
	Port                  int32
}

// serverName is the name in the certificate of the service's server.
func (s *Service) serverName() string { return s.Name + "." + s.Namespace + ".svc" }

func (s *Service) port() int32 {
	if s.Port == 0 {
		return defaultPort
	}
	return s.Port
}

// Options assemble a Client.
type Options struct {
	// Objects are where services are looked up.
	Objects Objects
	// Dial opens connections to services; nil dials them.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Client calls targets. Its methods are safe for concurrent use.
type Client struct {
	Options
	proxy   func(*http.Request) (*url.URL, error) // of URLs
	refused *x509metrics.Counters

	mu         sync.Mutex
	transports map[transportKey]*transport
	turn       int64
	closed     bool
}

// transportKey identifies the settings of connections: the name that the server must have ("" for the address's own),
// its authorities, and the user that this server is for it. The addresses themselves are net/http's to tell apart.
type transportKey struct {
	server   string
	caBundle [sha256.Size]byte
	user     *clientcmdapi.AuthInfo
}

type transport struct {
	*http.Transport
	shows http.RoundTripper // the transport, with the headers of the user
	turn  int64             // when it was used last
}

// New returns a client without connections.
func New(o Options) *Client {
	if o.Dial == nil {
		o.Dial = dial
	}
	return &Client{Options: o, proxy: http.ProxyFromEnvironment, refused: x509metrics.New("webhooks"),
		transports: map[transportKey]*transport{}}
}

// Metrics are those of the client.
func (c *Client) Metrics() prometheus.Collector { return c.refused }

var dial = (&net.Dialer{Timeout: dialTimeout}).DialContext

// Close closes the connections that are not in use. Others are closed after their use.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for _, t := range c.transports {
		t.CloseIdleConnections()
	}
}

// address returns where a target is at the moment, and the connections by which it is called.
func (c *Client) address(ctx context.Context, to Target) (at *url.URL, host string, through http.RoundTripper,
	err error) {
	if s := to.Service; s != nil {
		address, err := resolve(ctx, c.Objects, s)
		if err != nil {
			return nil, "", nil, &ResolveError{err}
		}
		host = net.JoinHostPort(s.serverName(), strconv.Itoa(int(s.port())))
		at, err = (&url.URL{Scheme: "https", Host: address}).Parse(s.Path)
		if err != nil || at.Host != address {
			return nil, "", nil, errors.New("the service's path is not valid")
		}
		at.RawQuery = to.Query
		t, err := c.transport(s.serverName(), to.CABundle, to.Credentials.user(host))
		return at, host, shows(t), err
	}
	if at, err = url.Parse(to.URL); err != nil {
		return nil, "", nil, err
	}
	if at.Scheme != "https" || at.Host == "" {
		return nil, "", nil, errors.New("a webhook is called by an https URL or a service")
	}
	if to.Query != "" {
		at.RawQuery = to.Query
	}
	t, err := c.transport("", to.CABundle, to.Credentials.user(hostPort(at)))
	return at, "", shows(t), err
}

// hostPort is the address that a URL names, with its port.
func hostPort(at *url.URL) string {
	if at.Port() != "" {
		return at.Host
	}
	return net.JoinHostPort(at.Hostname(), strconv.Itoa(defaultPort))
}

func shows(t *transport) http.RoundTripper {
	if t == nil {
		return nil
	}
	return t.shows
}

// transport returns the connections with some settings. They are made when they are first needed.
func (c *Client) transport(server string, caBundle []byte, user *clientcmdapi.AuthInfo) (*transport, error) {
	key := transportKey{server, sha256.Sum256(caBundle), user}
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.transports[key]
	if t == nil {
		var err error
		if t, err = c.connect(server, caBundle, user); err != nil {
			return nil, err
		}
		if !c.closed { // or nobody would close its connections
			c.makeRoom()
			c.transports[key] = t
		} else {
			t.DisableKeepAlives = true
		}
	}
	c.turn++
	t.turn = c.turn
	return t, nil
}

// connect makes connections with some settings.
func (c *Client) connect(server string, caBundle []byte, user *clientcmdapi.AuthInfo) (*transport, error) {
	tc := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: server}
	if len(caBundle) > 0 {
		tc.RootCAs = x509.NewCertPool()
		if !tc.RootCAs.AppendCertsFromPEM(caBundle) {
			return nil, errors.New("unable to load root certificates: unable to parse bytes as PEM block")
		}
	}
	t := &transport{Transport: &http.Transport{
		DialContext: c.Dial, TLSClientConfig: tc, TLSHandshakeTimeout: dialTimeout, DisableCompression: true,
		MaxConnsPerHost: maxConns, MaxIdleConnsPerHost: maxIdle, MaxIdleConns: maxConns,
		IdleConnTimeout: idleTimeout, MaxResponseHeaderBytes: maxHeader,
	}}
	if server == "" {
		t.Proxy, t.DialContext = c.proxy, dial
	}
	t.shows = t.Transport
	if user == nil {
		return t, nil
	}
	return t, t.authenticate(user)
}

// makeRoom lets the transport go that was used the longest ago, if there are too many. c.mu is held.
func (c *Client) makeRoom() {
	if len(c.transports) < maxTransports {
		return
	}
	var oldest transportKey
	turn := int64(-1)
	for key, t := range c.transports {
		if turn < 0 || t.turn < turn {
			oldest, turn = key, t.turn
		}
	}
	c.transports[oldest].CloseIdleConnections()
	delete(c.transports, oldest)
}
