package node

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	certificatesv1 "k8s.io/api/certificates/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"
)

// signed returns a certificate for a request, in PEM.
func signed(t *testing.T, csr *certificatesv1.CertificateSigningRequest) []byte {
	block, _ := pem.Decode(csr.Spec.Request)
	request, err := x509.ParseCertificateRequest(block.Bytes)
	require.NoError(t, err)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: request.Subject, DNSNames: request.DNSNames}
	der, err := x509.CreateCertificate(rand.Reader, template, template, request.PublicKey, key)
	require.NoError(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// The agent looks at its request after pauses that double, until the certificate is issued.
func TestRequestCertificate_BacksOffUntilItIsIssued(t *testing.T) {
	t.Parallel()
	clock, client := clocktesting.NewFakeClock(time.Unix(1_800_000_000, 0)), fake.NewClientset()
	a := &agent{Options: Options{Names: []string{"node-0"}, Address: "127.0.0.1", Clock: clock}}
	const looks = 11
	var mu sync.Mutex
	var csr *certificatesv1.CertificateSigningRequest
	last, pauses := clock.Now(), []time.Duration{}
	client.PrependReactor("*", "certificatesigningrequests",
		func(action clienttesting.Action) (bool, apiruntime.Object, error) {
			mu.Lock()
			defer mu.Unlock()
			if create, ok := action.(clienttesting.CreateAction); ok {
				csr = create.GetObject().(*certificatesv1.CertificateSigningRequest)
				csr.Name = "csr-1"
				return true, csr, nil
			}
			pauses, last = append(pauses, clock.Since(last)), clock.Now()
			answer := csr.DeepCopy()
			if len(pauses) == looks {
				answer.Status.Certificate = signed(t, csr)
			}
			return true, answer, nil
		})
	done := make(chan error, 1)
	go func() {
		cert, err := a.requestCertificate(context.Background(), client)
		if err == nil {
			err = cert.Leaf.VerifyHostname("node-0")
		}
		done <- err
	}()
	require.Eventually(t, func() bool {
		if clock.HasWaiters() {
			clock.Step(certificatePoll)
		}
		return len(done) == 1
	}, time.Minute, 10*time.Microsecond)
	require.NoError(t, <-done)
	require.Len(t, pauses, looks)
	for i, pause := range pauses {
		base := min(certificatePoll<<i, certificatePollMost)
		require.GreaterOrEqual(t, pause, base, "look %d", i)
		require.LessOrEqual(t, pause, base*6/5+certificatePoll, "look %d", i)
	}
}
