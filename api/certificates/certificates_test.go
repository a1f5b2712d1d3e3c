package certificates_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/kindtest"
)

// certified returns a certificate in PEM that one key signs for another.
func certified(t *testing.T, template *x509.Certificate, public crypto.PublicKey, signer crypto.Signer) string {
	t.Helper()
	template.SerialNumber = big.NewInt(1)
	der, err := x509.CreateCertificate(rand.Reader, template, &x509.Certificate{Subject: pkix.Name{CommonName: "ca"}},
		public, signer)
	require.NoError(t, err)
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	return key
}

func stubRequest(t *testing.T, key crypto.Signer) []byte {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	require.NoError(t, err)
	return der
}

func TestTrustBundle_ValidateRejects(t *testing.T) {
	t.Parallel()
	key := newKey(t)
	anchor := func(name string) string {
		return certified(t, &x509.Certificate{Subject: pkix.Name{CommonName: name}, IsCA: true,
			BasicConstraintsValid: true}, key.Public(), key)
	}
	one, leaf := anchor("one"), certified(t, &x509.Certificate{Subject: pkix.Name{CommonName: "leaf"}},
		key.Public(), key)
	quoted := func(text string) string {
		out, err := json.Marshal(text)
		require.NoError(t, err)
		return string(out)
	}
	bundle := func(text string) []string { return []string{quoted(one), quoted(text)} }
	sound := "metadata: {name: 'example.com:signer:v1'}\nspec: {signerName: example.com/signer, trustBundle: " +
		quoted(one) + "}\n"
	const complaint = "Invalid spec.trustBundle"
	kindtest.Create(t, "ClusterTrustBundle", sound, []kindtest.Case{
		{"between the blocks", bundle("first\n" + one + "second\n" + anchor("two")), nil},
		{"nothing", bundle(""), []string{complaint}},
		{"no PEM", bundle("hello"), []string{complaint}},
		{"twice", bundle(one + anchor("two") + one), []string{complaint}},
		{"no CA", bundle(one + leaf), []string{complaint}},
		{"another block", bundle(strings.ReplaceAll(one, "CERTIFICATE", "PUBLIC KEY")), []string{complaint}},
		{"headers", bundle(strings.Replace(one, "-----\n", "-----\nA: b\n\n", 1)), []string{complaint}},
		{"no certificate", bundle("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"),
			[]string{complaint}},
		{"each is told", bundle(leaf + leaf), []string{complaint, complaint}},
		{"long", bundle(strings.Repeat("a", 1<<20+1)), []string{"TooLong spec.trustBundle"}},
		{"no signer", []string{"signerName: example.com/signer, ", "", "'example.com:signer:v1'", "v1"}, nil},
		{"the name of a signer", []string{"signerName: example.com/signer, ", ""}, []string{"Invalid metadata.name"}},
		{"not the signer's", []string{"example.com:signer:v1", "example.com:other:v1"},
			[]string{"Invalid metadata.name"}},
		{"no name beyond the signer's", []string{"example.com:signer:v1", "example.com:signer:"},
			[]string{"Invalid metadata.name"}},
		{"generated", []string{"name: 'example.com:signer:v1'", "generateName: 'example.com:signer:v-'"}, nil},
		{"generated wrongly", []string{"name: 'example.com:signer:v1'", "generateName: 'v-'"},
			[]string{"Invalid metadata.generateName"}},
		{"signer", []string{"example.com/signer", "example", "example.com:signer:v1", "example:v1"},
			[]string{"Invalid spec.signerName"}},
	})
	kindtest.Update(t, "ClusterTrustBundle", sound, []kindtest.Case{
		{"signer", []string{"example.com/signer", "example.com/other"}, []string{"Invalid spec.signerName"}},
		{"bundle", bundle(leaf), []string{complaint}},
		{"another bundle", bundle(anchor("two")), nil},
	})
	// A bundle that was stored under older rules remains valid.
	r := kindtest.Of(t, "ClusterTrustBundle")
	old := kindtest.Decode(t, r, kindtest.Changed(t, sound, bundle(leaf)))
	require.Empty(t, r.ValidateUpdate(old.DeepCopyObject().(*certificatesv1.ClusterTrustBundle), old))
}

