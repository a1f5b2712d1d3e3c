package authn

import (
	"crypto/x509"
	"errors"
	"log/slog"

	"github.com/coxswain-dev/coxswain/apiserver/reload"
)

// OpenCAs returns our own CAs, in PEM, and those of files, which are read again when they change.
func OpenCAs(log *slog.Logger, own []byte, files ...string) (CAs, error) {
	pools, err := reload.Open(log, func(contents [][]byte) (*x509.CertPool, error) {
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(own)
		for _, content := range contents {
			if !pool.AppendCertsFromPEM(content) {
				return nil, errors.New("no certificates")
			}
		}
		return pool, nil
	}, files...)
	if err != nil {
		return nil, err
	}
	return fileCAs{pools}, nil
}

type fileCAs struct{ pools *reload.Files[*x509.CertPool] }

func (f fileCAs) Pool() *x509.CertPool { return f.pools.Current() }
