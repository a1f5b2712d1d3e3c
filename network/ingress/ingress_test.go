package ingress

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/coxswain-dev/coxswain/testenv"
	"github.com/coxswain-dev/coxswain/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

const (
	patience = 30 * time.Second
	tick     = 5 * time.Millisecond
)

// cluster is an API server with an ingress controller, and backends on loopback. The API server rejects loopback
// addresses in EndpointSlices, so each backend has an address of a documentation network, which dial translates.
type cluster struct {
	t           *testing.T
	client      kubernetes.Interface
	http, https string // addresses
	health      string
	stop        func() // returns when the controller has ended

	mu       sync.Mutex
	backends map[string]string // loopback addresses by host:port of the endpoint
}

func start(t *testing.T, change func(*Options)) *cluster {
	t.Helper()
	return startAs(t, testenv.Start(t, testenv.APIServerOnly()), "coxswain:ingress", change)
}

// startAs runs the controller as a user, with only the rights of that user's roles.
func startAs(t *testing.T, config *rest.Config, user string, change func(*Options)) *cluster {
	t.Helper()
	c := &cluster{t: t, client: kubernetes.NewForConfigOrDie(config), backends: map[string]string{}}
	listen := func() net.Listener {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		return ln
	}
	ready := make(chan struct{})
	o := Options{HTTP: listen(), HTTPS: listen(), Health: listen(), CreateClass: true, Ready: func() { close(ready) },
		dial: c.dial}
	if change != nil {
		change(&o)
	}
	c.http, c.https, c.health = o.HTTP.Addr().String(), o.HTTPS.Addr().String(), o.Health.Addr().String()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, testenv.User(t, config, user), o) }()
	c.stop = sync.OnceFunc(func() { cancel(); require.NoError(t, <-ended) })
	t.Cleanup(c.stop)
	select {
	case <-ready:
	case <-time.After(patience):
		t.Fatal("not ready")
	}
	return c
}

func (c *cluster) dial(ctx context.Context, network, address string) (net.Conn, error) {
	c.mu.Lock()
	target := c.backends[address]
	c.mu.Unlock()
	if target == "" {
		return nil, &net.OpError{Op: "dial", Err: fmt.Errorf("connection refused: %s", address)}
	}
	return (&net.Dialer{}).DialContext(ctx, network, target)
}

// serve creates a Service with endpoints, one for each server.
func (c *cluster) serve(name string, appProtocol string, servers ...*httptest.Server) {
	c.t.Helper()
	port := corev1.ServicePort{Name: "http", Port: 80, TargetPort: intstr.FromInt32(8080)}
	if appProtocol != "" {
		port.AppProtocol = &appProtocol
	}
	_, err := c.client.CoreV1().Services("default").Create(c.t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{port}}}, metav1.CreateOptions{})
	require.NoError(c.t, err)
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: ptrTo("http"), Port: ptrTo(int32(8080))}},
	}
	for i, s := range servers {
		c.mu.Lock()
		address := fmt.Sprintf("192.0.2.%d", len(c.backends)+1)
		c.backends[address+":8080"] = s.Listener.Addr().String()
		c.mu.Unlock()
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{address},
			Conditions: discoveryv1.EndpointConditions{Ready: ptrTo(true)}})
		_ = i
	}
	_, err = c.client.DiscoveryV1().EndpointSlices("default").Create(c.t.Context(), slice, metav1.CreateOptions{})
	require.NoError(c.t, err)
}

// route creates an Ingress that routes all paths of a host to a Service.
func (c *cluster) route(host, service string, change func(*networkingv1.Ingress)) *networkingv1.Ingress {
	c.t.Helper()
	i := ingressAt("default", strings.ReplaceAll(host, "*", "w"), 0, host, pathOf(networkingv1.PathTypePrefix, "/", service))
	i.UID, i.CreationTimestamp = "", metav1.Time{}
	i.Spec.IngressClassName = ptrTo(ClassName)
	if change != nil {
		change(i)
	}
	i, err := c.client.NetworkingV1().Ingresses("default").Create(c.t.Context(), i, metav1.CreateOptions{})
	require.NoError(c.t, err)
	return i
}