func TestPodCertificateRequest_ValidateRejects(t *testing.T) {
	t.Parallel()
	encoded := func(der []byte) string { return base64.StdEncoding.EncodeToString(der) }
	stub := encoded(stubRequest(t, newKey(t)))
	sound := `
metadata: {name: r, namespace: n}
spec: {signerName: example.com/signer, podName: p, podUID: a, serviceAccountName: s, serviceAccountUID: b, nodeName: node, nodeUID: c, stubPKCS10Request: ` + stub + "}\n"
	key := func(signer crypto.Signer, err error) string {
		require.NoError(t, err)
		return encoded(stubRequest(t, signer))
	}
	rsaKey := func(bits int) string { k, err := rsa.GenerateKey(rand.Reader, bits); return key(k, err) }
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	forged := stubRequest(t, newKey(t))
	forged[len(forged)-1] ^= 1
	kindtest.Create(t, "PodCertificateRequest", sound, []kindtest.Case{
		{"everything", []string{sound[strings.Index(sound, "signerName"):], "signerName: example}"}, []string{
			"Invalid spec.signerName", "Invalid spec.podName", "Invalid spec.podUID", "Invalid spec.serviceAccountName",
			"Invalid spec.serviceAccountUID",
			"Invalid spec.nodeName", "Invalid spec.nodeUID", "Required spec.stubPKCS10Request"}},
		{"no signer", []string{"signerName: example.com/signer, ", ""}, []string{"Required spec.signerName"}},
		{"long UID", []string{"podUID: a", "podUID: " + strings.Repeat("a", 129)}, []string{"TooLong spec.podUID"}},
		{"short", []string{"podName", "maxExpirationSeconds: 3599, podName"},
			[]string{"Invalid spec.maxExpirationSeconds"}},
		{"91 days", []string{"podName", "maxExpirationSeconds: 7862400, podName"}, nil},
		{"longer", []string{"podName", "maxExpirationSeconds: 7862401, podName"},
			[]string{"Invalid spec.maxExpirationSeconds"}},
		{"Kubernetes' own for longer than a day", []string{"example.com/signer", "kubernetes.io/signer", "podName",
			"maxExpirationSeconds: 86401, podName"}, []string{"Invalid spec.maxExpirationSeconds"}},
		{"notes", []string{"podName", "unverifiedUserAnnotations: {Example.com/Key: v}, podName"}, nil},
		{"notes of nobody", []string{"podName", "unverifiedUserAnnotations: {key: v}, podName"},
			[]string{"Invalid spec.unverifiedUserAnnotations"}},
		{"many notes", []string{"podName", "unverifiedUserAnnotations: {example.com/key: " +
			strings.Repeat("v", 256<<10) + "}, podName"}, []string{"TooLong spec.unverifiedUserAnnotations"}},
		{"no request", []string{stub, "AAAA"}, []string{"Invalid spec.stubPKCS10Request"}},
		{"a long request", []string{stub, encoded(make([]byte, 10<<10+1))}, []string{"TooLong spec.stubPKCS10Request"}},
		{"forged", []string{stub, encoded(forged)}, []string{"Invalid spec.stubPKCS10Request"}},
		{"Ed25519", []string{stub, key(ed, nil)}, nil},
		{"P224", []string{stub, key(ecdsa.GenerateKey(elliptic.P224(), rand.Reader))},
			[]string{"Invalid spec.stubPKCS10Request"}},
		{"P521", []string{stub, key(ecdsa.GenerateKey(elliptic.P521(), rand.Reader))}, nil},
		{"RSA 2048", []string{stub, rsaKey(2048)}, []string{"Invalid spec.stubPKCS10Request"}},
		{"RSA 3072", []string{stub, rsaKey(3072)}, nil},
	})
	kindtest.Update(t, "PodCertificateRequest", sound,
		[]kindtest.Case{{"pod", []string{"podName: p", "podName: q"}, []string{"Invalid spec"}}})
}

