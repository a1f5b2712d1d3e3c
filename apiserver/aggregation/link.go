package aggregation

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"time"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/coxswain-dev/coxswain/apiserver/serviceresolver"
)

const (
	// maxConns limits the HTTP/1.1 connections to one address of a server and, separately, the ones upgraded to a
	// stream. maxIdle limits the idle ones that are kept for later requests.
	maxConns    = 1000
	maxIdle     = 16
	idleTimeout = 90 * time.Second
	// maxHeader limits the headers of a response, in bytes.
	maxHeader = 256 << 10
)

// target identifies a server. Links with equal targets are interchangeable.
type target struct {
	namespace, name string
	port            int32
	caBundle        [sha256.Size]byte
	insecure        bool
}

func targetOf(spec *apiregistrationv1.APIServiceSpec) target {
	t := target{namespace: spec.Service.Namespace, name: spec.Service.Name, port: 443,
		caBundle: sha256.Sum256(spec.CABundle), insecure: spec.InsecureSkipTLSVerify}
	if spec.Service.Port != nil {
		t.port = *spec.Service.Port
	}
	return t
}

// link holds the connections to the server of one APIService. It is closed when the APIService changes its target
// or is deleted.
type link struct {
	gv     schema.GroupVersion
	target target
	// err is set if no connection is possible.
	err error
	// plain carries ordinary requests, over HTTP/2 if the server supports it. upgrades carries requests that
	// upgrade to a stream, over HTTP/1.1.
	plain, upgrades *http.Transport
	services        serviceresolver.Reader

	// open is done when the link is closed.
	open context.Context
	end  context.CancelFunc
	// wake holds a token when the Service or its endpoints have changed. checked says that a checker receives from
	// it; Aggregation.mu guards it.
	wake    chan struct{}
	checked bool

	// The documents of the server.
	resources document[[]apidiscoveryv2.APIResourceDiscovery]
	spec2     document[*fragment]
	spec3     document[*spec3]
}

func (a *Aggregation) newLink(gv schema.GroupVersion, to target, caBundle []byte) *link {
	l := &link{gv: gv, target: to, services: a.Services, wake: make(chan struct{}, 1)}
	l.open, l.end = context.WithCancel(context.Background())
	tc := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: to.name + "." + to.namespace + ".svc",
		InsecureSkipVerify: to.insecure}
	if len(caBundle) > 0 {
		tc.RootCAs = x509.NewCertPool()
		if !tc.RootCAs.AppendCertsFromPEM(caBundle) {
			l.err = errors.New("unable to load root certificates: unable to parse bytes as PEM block")
		}
	}
	if a.ProxyClient != nil {
		tc.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return a.ProxyClient() }
	}
	l.resources.limit, l.resources.fetch = discoveryTimeout, fetcher(l, a.fetchResources)
	l.spec2.limit, l.spec2.fetch = specTimeout, fetcher(l, a.fetchFragment)
	l.spec3.limit, l.spec3.fetch = specTimeout, fetcher(l, a.fetchSpec3)
	transport := func(http2 bool) *http.Transport {
		protocols := &http.Protocols{}
		protocols.SetHTTP1(true)
		protocols.SetHTTP2(http2)
		return &http.Transport{
			DialContext: a.Dial, TLSClientConfig: tc.Clone(), Protocols: protocols, TLSHandshakeTimeout: dialTimeout,
			DisableCompression: true, MaxConnsPerHost: maxConns, MaxIdleConnsPerHost: maxIdle, MaxIdleConns: maxIdle,
			IdleConnTimeout: idleTimeout, MaxResponseHeaderBytes: maxHeader,
			// Pings detect connections to a vanished peer, which would block their requests.
			HTTP2: &http.HTTP2Config{SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second},
		}
	}
	l.plain, l.upgrades = transport(true), transport(false)
	return l
}

// expire makes all documents of the server due for a fetch.
func (l *link) expire() {
	l.resources.expire()
	l.spec2.expire()
	l.spec3.expire()
}

// fetcher binds fetch to a link.
func fetcher[T any](l *link, fetch func(context.Context, *link, string) (T, string, error)) func(
	context.Context, string) (T, string, error) {
	return func(ctx context.Context, etag string) (T, string, error) { return fetch(ctx, l, etag) }
}

// address returns the address of one of the server's ready endpoints.
func (l *link) address(ctx context.Context) (string, error) {
	return serviceresolver.Resolve(ctx, l.services, l.target.namespace, l.target.name, l.target.port)
}

// close ends the streams, and closes the other connections when their last request ends.
func (l *link) close() {
	l.end()
	l.plain.CloseIdleConnections()
	l.upgrades.CloseIdleConnections()
}