// browser returns a client that connects to the proxy for every host, like curl with --connect-to.
func (c *cluster) browser(change func(*http.Transport)) *http.Client {
	tr := &http.Transport{
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			target := c.http
			if strings.HasSuffix(address, ":443") {
				target = c.https
			}
			return (&net.Dialer{}).DialContext(ctx, network, target)
		},
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true,
	}
	if change != nil {
		change(tr)
	}
	c.t.Cleanup(tr.CloseIdleConnections)
	stay := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &http.Client{Transport: tr, CheckRedirect: stay}
}

func (c *cluster) get(client *http.Client, url string) (status int, body string, header http.Header) {
	response, err := client.Get(url)
	if err != nil {
		return 0, err.Error(), nil
	}
	defer func() { _ = response.Body.Close() }()
	text, _ := io.ReadAll(response.Body)
	return response.StatusCode, string(text), response.Header
}

func (c *cluster) eventually(client *http.Client, url string, status int, body string) {
	c.t.Helper()
	var got string
	require.Eventually(c.t, func() bool {
		s, b, _ := c.get(client, url)
		got = fmt.Sprint(s, " ", b)
		return s == status && strings.Contains(b, body)
	}, patience, tick, "%s: want %d %q", url, status, body)
	_ = got
}

func backend(t *testing.T, h http.HandlerFunc) *httptest.Server {
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s
}

func text(s string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, s) }
}

func TestIngress_ServesHostsAndFollowsEndpoints(t *testing.T) {
	t.Parallel()
	c := start(t, func(o *Options) { o.PublishAddresses = []string{"203.0.113.7", "lb.example.com"} })
	client := c.browser(nil)
	status, _, _ := c.get(client, "http://a.example.com/")
	require.Equal(t, 404, status)
	c.route("a.example.com", "a", nil)
	c.eventually(client, "http://a.example.com/", 503, "Service Unavailable")
	c.serve("a", "", backend(t, text("of a")))
	c.eventually(client, "http://a.example.com/x?y", 200, "of a")

	slices := c.client.DiscoveryV1().EndpointSlices("default")
	s, err := slices.Get(t.Context(), "a", metav1.GetOptions{})
	require.NoError(t, err)
	s.Endpoints[0].Conditions = discoveryv1.EndpointConditions{Ready: ptrTo(false), Serving: ptrTo(true),
		Terminating: ptrTo(true)}
	s, err = slices.Update(t.Context(), s, metav1.UpdateOptions{})
	require.NoError(t, err)
	status, _, _ = c.get(client, "http://a.example.com/")
	require.Equal(t, 200, status, "terminating endpoints serve if there are no others")
	s.Endpoints[0].Conditions.Serving = ptrTo(false)
	_, err = slices.Update(t.Context(), s, metav1.UpdateOptions{})
	require.NoError(t, err)
	c.eventually(client, "http://a.example.com/", 503, "")

	require.Eventually(t, func() bool {
		i, err := c.client.NetworkingV1().Ingresses("default").Get(t.Context(), "a.example.com", metav1.GetOptions{})
		return err == nil && len(i.Status.LoadBalancer.Ingress) == 2 && i.Status.LoadBalancer.Ingress[0].IP == "203.0.113.7" &&
			i.Status.LoadBalancer.Ingress[1].Hostname == "lb.example.com"
	}, patience, tick)
	require.NoError(t, c.client.NetworkingV1().Ingresses("default").Delete(t.Context(), "a.example.com", metav1.DeleteOptions{}))
	c.eventually(client, "http://a.example.com/", 404, "")
	class, err := c.client.NetworkingV1().IngressClasses().Get(t.Context(), ClassName, metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, ControllerName, class.Spec.Controller)
}