func TestPodCertificateRequest_IsAnsweredOnce(t *testing.T) {
	t.Parallel()
	r := kindtest.Of(t, "PodCertificateRequest")
	key, ca := newKey(t), newKey(t)
	from := time.Now().Truncate(time.Second)
	template := func() *x509.Certificate {
		return &x509.Certificate{NotBefore: from, NotAfter: from.Add(2 * time.Hour), DNSNames: []string{"a.b"}}
	}
	newRequest := func() *certificatesv1.PodCertificateRequest {
		return &certificatesv1.PodCertificateRequest{Spec: certificatesv1.PodCertificateRequestSpec{
			StubPKCS10Request: stubRequest(t, key), MaxExpirationSeconds: ptr.To[int32](7200)}}
	}
	after := func(d time.Duration) *metav1.Time { return &metav1.Time{Time: from.Add(d)} }
	condition := func(kind string) metav1.Condition {
		return metav1.Condition{Type: kind, Status: "True", Reason: "Because", LastTransitionTime: *after(0)}
	}
	issued := func(chain string) *certificatesv1.PodCertificateRequest {
		pcr := newRequest()
		pcr.Status = certificatesv1.PodCertificateRequestStatus{
			Conditions: []metav1.Condition{condition("Issued")}, CertificateChain: chain, NotBefore: after(0),
			BeginRefreshAt: after(time.Hour), NotAfter: after(2 * time.Hour),
		}
		return pcr
	}
	chain := certified(t, template(), key.Public(), ca)
	leafWith := func(change func(*x509.Certificate)) string {
		tmpl := template()
		change(tmpl)
		return certified(t, tmpl, key.Public(), ca)
	}
	for _, c := range []struct {
		name   string
		change func(*certificatesv1.PodCertificateRequest)
		want   []string
	}{
		{"whole", func(*certificatesv1.PodCertificateRequest) {}, nil},
		{"with an intermediate", func(p *certificatesv1.PodCertificateRequest) {
			p.Status.CertificateChain += "text\n" + certified(t, &x509.Certificate{}, ca.Public(), ca)
		}, nil},
		{"no certificate", func(p *certificatesv1.PodCertificateRequest) {
			p.Status.CertificateChain = ""
		}, []string{"Invalid status.certificateChain"}},
		{"a long chain", func(p *certificatesv1.PodCertificateRequest) {
			p.Status.CertificateChain = strings.Repeat("a", 100<<10+1)
		}, []string{"TooLong status.certificateChain"}},
		{"no certificates", func(p *certificatesv1.PodCertificateRequest) {
			p.Status.CertificateChain = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
		}, []string{"Invalid status.certificateChain"}},
		{"a key after", func(p *certificatesv1.PodCertificateRequest) {
			p.Status.CertificateChain += strings.ReplaceAll(chain, "CERTIFICATE", "PUBLIC KEY")
		}, []string{"Invalid status.certificateChain"}},
		{"a broken intermediate", func(p *certificatesv1.PodCertificateRequest) {
			p.Status.CertificateChain += "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
		}, []string{"Invalid status.certificateChain"}},
		{"for another key", func(p *certificatesv1.PodCertificateRequest) {
			p.Status.CertificateChain = certified(t, template(), ca.Public(), ca)
		}, []string{"Invalid status.certificateChain"}},
		{"a name of dots", func(p *certificatesv1.PodCertificateRequest) {
			p.Status.CertificateChain = leafWith(func(c *x509.Certificate) {
				c.DNSNames = []string{"a..b", ".a", "a."}
			})
		}, []string{"Invalid status.certificateChain", "Invalid status.certificateChain",
			"Invalid status.certificateChain"}},
		{"no address", func(p *certificatesv1.PodCertificateRequest) {
			p.Status.CertificateChain = leafWith(func(c *x509.Certificate) { c.EmailAddresses = []string{"nobody"} })
		}, []string{"Invalid status.certificateChain"}},
		{"no times", func(p *certificatesv1.PodCertificateRequest) {
			p.Status.NotBefore, p.Status.NotAfter, p.Status.BeginRefreshAt = nil, nil, nil
		}, []string{"Required status.notBefore", "Required status.notAfter", "Required status.beginRefreshAt"}},
		{"another beginning", func(p *certificatesv1.PodCertificateRequest) {
			p.Status.NotBefore = after(time.Second)
		}, []string{"Invalid status.notBefore"}},
		{"another end", func(p *certificatesv1.PodCertificateRequest) {
			p.Status.NotAfter = after(time.Hour)
		}, []string{"Invalid status.notAfter"}},
		{"long ago", func(p *certificatesv1.PodCertificateRequest) {
			p.Status.CertificateChain = leafWith(func(c *x509.Certificate) { c.NotBefore = from.Add(-time.Hour) })
			p.Status.NotBefore = after(-time.Hour)
		}, []string{"Invalid status.notBefore"}},
		{"short", func(p *certificatesv1.PodCertificateRequest) {
			p.Status.CertificateChain = leafWith(func(c *x509.Certificate) { c.NotAfter = from.Add(time.Minute) })
			p.Status.NotAfter = after(time.Minute)
		}, []string{"Invalid status.certificateChain"}},
		{"longer than asked for", func(p *certificatesv1.PodCertificateRequest) {
			p.Spec.MaxExpirationSeconds = ptr.To[int32](7199)
		}, []string{"Invalid status.certificateChain"}},
		{"renewed at once", func(p *certificatesv1.PodCertificateRequest) {
			p.Status.BeginRefreshAt = after(9 * time.Minute)
		}, []string{"Invalid status.beginRefreshAt"}},
		{"renewed at the end", func(p *certificatesv1.PodCertificateRequest) {
			p.Status.BeginRefreshAt = after(111 * time.Minute)
		}, []string{"Invalid status.beginRefreshAt"}},
		{"denied", func(p *certificatesv1.PodCertificateRequest) {
			p.Status = certificatesv1.PodCertificateRequestStatus{Conditions: []metav1.Condition{condition("Denied")}}
		}, nil},
		{"denied with a certificate", func(p *certificatesv1.PodCertificateRequest) {
			p.Status.Conditions[0].Type = "Failed"
		}, []string{"Invalid status"}},
		{"a certificate alone", func(p *certificatesv1.PodCertificateRequest) {
			p.Status.Conditions = nil
		}, []string{"Invalid status"}},
		{"not sure", func(p *certificatesv1.PodCertificateRequest) {
			p.Status.Conditions[0].Status = "Unknown"
		}, []string{"NotSupported status.conditions[0].status"}},
		{"both", func(p *certificatesv1.PodCertificateRequest) {
			p.Status.Conditions = append(p.Status.Conditions, condition("Denied"))
		}, []string{"Invalid status.conditions[1].type"}},
		{"of another kind", func(p *certificatesv1.PodCertificateRequest) {
			p.Status.Conditions[0].Type = "Ready"
		}, []string{"NotSupported status.conditions[0].type"}},
		{"no reason", func(p *certificatesv1.PodCertificateRequest) {
			p.Status.Conditions[0].Reason = ""
		}, []string{"Required status.conditions[0].reason"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			pcr := issued(chain)
			c.change(pcr)
			require.ElementsMatch(t, c.want, kindtest.Refusals(r.Status.Validate(pcr, newRequest())))
		})
	}

	done := issued(chain)
	require.Empty(t, r.Status.Validate(done.DeepCopy(), done), "the same again")
	again := done.DeepCopy()
	again.Status.BeginRefreshAt = after(30 * time.Minute)
	require.Equal(t, []string{"Invalid status"}, kindtest.Refusals(r.Status.Validate(again, done)))
	require.Equal(t, []any{"", "", "", "", "", "Issued"}, r.Cells(done))
	require.Equal(t, "Pending", r.Cells(newRequest())[5])
}

