package ingress

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"log/slog"
	"math/big"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// maxSecrets limits the watched Secrets. Hosts with further ones get the default certificate.
const maxSecrets = 4096

// certificatePair is a certificate with its key.
type certificatePair = tls.Certificate

// certificate is the current certificate of a Secret. It is safe for concurrent use.
type certificate struct {
	now   atomic.Pointer[issued] // nil if there is none
	seen  chan struct{}          // closed after the first lookup of the Secret
	once  sync.Once
	users map[types.NamespacedName]int // Ingresses with their number of holds; only for the goroutine of secrets
	end   context.CancelFunc
}

func newCertificate() *certificate {
	return &certificate{seen: make(chan struct{}), users: map[types.NamespacedName]int{}, end: func() {}}
}

// covering returns the certificate if it is valid for a host in lower case, which may be a wildcard, else nil.
func (c *certificate) covering(host string) *certificatePair {
	i := c.now.Load()
	if i == nil || !i.names[host] && !i.names[wildcardOf(host)] {
		return nil
	}
	return i.pair
}

// issued is a certificate with the names that it is valid for, in lower case: its DNS subject alternative names, or its
// common name if there are none.
type issued struct {
	pair  *certificatePair
	names map[string]bool
}

func newIssued(pair *certificatePair) *issued {
	i := &issued{pair, map[string]bool{}}
	for _, name := range pair.Leaf.DNSNames {
		i.names[strings.ToLower(name)] = true
	}
	if len(i.names) == 0 {
		i.names[strings.ToLower(pair.Leaf.Subject.CommonName)] = true
	}
	return i
}

// secrets watches the Secrets of Ingresses, each by its name. It reads no other Secrets, so a role can be limited to
// the necessary names. hold and release must be called by one goroutine.
type secrets struct {
	ctx     context.Context
	client  kubernetes.Interface
	log     *slog.Logger
	changed func(key types.NamespacedName) // called by many goroutines
	byKey   map[types.NamespacedName]*certificate
	watches sync.WaitGroup
}

func newSecrets(ctx context.Context, client kubernetes.Interface, log *slog.Logger,
	changed func(types.NamespacedName)) *secrets {
	return &secrets{ctx: ctx, client: client, log: log, changed: changed,
		byKey: map[types.NamespacedName]*certificate{}}
}

// hold returns the certificate of a Secret for an Ingress. The Secret is watched until the last release.
func (s *secrets) hold(key, user types.NamespacedName) *certificate {
	c := s.byKey[key]
	if c == nil {
		c = newCertificate()
		s.byKey[key] = c
		if len(s.byKey) > maxSecrets {
			s.log.Warn("not watching a Secret: the limit of Secrets is reached", "secret", key, "limit", maxSecrets)
			close(c.seen)
		} else {
			s.watch(key, c)
		}
	}
	c.users[user]++
	return c
}

// release reverts one hold.
func (s *secrets) release(key, user types.NamespacedName) {
	c := s.byKey[key]
	if c == nil {
		return
	}
	if c.users[user]--; c.users[user] <= 0 {
		delete(c.users, user)
	}
	if len(c.users) == 0 {
		c.end()
		delete(s.byKey, key)
	}
}

func (s *secrets) watch(key types.NamespacedName, c *certificate) {
	var ctx context.Context
	ctx, c.end = context.WithCancel(s.ctx)
	byName := func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, key.Name).String()
	}
	lw := cache.NewFilteredListWatchFromClient(s.client.CoreV1().RESTClient(), "secrets", key.Namespace, byName)
	reflector := cache.NewReflectorWithOptions(lw, &corev1.Secret{}, &secretView{key, c, s.log, s.changed},
		cache.ReflectorOptions{Name: "certificates of Ingresses"})
	s.watches.Go(func() { reflector.RunWithContext(ctx) })
}

// secretView is the store of a reflector for one Secret. It keeps only the certificate.
type secretView struct {
	key         types.NamespacedName
	certificate *certificate
	log         *slog.Logger
	changed     func(types.NamespacedName)
}

// Add implements cache.ReflectorStore.
func (v *secretView) Add(o any) error { v.see(o); return nil }

// Update implements cache.ReflectorStore.
func (v *secretView) Update(o any) error { v.see(o); return nil }

// Delete implements cache.ReflectorStore.
func (v *secretView) Delete(any) error { v.set(nil); return nil }

// Resync implements cache.ReflectorStore.
func (v *secretView) Resync() error { return nil }

// Replace implements cache.ReflectorStore.
func (v *secretView) Replace(list []any, _ string) error {
	defer v.certificate.once.Do(func() { close(v.certificate.seen) })
	if len(list) == 0 {
		v.set(nil)
		return nil
	}
	v.see(list[0])
	return nil
}

// see updates the certificate from a Secret. If the Secret has no valid one, the previous certificate stays.
func (v *secretView) see(o any) {
	secret, ok := o.(*corev1.Secret)
	if !ok {
		return
	}
	pair, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		v.log.Warn("cannot use the certificate of a Secret", "secret", v.key, "err", err)
		return
	}
	v.set(newIssued(&pair))
}

func (v *secretView) set(i *issued) {
	v.certificate.now.Store(i)
	v.changed(v.key)
}

// selfSigned creates the certificate for hosts without one. Clients do not trust it.
func selfSigned(now time.Time) (*certificatePair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	const name = "Coxswain Ingress Default Certificate"
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name}, DNSNames: []string{"ingress.invalid"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.AddDate(1, 0, 0),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	return &certificatePair{Certificate: [][]byte{der}, PrivateKey: key}, nil
}