func TestIngress_ServesItsClassesOnly(t *testing.T) {
	t.Parallel()
	c := start(t, nil)
	client := c.browser(nil)
	c.serve("s", "", backend(t, text("served")))
	classes := c.client.NetworkingV1().IngressClasses()
	for name, controller := range map[string]string{"ours-too": ControllerName, "theirs": "example.com/other"} {
		_, err := classes.Create(t.Context(), &networkingv1.IngressClass{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: networkingv1.IngressClassSpec{Controller: controller}}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	class := func(name *string) func(*networkingv1.Ingress) {
		return func(i *networkingv1.Ingress) { i.Spec.IngressClassName = name }
	}
	c.route("none.example.com", "s", class(nil))
	c.route("theirs.example.com", "s", class(ptrTo("theirs")))
	c.route("annotated.example.com", "s", func(i *networkingv1.Ingress) {
		i.Spec.IngressClassName, i.Annotations = nil, map[string]string{annotationClass: ClassName}
	})
	c.route("ours.example.com", "s", class(ptrTo("ours-too")))
	c.eventually(client, "http://annotated.example.com/", 200, "served")
	c.eventually(client, "http://ours.example.com/", 200, "served")
	for _, host := range []string{"none", "theirs"} {
		status, _, _ := c.get(client, "http://"+host+".example.com/")
		require.Equal(t, 404, status, host)
	}
	theirs, err := classes.Get(t.Context(), ClassName, metav1.GetOptions{})
	require.NoError(t, err)
	theirs.Annotations = map[string]string{networkingv1.AnnotationIsDefaultIngressClass: "true"}
	_, err = classes.Update(t.Context(), theirs, metav1.UpdateOptions{})
	require.NoError(t, err)
	c.eventually(client, "http://none.example.com/", 200, "served")
}

func TestIngress_RejectsExternalNamesWithAnEvent(t *testing.T) {
	t.Parallel()
	c := start(t, nil)
	_, err := c.client.CoreV1().Services("default").Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "out"}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName,
			ExternalName: "metadata.internal", Ports: []corev1.ServicePort{{Name: "http", Port: 80}}}}, metav1.CreateOptions{})
	require.NoError(t, err)
	c.route("out.example.com", "out", nil)
	c.eventually(c.browser(nil), "http://out.example.com/", 503, "")
	require.Eventually(t, func() bool {
		list, err := c.client.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{})
		return err == nil && slices.ContainsFunc(list.Items, func(e corev1.Event) bool {
			return e.InvolvedObject.Name == "out.example.com" && strings.Contains(e.Message, "ExternalName")
		})
	}, patience, tick)
}

// secretFor returns a Secret with a self-signed certificate for hosts; without hosts, for the common name
// c.example.com.
func secretFor(t *testing.T, name string, hosts ...string) *corev1.Secret {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), DNSNames: hosts,
		Subject: pkix.Name{CommonName: "c.example.com"}, NotAfter: time.Now().AddDate(1, 0, 0)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	meta := metav1.ObjectMeta{Name: name}
	return &corev1.Secret{ObjectMeta: meta, Type: corev1.SecretTypeTLS, Data: map[string][]byte{
		corev1.TLSCertKey:       pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		corev1.TLSPrivateKeyKey: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
	}}
}

func TestIngress_UsesCertificatesForTheirNamesOnly(t *testing.T) {
	t.Parallel()
	c := start(t, nil)
	c.serve("s", "", backend(t, text("served")))
	var made []string
	for name, hosts := range map[string][]string{"names": {"A.example.com", "*.w.example.com"}, "common": nil} {
		s := secretFor(t, name, hosts...)
		made = append(made, string(s.Data[corev1.TLSCertKey]))
		_, err := c.client.CoreV1().Secrets("default").Create(t.Context(), s, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	for host, secret := range map[string]string{"a.example.com": "names", "b.example.com": "names",
		"x.w.example.com": "names", "c.example.com": "common", "d.example.com": "common"} {
		c.route(host, "s", func(i *networkingv1.Ingress) {
			i.Spec.TLS = []networkingv1.IngressTLS{{Hosts: []string{host}, SecretName: secret}}
		})
	}
	for _, host := range []string{"a.example.com", "x.w.example.com", "c.example.com"} {
		require.Eventually(t, func() bool { return slices.Contains(made, c.served(host)) }, patience, tick, host)
	}
	require.NotEqual(t, c.served("a.example.com"), c.served("c.example.com"))
	warned := map[string]string{}
	require.Eventually(t, func() bool {
		list, err := c.client.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		for _, e := range list.Items {
			warned[e.InvolvedObject.Name] = e.Message
		}
		return len(warned) == 2
	}, patience, tick)
	require.Equal(t, map[string]string{
		"b.example.com": "the certificate in Secret names is not valid for b.example.com",
		"d.example.com": "the certificate in Secret common is not valid for d.example.com"}, warned)
	for host := range warned {
		require.NotContains(t, made, c.served(host), host)
	}
}

// served returns the certificate of a host in PEM, or "".
func (c *cluster) served(host string) string {
	conn, err := tls.Dial("tcp", c.https, &tls.Config{ServerName: host, InsecureSkipVerify: true})
	if err != nil {
		return ""
	}
	defer func() { _ = conn.Close() }()
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: conn.ConnectionState().PeerCertificates[0].Raw}))
}