func TestSigningRequest_StatusRejects(t *testing.T) {
	t.Parallel()
	r := kindtest.Of(t, "CertificateSigningRequest")
	key := newKey(t)
	sound := certified(t, &x509.Certificate{Subject: pkix.Name{CommonName: "a"}}, key.Public(), key)
	request := func(certificate string, conditions ...string) *certificatesv1.CertificateSigningRequest {
		c := &certificatesv1.CertificateSigningRequest{
			Status: certificatesv1.CertificateSigningRequestStatus{Certificate: []byte(certificate)}}
		for _, kind := range conditions {
			c.Status.Conditions = append(c.Status.Conditions,
				certificatesv1.CertificateSigningRequestCondition{Type: certificatesv1.RequestConditionType(kind),
					Status: "True"})
		}
		return c
	}
	const certificate, conditions = "status.certificate: Invalid value: \"<certificate data>\": ",
		"status.conditions: Forbidden: updates may not "
	for name, c := range map[string]struct {
		was, is *certificatesv1.CertificateSigningRequest
		want    []string
	}{
		"issued": {request(""), request(sound + "between\n" + sound), nil},
		"not PEM": {request(""), request("hello"),
			[]string{certificate + "must contain at least one CERTIFICATE PEM block"}},
		"a key": {request(""), request(strings.ReplaceAll(sound, "CERTIFICATE", "PUBLIC KEY")),
			[]string{certificate + `only CERTIFICATE PEM blocks are allowed, found "PUBLIC KEY"`}},
		"headers": {request(""), request(strings.Replace(sound, "-----\n", "-----\nA: b\n\n", 1)),
			[]string{certificate + "no PEM block headers are permitted"}},
		"empty block": {request(""), request("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"),
			[]string{certificate + "found CERTIFICATE PEM block containing 0 certificates"}},
		"no certificate": {request(""), request("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"),
			[]string{certificate + "x509: malformed certificate"}},
		"not the first": {request(""), request(sound + "-----BEGIN CERTIFICATE-----\nAAAA\n-----END " +
			"CERTIFICATE-----\n"), []string{certificate + "x509: malformed certificate"}},
		"issued again": {request(sound), request(sound + sound),
			[]string{"status.certificate: Forbidden: updates may not modify existing certificate content"}},
		"old rules": {request("hello"), request("hello", "Other"), nil},
		"decided": {request(""), request("", "Approved"),
			[]string{conditions + `add a condition of type "Approved"`}},
		"decision taken": {request("", "Denied"), request(""),
			[]string{conditions + `remove a condition of type "Denied"`}},
		"failure taken": {request("", "Failed"), request(""),
			[]string{conditions + `remove a condition of type "Failed"`}},
		"other conditions": {request("", "Other", "Approved"), request("", "Approved", "Another"), nil},
		"twice": {request("", "Other"), request("", "Other", "Other"),
			[]string{`status.conditions[1].type: Duplicate value: "Other"`}},
		"still twice":   {request("", "Other", "Other"), request("", "Other", "Other", "Other"), nil},
		"still no type": {request("", ""), request("", "", "Other"), nil},
	} {
		var got []string
		for _, err := range r.Status.Validate(c.is, c.was) {
			got = append(got, err.Error())
		}
		require.Equal(t, c.want, got, name)
	}
	approve := r.Subresource("approval").Validate
	require.Empty(t, approve(request("", "Approved", "Other"), request("")))
	require.Equal(t, []string{"Forbidden status.conditions"},
		kindtest.Refusals(approve(request("", "Approved"), request("", "Failed"))))
	require.Equal(t, []string{"Invalid status.conditions"},
		kindtest.Refusals(approve(request("", "Approved", "Denied"), request("", "Denied"))))
	require.Empty(t, approve(request("", "Approved", "Denied"), request("", "Denied", "Approved")))
}

