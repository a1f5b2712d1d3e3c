package certs

import (
	"crypto/tls"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/coxswain-dev/coxswain/apiserver/pki"
)

// HostsCertificate is a certificate of the server's own CA, to which hosts can be added. It is safe for concurrent use.
type HostsCertificate struct {
	ca      *pki.CA
	current atomic.Pointer[pki.Certificate]

	mu    sync.Mutex // guards hosts
	hosts []string
}

// NewHostsCertificate issues a certificate for hosts.
func NewHostsCertificate(ca *pki.CA, hosts ...string) (*HostsCertificate, error) {
	c := &HostsCertificate{ca: ca}
	return c, c.Add(hosts...)
}

// Add makes the certificate valid for further hosts.
func (c *HostsCertificate) Add(hosts ...string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := slices.Compact(slices.Sorted(slices.Values(slices.Concat(c.hosts, hosts))))
	cert, err := c.ca.Serving(all...)
	if err != nil {
		return err
	}
	c.hosts = all
	c.current.Store(&cert)
	return nil
}

// Current implements pki.Certificate.
func (c *HostsCertificate) Current() (*tls.Certificate, error) { return (*c.current.Load()).Current() }
