package main

import (
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/pflag"

	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/pki"
)

// authnFlags say which credentials the API server accepts besides client certificates.
type authnFlags struct {
	issuers          []string
	signingKeyFile   string
	keyFiles         []string
	audiences        []string
	jwksURI          string
	maxExpiration    time.Duration
	extendExpiration bool
}

func (f *authnFlags) add(fs *pflag.FlagSet) {
	fs.StringSliceVar(&f.issuers, "service-account-issuer", nil, "issuers of service account tokens; the first signs, all are accepted (default "+authn.DefaultIssuer+")")
	fs.StringVar(&f.signingKeyFile, "service-account-signing-key-file", "", "private key that signs service account tokens (default one of our own, pki/sa.key in --data-dir)")
	fs.StringSliceVar(&f.keyFiles, "service-account-key-file", nil, "further keys, public or private, whose service account tokens are accepted")
	fs.StringSliceVar(&f.audiences, "api-audiences", nil, "names of the API server, one of which a token must bear (default --service-account-issuer)")
	fs.StringVar(&f.jwksURI, "service-account-jwks-uri", "", "where others find the public keys of service account tokens (default below the issuer)")
	fs.DurationVar(&f.maxExpiration, "service-account-max-token-expiration", 0, "longest life of a service account token, an hour at least; 0 is no bound")
	fs.BoolVar(&f.extendExpiration, "service-account-extend-token-expiration", true, "sign the tokens of pods for a year, for clients that do not read them again")
}

// options are what the flags say; keys that they do not name are in the data directory.
func (f *authnFlags) options(dataDir string) (authn.Options, error) {
	var o authn.Options
	var err error
	o.ServiceAccounts, err = f.issuer(dataDir)
	return o, err
}

func (f *authnFlags) issuer(dataDir string) (*authn.Issuer, error) {
	o := authn.IssuerOptions{
		Issuers: f.issuers, Audiences: f.audiences, JWKSURI: f.jwksURI,
		MaxExpiration: f.maxExpiration, KeepExpiration: !f.extendExpiration,
	}
	if f.maxExpiration != 0 && (f.maxExpiration < time.Hour || f.maxExpiration > 1<<32*time.Second) {
		return nil, fmt.Errorf("--service-account-max-token-expiration: %s is not between an hour and 2^32 seconds", f.maxExpiration)
	}
	file := f.signingKeyFile
	if file == "" {
		file = filepath.Join(dataDir, "pki", "sa.key")
		if err := pki.EnsureKey(file); err != nil {
			return nil, err
		}
	}
	var err error
	if o.SigningKey, err = authn.ReadSigningKey(file); err != nil {
		return nil, fmt.Errorf("--service-account-signing-key-file: %w", err)
	}
	for _, file := range f.keyFiles {
		keys, err := authn.ReadPublicKeys(file)
		if err != nil {
			return nil, fmt.Errorf("--service-account-key-file: %w", err)
		}
		o.Keys = append(o.Keys, keys...)
	}
	return authn.NewIssuer(o)
}