// requestOfAnRSAKey returns a request for a key with that many bits, with an invalid signature.
func requestOfAnRSAKey(t *testing.T, bits uint) []byte {
	t.Helper()
	n := new(big.Int).Lsh(big.NewInt(1), bits-1)
	public, err := x509.MarshalPKIXPublicKey(&rsa.PublicKey{N: n.SetBit(n, 0, 1), E: 65537})
	require.NoError(t, err)
	type request struct {
		Version    int
		Subject    asn1.RawValue
		PublicKey  asn1.RawValue
		Attributes []asn1.RawValue `asn1:"tag:0"`
	}
	der, err := asn1.Marshal(struct {
		Request   request
		Algorithm pkix.AlgorithmIdentifier
		Signature asn1.BitString
	}{
		request{Subject: asn1.RawValue{FullBytes: []byte{0x30, 0}}, PublicKey: asn1.RawValue{FullBytes: public}},
		// RFC 4055: sha256WithRSAEncryption
		pkix.AlgorithmIdentifier{Algorithm: asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, 11},
			Parameters: asn1.NullRawValue},
		asn1.BitString{Bytes: make([]byte, bits/8), BitLength: int(bits)},
	})
	require.NoError(t, err)
	return der
}

func TestSigningRequest_ValidateRejects(t *testing.T) {
	t.Parallel()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err := x509.CreateCertificateRequest(rand.Reader,
		&x509.CertificateRequest{Subject: pkix.Name{CommonName: "a"}}, key)
	require.NoError(t, err)
	encoded := func(der []byte) string {
		return base64.StdEncoding.EncodeToString(
			pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
	}
	request := encoded(der)
	csr := "metadata: {name: c}\nspec: {signerName: example.com/signer, usages: [client auth], request: " +
		request + "}\n"
	forged := slices.Clone(der)
	forged[len(forged)-1]++ // changes the signature
	kindtest.Create(t, "CertificateSigningRequest", csr, []kindtest.Case{
		{"request", []string{request, "AAAA"}, []string{"Invalid spec.request"}},
		{"signature", []string{request, encoded(forged)}, []string{"Invalid spec.request"}},
		{"usages", []string{"[client auth]", "[client auth, client auth, flying]"},
			[]string{"Duplicate spec.usages[1]", "NotSupported spec.usages[2]"}},
		{"no usages", []string{"[client auth]", "[]"}, []string{"Required spec.usages"}},
		{"short", []string{"{signerName", "{expirationSeconds: 599, signerName"},
			[]string{"Invalid spec.expirationSeconds"}},
		{"no signer", []string{"signerName: example.com/signer, ", ""}, []string{"Required spec.signerName"}},
		{"signer without a path", []string{"example.com/signer", "example.com"}, []string{"Invalid spec.signerName"}},
		{"signer of one label", []string{"example.com/signer", "example/signer"}, []string{"Invalid spec.signerName"}},
		{"signer's labels", []string{"example.com/signer", "Example.com/A_b"},
			[]string{"Invalid spec.signerName", "Invalid spec.signerName"}},
		{"legacy", []string{"example.com/signer", "kubernetes.io/legacy-unknown"}, []string{"Invalid spec.signerName"}},
	})
	r := kindtest.Of(t, "CertificateSigningRequest")
	large := kindtest.Decode(t, r, kindtest.Changed(t, csr, []string{request, encoded(requestOfAnRSAKey(t, 1<<17))}))
	errs := r.Validate(large)
	require.Len(t, errs, 1)
	require.Equal(t, "RSA keys may have at most 16384 bits", errs[0].Detail, "its signature is not looked at")

	kindtest.Update(t, "CertificateSigningRequest", csr,
		[]kindtest.Case{{"signer", []string{"example.com/signer", "example.com/other"}, []string{"Invalid spec"}}})

	issued := kindtest.Decode(t, r,
		csr+"status: {certificate: AAAA, conditions: [{type: Approved, status: 'True'}, {type: "+
			"Failed, status: 'True'}]}").(*certificatesv1.CertificateSigningRequest)
	require.Equal(t, "Approved,Failed,Issued", r.Cells(issued)[5])
	changed := issued.DeepCopy()
	changed.Status.Certificate = []byte("other")
	changed.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: "Approved", Status: "False"},
		{Type: "Approved", Status: "True"}, {}}
	require.ElementsMatch(t, []string{"NotSupported status.conditions[0].status", "Duplicate status.conditions[1].type",
		"Required status.conditions[2].type", "Required status.conditions[2].status",
		"Forbidden status.certificate", "Forbidden status.conditions", "Forbidden status.conditions"},
		kindtest.Refusals(r.Status.Validate(changed, issued)))
}