func TestIngress_UpdatesCertificatesAndRedirectsHTTP(t *testing.T) {
	t.Parallel()
	c := start(t, nil)
	client := c.browser(nil)
	c.serve("s", "", backend(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Header.Get("X-Forwarded-Proto"))
	}))
	withTLS := func(i *networkingv1.Ingress) {
		i.Spec.TLS = []networkingv1.IngressTLS{{Hosts: []string{i.Spec.Rules[0].Host}, SecretName: "tls"}}
	}
	c.route("*.tls.example.com", "s", withTLS)
	c.eventually(client, "https://a.tls.example.com/", 200, "https")
	byDefault := c.served("a.tls.example.com")
	require.NotEmpty(t, byDefault)

	secrets := c.client.CoreV1().Secrets("default")
	first := secretFor(t, "tls", "*.tls.example.com")
	secret, err := secrets.Create(t.Context(), first, metav1.CreateOptions{})
	require.NoError(t, err)
	has := func(host string, want []byte) {
		t.Helper()
		require.Eventually(t, func() bool { return c.served(host) == string(want) }, patience, tick)
	}
	has("a.tls.example.com", first.Data[corev1.TLSCertKey])
	require.Equal(t, byDefault, c.served("a.b.tls.example.com"), "a wildcard covers one label")
	second := secretFor(t, "tls", "*.tls.example.com")
	secret.Data = second.Data
	secret, err = secrets.Update(t.Context(), secret, metav1.UpdateOptions{})
	require.NoError(t, err)
	has("a.tls.example.com", second.Data[corev1.TLSCertKey])
	require.NoError(t, secrets.Delete(t.Context(), secret.Name, metav1.DeleteOptions{}))
	has("a.tls.example.com", []byte(byDefault))

	_, port, _ := net.SplitHostPort(c.https)
	status, _, header := c.get(client, "http://a.tls.example.com/x?y=z")
	require.Equal(t, 308, status)
	require.Equal(t, "https://a.tls.example.com:"+port+"/x?y=z", header.Get("Location"))
	c.route("plain.example.com", "s", func(i *networkingv1.Ingress) {
		withTLS(i)
		i.Annotations = map[string]string{AnnotationSSLRedirect: "false"}
	})
	c.eventually(client, "http://plain.example.com/", 200, "http")
}

func TestProxy_ForwardsHeadersOfTrustedProxiesOnly(t *testing.T) {
	t.Parallel()
	for name, trusted := range map[string]bool{"client": false, "trusted proxy": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := start(t, func(o *Options) {
				if trusted {
					o.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
				}
			})
			var got atomic.Pointer[http.Request]
			c.serve("s", "", backend(t, func(_ http.ResponseWriter, r *http.Request) { got.Store(r) }))
			c.route("h.example.com", "s", nil)
			client := c.browser(nil)
			c.eventually(client, "http://h.example.com/", 200, "")
			r, err := http.NewRequest("GET", "http://h.example.com/a%2Fb//c?bad=%zz;x", nil)
			require.NoError(t, err)
			r.Header = http.Header{"X-Forwarded-For": {"6.6.6.6, 127.0.0.9"}, "X-Real-Ip": {"6.6.6.6"}, "X_real_ip": {"6.6.6.6"},
				"X-Forwarded-Proto": {"https"}, "X-Forwarded-Host": {"other"}, "X-Original-Url": {"/admin"},
				"Forwarded": {"for=6.6.6.6"}, "Connection": {"X-Hop"}, "X-Hop": {"1"}, "Proxy-Authorization": {"x"}}
			response, err := client.Do(r)
			require.NoError(t, err)
			_ = response.Body.Close()
			in := got.Load()
			require.Equal(t, "/a%2Fb//c?bad=%zz;x", in.RequestURI)
			require.Equal(t, "h.example.com", in.Host)
			for _, removed := range []string{"X-Hop", "Proxy-Authorization", "Forwarded", "X_real_ip"} {
				require.Empty(t, in.Header[removed], removed)
			}
			want := map[string]string{"X-Forwarded-For": "127.0.0.1", "X-Real-Ip": "127.0.0.1", "X-Forwarded-Proto": "http",
				"X-Forwarded-Host": "h.example.com", "X-Original-Url": ""}
			if trusted {
				want = map[string]string{"X-Forwarded-For": "6.6.6.6, 127.0.0.9, 127.0.0.1", "X-Real-Ip": "6.6.6.6",
					"X-Forwarded-Proto": "https", "X-Forwarded-Host": "other"}
			}
			for name, value := range want {
				require.Equal(t, value, in.Header.Get(name), name)
			}
			require.Len(t, in.Header.Get("X-Request-Id"), 32)
		})
	}
}

