package authn

import (
	"bytes"
	"crypto/x509"
	"errors"
	"log/slog"

	"github.com/coxswain-dev/coxswain/apiserver/reload"
)

// OpenCAs returns our own CAs, in PEM, and the CAs of files, which are read again when they change.
func OpenCAs(log *slog.Logger, own []byte, files ...string) (CAs, error) {
	bundles, err := reload.Open(log, func(contents [][]byte) (bundle, error) {
		b := bundle{x509.NewCertPool(), bytes.Clone(own)}
		b.pool.AppendCertsFromPEM(own)
		for _, content := range contents {
			if !b.pool.AppendCertsFromPEM(content) {
				return bundle{}, errors.New("no certificates")
			}
			b.pem = append(append(b.pem, content...), '\n')
		}
		return b, nil
	}, files...)
	if err != nil {
		return nil, err
	}
	return fileCAs{bundles}, nil
}

// bundle is a set of CAs in both forms.
type bundle struct {
	pool *x509.CertPool
	pem  []byte
}

type fileCAs struct{ bundles *reload.Files[bundle] }

func (f fileCAs) Pool() *x509.CertPool { return f.bundles.Current().pool }
func (f fileCAs) PEM() []byte          { return f.bundles.Current().pem }
