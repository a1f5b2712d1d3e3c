package authn

import (
	"crypto/x509"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A rejected certificate is verified once a second, even if the clock is set; a valid one is verified once.
func TestVerification_CachesRejectionsForASecond(t *testing.T) {
	t.Parallel()
	cas, now, verified := x509.NewCertPool(), time.Unix(1e9, 0), 0
	chain := []*x509.Certificate{{NotBefore: now.Add(time.Hour), NotAfter: now.Add(2 * time.Hour)}}
	verify := func(_ *x509.CertPool, now time.Time, chain []*x509.Certificate) (*User, error) {
		verified++
		if now.Before(chain[0].NotBefore) {
			return nil, errors.New("not yet")
		}
		return &User{Name: "ann"}, nil
	}
	var v verification
	for _, c := range []struct {
		after    time.Duration
		verified int
		good     bool
	}{
		{0, 1, false}, {refusalKept - 1, 1, false}, {refusalKept, 2, false}, {0, 3, false}, {time.Hour, 4, true},
		{time.Hour + refusalKept, 4, true}, {2*time.Hour + 1, 4, false},
	} {
		user, err := v.current(cas, now.Add(c.after), chain, verify)
		require.Equal(t, c.good, err == nil, c.after)
		require.Equal(t, c.good, user != nil, c.after)
		require.Equal(t, c.verified, verified, c.after)
	}
}