func TestProxy_SupportsUpgradedConnections(t *testing.T) {
	t.Parallel()
	log := &lockedBuffer{}
	c := start(t, func(o *Options) { o.AccessLog = log })
	c.serve("ws", "kubernetes.io/ws", backend(t, func(w http.ResponseWriter, r *http.Request) {
		require.Equal(t, "websocket", r.Header.Get("Upgrade"))
		conn, rw, err := http.NewResponseController(w).Hijack()
		require.NoError(t, err)
		defer func() { _ = conn.Close() }()
		_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		_ = rw.Flush()
		_, _ = io.Copy(conn, rw)
	}))
	c.route("ws.example.com", "ws", nil)
	var conn net.Conn
	var reader *bufio.Reader
	require.Eventually(t, func() bool {
		var err error
		conn, err = net.Dial("tcp", c.http)
		require.NoError(t, err)
		_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: ws.example.com\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		reader = bufio.NewReader(conn)
		response, err := http.ReadResponse(reader, nil)
		if err == nil && response.StatusCode == http.StatusSwitchingProtocols {
			return true
		}
		_ = conn.Close()
		return false
	}, patience, tick)
	for _, line := range []string{"hello\n", "again\n"} {
		_, _ = io.WriteString(conn, line)
		echo, err := reader.ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, line, echo)
	}
	_ = conn.Close()
	require.Eventually(t, func() bool { return strings.Contains(log.String(), `"status":101`) }, patience, tick)
}

func TestProxy_StreamsBodies(t *testing.T) {
	t.Parallel()
	c := start(t, nil)
	read := make(chan bool)
	for host, length := range map[string]string{"sized.example.com": "10", "chunked.example.com": ""} {
		c.serve(host[:5], "", backend(t, func(w http.ResponseWriter, _ *http.Request) {
			if length != "" {
				w.Header().Set("Content-Length", length)
			}
			_, _ = io.WriteString(w, "first")
			_ = http.NewResponseController(w).Flush()
			select {
			case <-read:
			case <-time.After(patience):
			}
			_, _ = io.WriteString(w, "other")
		}))
		c.route(host, host[:5], nil)
		client := c.browser(nil)
		part, response := make([]byte, 5), (*http.Response)(nil)
		require.Eventually(t, func() (served bool) {
			var err error
			response, err = client.Get("http://" + host + "/")
			require.NoError(t, err)
			if served = response.StatusCode == http.StatusOK; !served {
				_ = response.Body.Close()
			}
			return served
		}, patience, tick, host)
		_, err := io.ReadFull(response.Body, part)
		require.NoError(t, err)
		select {
		case read <- true: // the backend is still waiting
		case <-time.After(patience):
			t.Fatal("the first part was delayed", host)
		}
		rest, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		require.Equal(t, "firstother", string(part)+string(rest))
		_ = response.Body.Close()
	}
}

