package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/pki"
	"github.com/coxswain-dev/coxswain/cmd/coxswain/certs"
)

// frontProxyFlags select the front proxies that the API server trusts, and its own certificate as a front proxy. If no
// file is set, the control plane's own CA signs both.
type frontProxyFlags struct {
	caFile, certFile, keyFile string
	allowedNames              []string
	headers                   authn.IdentityHeaders
}

func (f *frontProxyFlags) add(fs *pflag.FlagSet) {
	fs.StringVar(&f.caFile, "requestheader-client-ca-file", "", "CAs of front proxies, which name the user of a "+
		"request in headers (default one of our own, pki/front-proxy-ca.crt in --data-dir)")
	fs.StringSliceVar(&f.allowedNames, "requestheader-allowed-names", nil, "common names of front proxies' "+
		"certificates; none allows all certificates of the CAs (default "+certs.FrontProxyClient+" with our own CA)")
	h := authn.StandardIdentityHeaders()
	fs.StringSliceVar(&f.headers.Users, "requestheader-username-headers", h.Users, "headers with the user's name")
	fs.StringSliceVar(&f.headers.UIDs, "requestheader-uid-headers", h.UIDs, "headers with the user's UID")
	fs.StringSliceVar(&f.headers.Groups, "requestheader-group-headers", h.Groups, "headers with the user's groups")
	fs.StringSliceVar(&f.headers.ExtraPrefixes, "requestheader-extra-headers-prefix", h.ExtraPrefixes,
		"prefixes of headers with more about the user")
	fs.StringVar(&f.certFile, "proxy-client-cert-file", "", "client certificate of the API server for extension "+
		"servers; its CA is in --requestheader-client-ca-file (default one of our own CA of front proxies)")
	fs.StringVar(&f.keyFile, "proxy-client-key-file", "", "key of --proxy-client-cert-file")
}

// ownFrontProxy reports whether no file is set.
func (f *frontProxyFlags) ownFrontProxy() bool {
	return f.caFile == "" && f.certFile == "" && f.keyFile == ""
}

// trusted returns the front proxies that the API server trusts, or nil if there are none.
func (f *frontProxyFlags) trusted(own *certs.Authorities, clients authn.CAs) (*authn.RequestHeader, error) {
	if err := f.check(); err != nil {
		return nil, err
	}
	r := &authn.RequestHeader{AllowedNames: f.allowedNames, Headers: f.headers}
	switch {
	case f.ownFrontProxy():
		ca, err := own.FrontProxy()
		if err != nil {
			return nil, err
		}
		r.CAs = authn.PublishedCAs(ca.PEM())
		if len(r.AllowedNames) == 0 {
			r.AllowedNames = []string{certs.FrontProxyClient}
		}
		return r, nil
	case f.caFile == "":
		return nil, nil
	}
	var err error
	if r.CAs, err = authn.OpenCAs(slog.Default(), nil, f.caFile); err != nil {
		return nil, fmt.Errorf("--requestheader-client-ca-file: %w", err)
	}
	if len(r.AllowedNames) == 0 && overlap(r.CAs.PEM(), clients.PEM()) {
		return nil, errors.New("--requestheader-client-ca-file and --client-ca-file contain overlapping " +
			"certificates; --requestheader-allowed-names must be specified to ensure regular client certificates " +
			"cannot set authenticating proxy headers for arbitrary users")
	}
	return r, nil
}

// certificate returns the API server's own certificate as a front proxy, or nil if it has none.
func (f *frontProxyFlags) certificate(own *certs.Authorities) (func() (*tls.Certificate, error), error) {
	switch {
	case f.ownFrontProxy():
		ca, err := own.FrontProxy()
		if err != nil {
			return nil, err
		}
		return ca.ClientCertificate(certs.FrontProxyClient).Current, nil
	case f.certFile == "" && f.keyFile == "":
		slog.Warn("extension servers cannot authenticate this server's requests: there is no --proxy-client-cert-file")
		return nil, nil
	case f.certFile == "" || f.keyFile == "":
		return nil, errors.New("--proxy-client-cert-file and --proxy-client-key-file must be specified together")
	}
	cert, err := pki.CertificateFiles(slog.Default(), f.certFile, f.keyFile)
	if err != nil {
		return nil, fmt.Errorf("--proxy-client-cert-file: %w", err)
	}
	return cert.Current, nil
}

// check trims the names of headers, and rejects empty names.
func (f *frontProxyFlags) check() error {
	standard := authn.StandardIdentityHeaders()
	for _, list := range []struct {
		flag            string
		names, standard []string
	}{
		{"requestheader-username-headers", f.headers.Users, standard.Users},
		{"requestheader-uid-headers", f.headers.UIDs, standard.UIDs},
		{"requestheader-group-headers", f.headers.Groups, standard.Groups},
		{"requestheader-extra-headers-prefix", f.headers.ExtraPrefixes, standard.ExtraPrefixes},
	} {
		for i, name := range list.names {
			if list.names[i] = strings.TrimSpace(name); list.names[i] == "" {
				return fmt.Errorf("empty value in %q", list.flag)
			}
		}
		expected := list.standard[0]
		if len(list.names) == 0 || slices.ContainsFunc(list.names, func(name string) bool {
			return strings.EqualFold(name, expected)
		}) {
			continue
		}
		missing := fmt.Sprintf("--%s is set without specifying the standard %s header - API aggregation will not work",
			list.flag, expected)
		// The flags for other headers are older than this check, so that existing clusters may have other names.
		if list.flag == "requestheader-uid-headers" {
			return errors.New(missing)
		}
		slog.Warn(missing)
	}
	for _, name := range f.allowedNames {
		if strings.TrimSpace(name) == "" {
			return errors.New(`empty value in "requestheader-allowed-names"`)
		}
	}
	return nil
}

// overlap reports whether two bundles have a certificate in common.
func overlap(a, b []byte) bool {
	certificates := func(bundle []byte) (all []*x509.Certificate) {
		for block, rest := pem.Decode(bundle); block != nil; block, rest = pem.Decode(rest) {
			if cert, err := x509.ParseCertificate(block.Bytes); err == nil {
				all = append(all, cert)
			}
		}
		return all
	}
	others := certificates(b)
	return slices.ContainsFunc(certificates(a), func(cert *x509.Certificate) bool {
		return slices.ContainsFunc(others, cert.Equal)
	})
}
