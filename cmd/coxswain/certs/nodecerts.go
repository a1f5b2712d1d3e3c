package certs

import (
	"cmp"
	"crypto/tls"
	"net"
	"sync"

	"github.com/coxswain-dev/coxswain/apiserver/pki"
)

// NodeCertificates issues a serving certificate for each address of simulated Nodes that a client connects to. It is
// safe for concurrent use.
type NodeCertificates struct {
	Issue func(hosts ...string) (pki.Certificate, error)
	Name  string // of the first Node, which the certificates are for as well

	mu  sync.Mutex // guards all
	all map[string]pki.Certificate
}

// maxNodeCertificates bounds the certificates in memory: there are at most as many Nodes, but clients may connect to
// other addresses of the machine.
const maxNodeCertificates = 10000

// Get implements tls.Config.GetCertificate.
func (c *NodeCertificates) Get(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	host, _, _ := net.SplitHostPort(hello.Conn.LocalAddr().String())
	cert, err := c.at(cmp.Or(host, "127.0.0.1"))
	if err != nil {
		return nil, err
	}
	return cert.Current()
}

func (c *NodeCertificates) at(host string) (pki.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if cert := c.all[host]; cert != nil {
		return cert, nil
	}
	cert, err := c.Issue(host, c.Name)
	if err != nil {
		return nil, err
	}
	if c.all == nil || len(c.all) >= maxNodeCertificates {
		c.all = map[string]pki.Certificate{}
	}
	c.all[host] = cert
	return cert, nil
}
