package aggregation_test

import (
	"crypto/tls"
	"net"
	"net/http"
)

// netDialer opens connections with the TLS settings of a client.
type netDialer struct{ *http.Transport }

func (d *netDialer) dial(address string) (net.Conn, error) {
	return tls.Dial("tcp", address, d.TLSClientConfig)
}