func TestProxy_SupportsHTTP2WithTrailersForGRPC(t *testing.T) {
	t.Parallel()
	c := start(t, nil)
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		require.Equal(t, "HTTP/2.0", r.Proto)
		require.Equal(t, "trailers", r.Header.Get("Te"))
		w.Header().Set("Content-Type", "application/grpc")
		_ = http.NewResponseController(w).Flush()
		line := make([]byte, 5)
		for { // a bidirectional stream: each message is answered before the next one
			if _, err := io.ReadFull(r.Body, line); err != nil {
				break
			}
			_, _ = w.Write(line)
			_ = http.NewResponseController(w).Flush()
		}
		w.Header().Set(http.TrailerPrefix+"Grpc-Status", "0")
	}))
	s.Config.Protocols = &protocols
	s.Start()
	t.Cleanup(s.Close)
	c.serve("grpc", "kubernetes.io/h2c", s)
	c.route("grpc.example.com", "grpc", func(i *networkingv1.Ingress) {
		i.Spec.TLS = []networkingv1.IngressTLS{{Hosts: []string{"grpc.example.com"}}}
	})
	client := c.browser(nil)
	c.eventually(client, "http://grpc.example.com/", 308, "")
	require.Eventually(t, func() bool { return c.h2stream(client) }, patience, tick)
}

// h2stream sends messages, and reports whether each was echoed at once, followed by the trailer.
func (c *cluster) h2stream(client *http.Client) bool {
	body, messages := io.Pipe()
	r, err := http.NewRequest("POST", "https://grpc.example.com/svc/Method", body)
	require.NoError(c.t, err)
	r.Header.Set("Te", "trailers")
	response, err := client.Do(r)
	if err != nil || response.StatusCode != 200 {
		return false
	}
	defer func() { _ = response.Body.Close() }()
	require.Equal(c.t, 2, response.ProtoMajor)
	line := make([]byte, 5)
	for i := range 3 {
		_, err := fmt.Fprintf(messages, "msg-%d", i)
		require.NoError(c.t, err)
		_, err = io.ReadFull(response.Body, line)
		require.NoError(c.t, err)
		require.Equal(c.t, fmt.Sprintf("msg-%d", i), string(line))
	}
	_ = messages.Close()
	_, _ = io.Copy(io.Discard, response.Body)
	return response.Trailer.Get("Grpc-Status") == "0"
}

func TestProxy_RetriesRequestsWhenAnEndpointIsKilled(t *testing.T) {
	t.Parallel()
	c := start(t, nil)
	one, two := backend(t, text("one")), backend(t, text("two"))
	c.serve("s", "", one, two)
	c.route("load.example.com", "s", nil)
	c.eventually(c.browser(nil), "http://load.example.com/", 200, "")
	var load sync.WaitGroup
	var sent, failed atomic.Int64
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	for range 8 {
		client := c.browser(nil)
		load.Go(func() {
			for ctx.Err() == nil {
				if status, body, _ := c.get(client, "http://load.example.com/"); status != 200 {
					failed.Add(1)
					t.Log(status, body)
				}
				sent.Add(1)
			}
		})
	}
	passed := func(n int64) {
		after := sent.Load() + n
		require.Eventually(t, func() bool { return sent.Load() > after }, patience, tick)
	}
	passed(200)
	_ = one.Listener.Close()
	one.CloseClientConnections()
	passed(1000)
	stop()
	load.Wait()
	require.Zero(t, failed.Load(), "of %d", sent.Load())
}

func TestProxy_DoesNotRetryABodyThatWasSent(t *testing.T) {
	t.Parallel()
	c := start(t, nil)
	var calls atomic.Int64
	dies := func(_ http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			calls.Add(1)
			_, _ = io.Copy(io.Discard, r.Body)
			panic(http.ErrAbortHandler)
		}
	}
	c.serve("s", "", backend(t, dies), backend(t, dies))
	c.route("post.example.com", "s", nil)
	client := c.browser(nil)
	c.eventually(client, "http://post.example.com/", 200, "")
	response, err := client.Post("http://post.example.com/", "text/plain", strings.NewReader("pay"))
	require.NoError(t, err)
	_ = response.Body.Close()
	require.Equal(t, 502, response.StatusCode)
	require.EqualValues(t, 1, calls.Load())
}

func TestProxy_RetriesABodyThatWasNotSent(t *testing.T) {
	t.Parallel()
	c := start(t, nil)
	closed := httptest.NewServer(text(""))
	closed.Close()
	c.serve("s", "", closed, closed, backend(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) }))
	c.route("post.example.com", "s", nil)
	client := c.browser(nil)
	c.eventually(client, "http://post.example.com/", 200, "")
	for range 20 {
		response, err := client.Post("http://post.example.com/", "text/plain", strings.NewReader("pay"))
		require.NoError(t, err)
		body, _ := io.ReadAll(response.Body)
		_ = response.Body.Close()
		require.Equal(t, "200 pay", fmt.Sprint(response.StatusCode, " ", string(body)))
	}
}

