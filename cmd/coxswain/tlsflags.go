package main

import (
	"crypto/tls"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// tlsFlags configure the TLS of a server. They have Kubernetes' names.
type tlsFlags struct {
	minVersion string
	suites     []string
}

var tlsVersions = map[string]uint16{
	"VersionTLS10": tls.VersionTLS10, "VersionTLS11": tls.VersionTLS11, "VersionTLS12": tls.VersionTLS12,
	"VersionTLS13": tls.VersionTLS13,
}

func (f *tlsFlags) add(fs *pflag.FlagSet) {
	fs.StringVar(&f.minVersion, "tls-min-version", "VersionTLS12", "lowest version of TLS to accept: "+
		strings.Join(slices.Sorted(maps.Keys(tlsVersions)), ", "))
	fs.StringSliceVar(&f.suites, "tls-cipher-suites", nil, "cipher suites for TLS 1.2 and before, by Go's names: "+
		strings.Join(suiteNames(tls.CipherSuites()), ", ")+
		"; insecure ones: "+strings.Join(suiteNames(tls.InsecureCipherSuites()), ", ")+
		" (default: suites with forward secrecy and authenticated encryption)")
}

func suiteNames(suites []*tls.CipherSuite) []string {
	var names []string
	for _, s := range suites {
		// crypto/tls does not let programs choose the cipher suites of TLS 1.3.
		if slices.ContainsFunc(s.SupportedVersions, func(v uint16) bool { return v < tls.VersionTLS13 }) {
			names = append(names, s.Name)
		}
	}
	return names
}

// apply applies the flags to a configuration, and rejects invalid ones.
func (f *tlsFlags) apply(c *tls.Config) error {
	version, ok := tlsVersions[f.minVersion]
	if !ok && f.minVersion != "" {
		return fmt.Errorf("--tls-min-version: %q is not one of: %s", f.minVersion,
			strings.Join(slices.Sorted(maps.Keys(tlsVersions)), ", "))
	}
	if ok {
		c.MinVersion = version
	}
	if len(f.suites) == 0 {
		return nil
	}
	c.CipherSuites = nil
	suites := slices.Concat(tls.CipherSuites(), tls.InsecureCipherSuites())
	for _, name := range f.suites {
		i := slices.IndexFunc(suites, func(s *tls.CipherSuite) bool { return s.Name == name })
		if i < 0 {
			return fmt.Errorf("--tls-cipher-suites: cipher suite %q is not supported or does not exist", name)
		}
		c.CipherSuites = append(c.CipherSuites, suites[i].ID)
	}
	// RFC 9113, section 9.2.2. Without one of these net/http refuses to serve.
	required := []uint16{tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256}
	if c.MinVersion < tls.VersionTLS13 && slices.Contains(c.NextProtos, "h2") &&
		!slices.ContainsFunc(c.CipherSuites, func(id uint16) bool { return slices.Contains(required, id) }) {
		return fmt.Errorf("--tls-cipher-suites: HTTP/2 needs %s or %s", tls.CipherSuiteName(required[0]),
			tls.CipherSuiteName(required[1]))
	}
	return nil
}
