package etcd

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/coxswain-dev/coxswain/storage"
)

// ExternalOptions correspond to the --etcd-* flags.
type ExternalOptions struct {
	Servers                   []string
	CAFile, CertFile, KeyFile string
	Prefix                    string        // "/registry" when empty
	DialTimeout               time.Duration // 5 s when zero
	Log                       *slog.Logger  // slog.Default when nil
}

// A silent connection is probed after keepAliveTime and closed keepAliveTimeout later, so that a server that vanished
// is noticed. Tests change keepAliveTime before any of them runs.
const keepAliveTimeout = 3 * time.Second

var keepAliveTime = 10 * time.Second // the least that gRPC takes

// DialExternal connects to an etcd cluster. It returns without waiting for the cluster.
func DialExternal(o ExternalOptions) (storage.Backend, error) {
	if len(o.Servers) == 0 {
		return nil, errors.New("storage: no etcd servers given")
	}
	tlsConfig, err := o.tls()
	if err != nil {
		return nil, fmt.Errorf("storage: etcd TLS: %w", err)
	}
	if o.DialTimeout == 0 {
		o.DialTimeout = 5 * time.Second
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints:            o.Servers,
		DialTimeout:          o.DialTimeout,
		DialKeepAliveTime:    keepAliveTime,
		DialKeepAliveTimeout: keepAliveTimeout,
		TLS:                  tlsConfig,
		DialOptions:          manyMembers(o.Servers, tlsConfig),
		Logger:               etcdLogger(o.Log),
	})
	if err != nil {
		return nil, fmt.Errorf("storage: dial etcd: %w", err)
	}
	b := newBackend(client, o.Prefix)
	if len(o.Servers) > 1 {
		b.elections = &elections{client: client, key: b.prefix}
	}
	b.closer = sync.OnceValue(client.Close)
	return b, nil
}

// tls returns the TLS configuration, or nil if no file is configured. The client certificate is reread for every
// connection, so that it can be rotated while the server runs.
func (o ExternalOptions) tls() (*tls.Config, error) {
	if o.CAFile == "" && o.CertFile == "" && o.KeyFile == "" {
		return nil, nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if o.CAFile != "" {
		pem, err := os.ReadFile(o.CAFile)
		if err != nil {
			return nil, err
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s has no certificate", o.CAFile)
		}
	}
	if (o.CertFile == "") != (o.KeyFile == "") {
		return nil, errors.New("a client certificate needs both its certificate and its key file")
	}
	if o.CertFile == "" {
		return config, nil
	}
	if _, err := tls.LoadX509KeyPair(o.CertFile, o.KeyFile); err != nil {
		return nil, err
	}
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(o.CertFile, o.KeyFile)
		return &pair, err
	}
	return config, nil
}
