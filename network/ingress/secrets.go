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

// maxSecrets bounds how many Secrets are watched. Hosts of others have the default certificate.
const maxSecrets = 4096

// certificatePair is a certificate with its key.
type certificatePair = tls.Certificate

// certificate is what is known of the certificate in a Secret. It is safe for concurrent use.
type certificate struct {
	now   atomic.Pointer[issued] // nil where there is none
	seen  chan struct{}          // closed once the Secret has been looked up
	once  sync.Once
	users map[types.NamespacedName]int // Ingresses, and how often each holds it; of the goroutine of secrets
	end   context.CancelFunc
}

func newCertificate() *certificate {
	return &certificate{seen: make(chan struct{}), users: map[types.NamespacedName]int{}, end: func() {}}
}

// covering returns the certificate if it is valid for a host in lower case, which may be a wildcard; nil otherwise.
func (c *certificate) covering(host string) *certificatePair {
	i := c.now.Load()
	if i == nil || !i.names[host] && !i.names[wildcardOf(host)] {
		return nil
	}
	return i.pair
}

// issued is a certificate with the names that it is valid for, in lower case: the DNS names among its subject's
// alternative names, or without any its subject's common name.
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

// secrets watch the Secrets that Ingresses name, each by its name: nothing else is read of the cluster's Secrets, and
// a role may name those that the controller needs. hold and release belong to one goroutine.
type secrets struct {
	ctx     context.Context
	client  kubernetes.Interface
	log     *slog.Logger
	changed func(key types.NamespacedName) // is called by many goroutines
	byKey   map[types.NamespacedName]*certificate
	watches sync.WaitGroup
}

func newSecrets(ctx context.Context, client kubernetes.Interface, log *slog.Logger,
	changed func(types.NamespacedName)) *secrets {
	return &secrets{ctx: ctx, client: client, log: log, changed: changed,
		byKey: map[types.NamespacedName]*certificate{}}
}

// hold returns the certificate of a Secret for an Ingress, and has it watched until the last release.
func (s *secrets) hold(key, by types.NamespacedName) *certificate {
	c := s.byKey[key]
	if c == nil {
		c = newCertificate()
		s.byKey[key] = c
		if len(s.byKey) > maxSecrets {
			s.log.Warn("too many Secrets of Ingresses: this one is not watched", "secret", key, "limit", maxSecrets)
			close(c.seen)
		} else {
			s.watch(key, c)
		}
	}
	c.users[by]++
	return c
}

// release undoes one hold.
func (s *secrets) release(key, by types.NamespacedName) {
	c := s.byKey[key]
	if c == nil {
		return
	}
	if c.users[by]--; c.users[by] <= 0 {
		delete(c.users, by)
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

// secretView is where a reflector puts what it sees of a Secret. Of that, the certificate alone is kept.
type secretView struct {
	key     types.NamespacedName
	of      *certificate
	log     *slog.Logger
	changed func(types.NamespacedName)
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
	defer v.of.once.Do(func() { close(v.of.seen) })
	if len(list) == 0 {
		v.set(nil)
		return nil
	}
	v.see(list[0])
	return nil
}

// see takes up a Secret. One without a usable certificate leaves the certificate before it in place.
func (v *secretView) see(o any) {
	secret, ok := o.(*corev1.Secret)
	if !ok {
		return
	}
	pair, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		v.log.Warn("a Secret of an Ingress has no usable certificate", "secret", v.key, "err", err)
		return
	}
	v.set(newIssued(&pair))
}

func (v *secretView) set(i *issued) {
	v.of.now.Store(i)
	v.changed(v.key)
}

// selfSigned makes the certificate for hosts that have none. Clients do not trust it.
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
