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

	"github.com/coxswain-dev/coxswain/apiserver/endpoints"
)

const (
	// maxConns bounds the connections to one address of a server, where it does not speak HTTP/2, and those that have
	// been upgraded. maxIdle are kept for later requests.
	maxConns    = 1000
	maxIdle     = 16
	idleTimeout = 90 * time.Second
	// maxHeader is how many bytes the headers of a response may have.
	maxHeader = 256 << 10
)

// target is what tells servers apart: links with equal targets are interchangeable.
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

// link is the connections to the server of one APIService. They end with it.
type link struct {
	gv     schema.GroupVersion
	target target
	// err says why there can be no connections.
	err error
	// plain carries requests over HTTP/2 where the server speaks it, upgrades those that become streams.
	plain, upgrades *http.Transport
	services        endpoints.Objects

	// open is done when the APIService leads elsewhere, or is gone.
	open context.Context
	end  context.CancelFunc
	// wake holds a token when the Service, or its endpoints, have changed. checked says that somebody listens.
	wake    chan struct{}
	checked bool

	// What the server says about itself.
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
			// A connection whose other end has vanished would keep its requests waiting.
			HTTP2: &http.HTTP2Config{SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second},
		}
	}
	l.plain, l.upgrades = transport(true), transport(false)
	return l
}

// expire has the documents of the server fetched anew.
func (l *link) expire() {
	l.resources.expire()
	l.spec2.expire()
	l.spec3.expire()
}

// fetcher is a function that fetches something of one server.
func fetcher[T any](l *link, fetch func(context.Context, *link, string) (T, string, error)) func(
	context.Context, string) (T, string, error) {
	return func(ctx context.Context, etag string) (T, string, error) { return fetch(ctx, l, etag) }
}

// address is that of one of the server's ready endpoints.
func (l *link) address(ctx context.Context) (string, error) {
	return endpoints.Resolve(ctx, l.services, l.target.namespace, l.target.name, l.target.port)
}

// close ends the streams, and closes connections when their last request is done.
func (l *link) close() {
	l.end()
	l.plain.CloseIdleConnections()
	l.upgrades.CloseIdleConnections()
}