func TestProxy_LimitsBodiesAndWaiting(t *testing.T) {
	t.Parallel()
	c := start(t, nil)
	c.serve("s", "", backend(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if r.URL.Path == "/slow" {
			<-r.Context().Done()
		}
	}))
	c.route("limit.example.com", "s", func(i *networkingv1.Ingress) {
		i.Annotations = map[string]string{AnnotationBodySize: "1k", AnnotationReadTimeout: "1"}
	})
	client := c.browser(nil)
	c.eventually(client, "http://limit.example.com/", 200, "")
	post := func(body io.Reader) int {
		response, err := client.Post("http://limit.example.com/", "text/plain", body)
		require.NoError(t, err)
		_ = response.Body.Close()
		return response.StatusCode
	}
	require.Equal(t, 200, post(strings.NewReader(strings.Repeat("x", 1024))))
	require.Equal(t, 413, post(strings.NewReader(strings.Repeat("x", 1025))))
	require.Equal(t, 413, post(io.MultiReader(strings.NewReader(strings.Repeat("x", 1025)))), "a chunked body")
	status, _, _ := c.get(client, "http://limit.example.com/slow")
	require.Equal(t, 504, status)
}

func TestProxy_DisconnectsSlowAndTooManyClients(t *testing.T) {
	t.Parallel()
	c := start(t, func(o *Options) { o.HeaderTimeout, o.MaxConnectionsPerClient = 100*time.Millisecond, 3 })
	ended := func(conn net.Conn) {
		t.Helper()
		require.NoError(t, conn.SetReadDeadline(time.Now().Add(patience)))
		_, err := io.ReadAll(conn)
		if e, ok := err.(net.Error); ok {
			require.False(t, e.Timeout(), "the proxy did not close the connection")
		}
		_ = conn.Close()
	}
	slow, err := net.Dial("tcp", c.http)
	require.NoError(t, err)
	_, _ = io.WriteString(slow, "GET / HTTP/1.1\r\nHost: a\r\nX-A")
	ended(slow)
	var open []net.Conn
	for range 3 {
		conn, err := net.Dial("tcp", c.https) // the TLS handshake has the time limit of a header
		require.NoError(t, err)
		open = append(open, conn)
	}
	more, err := net.Dial("tcp", c.http)
	require.NoError(t, err)
	ended(more)
	for _, conn := range open {
		ended(conn)
	}
	require.Eventually(t, func() bool {
		status, _, _ := c.get(c.browser(nil), "http://a.example.com/")
		return status == 404
	}, patience, tick, "closed connections count no more")
}

func TestRun_ShutsDownGracefully(t *testing.T) {
	t.Parallel()
	log := &lockedBuffer{}
	c := start(t, func(o *Options) { o.AccessLog = log })
	arrived, release := make(chan struct{}), make(chan struct{})
	c.serve("s", "", backend(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			close(arrived)
			<-release
		}
		_, _ = io.WriteString(w, "done")
	}))
	c.route("drain.example.com", "s", nil)
	client := c.browser(nil)
	c.eventually(client, "http://drain.example.com/", 200, "done")
	status, _, _ := c.get(http.DefaultClient, "http://"+c.health+"/healthz")
	require.Equal(t, 200, status)
	answer := make(chan string, 1)
	go func() {
		status, body, _ := c.get(client, "http://drain.example.com/slow")
		answer <- fmt.Sprint(status, " ", body)
	}()
	<-arrived
	stopped := make(chan struct{})
	go func() { defer close(stopped); c.stop() }()
	require.Eventually(t, func() bool {
		conn, err := net.Dial("tcp", c.http)
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	}, patience, tick)
	close(release)
	require.Equal(t, "200 done", <-answer)
	<-stopped
	last := map[string]any{}
	lines := strings.Split(strings.TrimSpace(log.String()), "\n")
	require.NoError(t, json.Unmarshal([]byte(lines[len(lines)-1]), &last))
	require.Equal(t, "/slow", last["uri"])
	require.EqualValues(t, 200, last["status"])
	require.Equal(t, "192.0.2.1:8080", last["upstream"])
	http.DefaultClient.CloseIdleConnections()
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