func TestSigningRequest_SetsMissingConditionTimes(t *testing.T) {
	t.Parallel()
	kind := kindtest.Of(t, "CertificateSigningRequest")
	stamp := func(minute int) metav1.Time { return metav1.NewTime(time.Date(2026, 1, 1, 0, minute, 0, 0, time.UTC)) }
	withConditions := func(conditions ...certificatesv1.CertificateSigningRequestCondition) api.Object {
		return &certificatesv1.CertificateSigningRequest{
			Status: certificatesv1.CertificateSigningRequestStatus{Conditions: conditions}}
	}
	type conditionOf = certificatesv1.CertificateSigningRequestCondition
	condition := func(kind, status string, updated, since metav1.Time) conditionOf {
		return conditionOf{Type: certificatesv1.RequestConditionType(kind),
			Status: corev1.ConditionStatus(status), LastUpdateTime: updated, LastTransitionTime: since}
	}
	unset := metav1.Time{}
	old := withConditions(condition("a", "True", stamp(1), stamp(1)), condition("b", "True", stamp(1), stamp(1)),
		condition("c", "True", stamp(1), unset), condition("d", "True", stamp(1), stamp(1)), condition("d", "True", stamp(1), stamp(2)))
	now := withConditions(condition("a", "True", unset, unset), condition("b", "False", stamp(3), unset),
		condition("c", "True", unset, unset), condition("d", "True", unset, unset), condition("e", "True", unset, stamp(3)))
	kind.SetStatusTimes(now, old, stamp(9))
	require.Equal(t, withConditions(condition("a", "True", stamp(9), stamp(1)), condition("b", "False", stamp(3), stamp(9)),
		condition("c", "True", stamp(9), stamp(9)), condition("d", "True", stamp(9), stamp(2)), condition("e", "True", stamp(9), stamp(3))),
		now)

	// This many fit into a request body. A comparison of all pairs would take minutes.
	var many, were []conditionOf
	for i := range 200_000 {
		were = append(were, condition(strconv.Itoa(i), "True", stamp(1), stamp(1)))
		many = append(many, condition(strconv.Itoa(i), "False", stamp(1), unset))
	}
	kind.SetStatusTimes(withConditions(many...), withConditions(were...), stamp(9))
	require.Equal(t, stamp(9), many[0].LastTransitionTime)
}
