package main

import (
	"cmp"
	"crypto/tls"
	"net"
	"runtime"
	"sync"

	"github.com/coxswain-dev/coxswain/apiserver/pki"
)

// hasLoopbackNetwork reports whether every address in 127.0.0.0/8 is this machine's, as on Linux. Elsewhere 127.0.0.1
// alone is.
const hasLoopbackNetwork = runtime.GOOS == "linux"

// nodeCertificates issues a serving certificate for each address of simulated Nodes that a client connects to. It is
// safe for concurrent use.
type nodeCertificates struct {
	issue func(hosts ...string) (pki.Certificate, error)
	name  string // of the first Node, which the certificates are for as well

	mu  sync.Mutex // guards all
	all map[string]pki.Certificate
}

// maxNodeCertificates bounds the certificates in memory: there are at most as many Nodes, but clients may connect to
// other addresses of the machine.
const maxNodeCertificates = 10000

// get implements tls.Config.GetCertificate.
func (c *nodeCertificates) get(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	host, _, _ := net.SplitHostPort(hello.Conn.LocalAddr().String())
	cert, err := c.at(cmp.Or(host, "127.0.0.1"))
	if err != nil {
		return nil, err
	}
	return cert.Current()
}

func (c *nodeCertificates) at(host string) (pki.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if cert := c.all[host]; cert != nil {
		return cert, nil
	}
	cert, err := c.issue(host, c.name)
	if err != nil {
		return nil, err
	}
	if c.all == nil || len(c.all) >= maxNodeCertificates {
		c.all = map[string]pki.Certificate{}
	}
	c.all[host] = cert
	return cert, nil
}
