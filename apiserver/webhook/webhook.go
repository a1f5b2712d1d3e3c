// Package webhook calls external servers that participate in requests to this server, for example to convert custom
// resources. A call posts a body to a Target and returns the answer (call.go). Each call to a Service resolves it
// to the address of one of its endpoints (service.go).
//
// Such a server may be slow, broken or hostile. A call ends with its request and at the latest after Timeout.
// Answers and connections are limited, and redirects are not followed. A waiting call holds no resources that other
// requests need. The package does not interpret the bodies.
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

	"github.com/coxswain-dev/coxswain/apiserver/serviceresolver"
	"github.com/coxswain-dev/coxswain/apiserver/x509metrics"
)

// Timeout limits each call.
const Timeout = 30 * time.Second

const (
	dialTimeout = 10 * time.Second
	// idleTimeout is how long an unused connection is kept. If the target moves to another address in the meantime,
	// the connection is not used again.
	idleTimeout = 90 * time.Second
	// maxConns limits the connections to an address, and maxIdle the idle ones.
	maxConns = 64
	maxIdle  = 8
	// maxTransports limits the transports that are kept. The most recently used ones stay.
	maxTransports = 128
	defaultPort   = 443
)

// Target identifies the server to call: either a URL or a path of a Service.
type Target struct {
	URL     string
	Service *Service
	// CABundle contains the certificates, in PEM, that the server is verified with. The system's certificates are
	// used if it is empty.
	CABundle []byte
	// Query is added to the address, and UserAgent is sent as the header. Both may be "".
	Query, UserAgent string
	// Credentials holds the credentials to present to the targets; nil presents none.
	Credentials *Credentials
}

// Service identifies a port of a Service. Port 0 means 443.
type Service struct {
	Namespace, Name, Path string
	Port                  int32
}

// serverName returns the name that the server's certificate must contain.
func (s *Service) serverName() string { return s.Name + "." + s.Namespace + ".svc" }

func (s *Service) port() int32 {
	if s.Port == 0 {
		return defaultPort
	}
	return s.Port
}

// Options configures a Client.
type Options struct {
	// Objects is used to resolve services.
	Objects serviceresolver.Reader
	// Dial opens connections to services; nil uses a net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Client calls targets. Its methods are safe for concurrent use.
type Client struct {
	Options
	proxy   func(*http.Request) (*url.URL, error) // applies to URLs only
	refused *x509metrics.Counters

	mu         sync.Mutex
	transports map[transportKey]*transport
	turn       int64
	closed     bool
}

// transportKey identifies the settings of connections: the required name of the server ("" for the host in the
// URL), its authorities and the user to present. http.Transport itself distinguishes addresses.
type transportKey struct {
	server   string
	caBundle [sha256.Size]byte
	user     *clientcmdapi.AuthInfo
}

type transport struct {
	*http.Transport
	shows http.RoundTripper // the transport, wrapped to add the user's headers
	turn  int64             // of the last use
}

// New returns a Client without connections.
func New(o Options) *Client {
	if o.Dial == nil {
		o.Dial = dial
	}
	return &Client{Options: o, proxy: http.ProxyFromEnvironment, refused: x509metrics.New("webhooks"),
		transports: map[transportKey]*transport{}}
}

// Metrics returns the metrics of the client.
func (c *Client) Metrics() prometheus.Collector { return c.refused }

var dial = (&net.Dialer{Timeout: dialTimeout}).DialContext

// Close closes idle connections. Connections in use are closed afterwards.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for _, t := range c.transports {
		t.CloseIdleConnections()
	}
}

// address returns the current address of a target, the Host header and the transport to use.
func (c *Client) address(ctx context.Context, to Target) (target *url.URL, host string, through http.RoundTripper,
	err error) {
	if s := to.Service; s != nil {
		address, err := resolve(ctx, c.Objects, s)
		if err != nil {
			return nil, "", nil, &ResolveError{err}
		}
		host = net.JoinHostPort(s.serverName(), strconv.Itoa(int(s.port())))
		target, err = (&url.URL{Scheme: "https", Host: address}).Parse(s.Path)
		if err != nil || target.Host != address {
			return nil, "", nil, errors.New("the service's path is not valid")
		}
		target.RawQuery = to.Query
		t, err := c.transport(s.serverName(), to.CABundle, to.Credentials.user(host))
		return target, host, shows(t), err
	}
	if target, err = url.Parse(to.URL); err != nil {
		return nil, "", nil, err
	}
	if target.Scheme != "https" || target.Host == "" {
		return nil, "", nil, errors.New("a webhook is called by an https URL or a service")
	}
	if to.Query != "" {
		target.RawQuery = to.Query
	}
	t, err := c.transport("", to.CABundle, to.Credentials.user(hostPort(target)))
	return target, "", shows(t), err
}

// hostPort returns the host and port of a URL.
func hostPort(target *url.URL) string {
	if target.Port() != "" {
		return target.Host
	}
	return net.JoinHostPort(target.Hostname(), strconv.Itoa(defaultPort))
}

func shows(t *transport) http.RoundTripper {
	if t == nil {
		return nil
	}
	return t.shows
}

// transport returns the transport for the settings. It creates one if none exists.
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
		if !c.closed { // Close would not reach the transport otherwise
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

// connect creates a transport with the settings.
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

// makeRoom removes the least recently used transport if there are too many. c.mu must be held.
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
