package csr_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/coxswain-dev/coxswain/controllers/lib/controllertest"
	"github.com/coxswain-dev/coxswain/testenv"
)

func TestMain(m *testing.M) { controllertest.Main(m) }

// cluster adds helpers for requests to a controllertest.Clocked.
type cluster struct{ *controllertest.Clocked }

// certificateRequest describes a certificate to be requested.
type certificateRequest struct {
	signer  string
	subject pkix.Name
	hosts   []string
	usages  []certificatesv1.KeyUsage
	seconds *int32
}

var clientUsages = []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth}

// request creates a CertificateSigningRequest as the user of client.
func (c cluster) request(client kubernetes.Interface, name string, r certificateRequest) (key *ecdsa.PrivateKey) {
	c.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(c, err)
	template := &x509.CertificateRequest{Subject: r.subject}
	for _, h := range r.hosts {
		if ip := net.ParseIP(h); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, h)
		}
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	require.NoError(c, err)
	_, err = client.CertificatesV1().CertificateSigningRequests().Create(c.Context(),
		&certificatesv1.CertificateSigningRequest{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: certificatesv1.CertificateSigningRequestSpec{
				Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
				SignerName: r.signer, Usages: r.usages, ExpirationSeconds: r.seconds,
			},
		}, metav1.CreateOptions{})
	require.NoError(c, err)
	return key
}

func (c cluster) csr(name string) *certificatesv1.CertificateSigningRequest {
	c.Helper()
	r, err := c.Client.CertificatesV1().CertificateSigningRequests().Get(c.Context(), name, metav1.GetOptions{})
	require.NoError(c, err)
	return r
}

// decide approves or denies a request, as `kubectl certificate` does.
func (c cluster) decide(name string, decision certificatesv1.RequestConditionType) {
	c.Helper()
	c.Reaches("decide "+name, func() bool {
		r := c.csr(name)
		for _, condition := range r.Status.Conditions {
			if condition.Type == decision {
				return true // the approver was faster: it may approve an administrator's request
			}
		}
		r.Status.Conditions = append(r.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
			Type: decision, Status: corev1.ConditionTrue, Reason: "ByATest", LastUpdateTime: metav1.NewTime(c.Now()),
		})
		_, err := c.Client.CertificatesV1().CertificateSigningRequests().UpdateApproval(c.Context(), name, r,
			metav1.UpdateOptions{})
		if !apierrors.IsConflict(err) {
			require.NoError(c, err)
		}
		return err == nil
	})
}

func (c cluster) issued(name string) *x509.Certificate {
	c.Helper()
	var r *certificatesv1.CertificateSigningRequest
	c.Reaches(name+" is signed", func() bool {
		r = c.csr(name)
		return len(r.Status.Certificate) > 0
	})
	block, rest := pem.Decode(r.Status.Certificate)
	require.Empty(c, rest)
	cert, err := x509.ParseCertificate(block.Bytes)
	require.NoError(c, err)
	return cert
}

func TestCertificates_ApprovedCertificateAuthenticates(t *testing.T) {
	t.Parallel()
	c := cluster{controllertest.NewSigning(t, "csrapproving", "csrsigning")}
	// The certificate must be valid by the clock of the test's API server.
	key := c.request(c.Client, "jane", certificateRequest{
		signer: certificatesv1.KubeAPIServerClientSignerName, subject: pkix.Name{CommonName: "jane",
			Organization: []string{"devs"}},
		usages: clientUsages, seconds: new(int32(3600)),
	})
	c.decide("jane", certificatesv1.CertificateApproved)
	cert := c.issued("jane")
	require.Equal(t, time.Hour, cert.NotAfter.Sub(cert.NotBefore)-5*time.Minute)
	require.Equal(t, x509.KeyUsageDigitalSignature, cert.KeyUsage)
	require.Equal(t, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, cert.ExtKeyUsage)
	require.False(t, cert.IsCA)
	der, err := x509.MarshalECPrivateKey(key)
	require.NoError(t, err)
	name, err := c.WhoIs(&rest.Config{Host: c.Config.Host, TLSClientConfig: rest.TLSClientConfig{
		CAData: c.Config.CAData, CertData: c.csr("jane").Status.Certificate,
		KeyData: pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}),
	}})
	require.NoError(t, err)
	require.Equal(t, "jane", name)
}

func TestCertificates_SignersFollowTheirRules(t *testing.T) {
	t.Parallel()
	c := cluster{controllertest.NewSigning(t, "csrapproving", "csrsigning")}
	node := pkix.Name{CommonName: "system:node:a", Organization: []string{"system:nodes"}}
	serving := []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth}
	for name, r := range map[string]struct {
		certificateRequest
		failure string // "" where it is signed
	}{
		"serving": {certificateRequest{signer: certificatesv1.KubeletServingSignerName, subject: node,
			hosts: []string{"a", "10.0.0.1"}, usages: serving}, ""},
		"serving-no-name": {certificateRequest{signer: certificatesv1.KubeletServingSignerName, subject: node,
			usages: serving}, "needs a DNS or IP"},
		"serving-user": {certificateRequest{signer: certificatesv1.KubeletServingSignerName,
			subject: pkix.Name{CommonName: "a"}, hosts: []string{"a"}, usages: serving}, "organization"},
		"serving-client": {certificateRequest{signer: certificatesv1.KubeletServingSignerName, subject: node,
			hosts: []string{"a"}, usages: clientUsages}, "server auth"},
		"kubelet": {certificateRequest{signer: certificatesv1.KubeAPIServerClientKubeletSignerName,
			subject: node, usages: clientUsages}, ""},
		"kubelet-hosts": {certificateRequest{signer: certificatesv1.KubeAPIServerClientKubeletSignerName,
			subject: node, hosts: []string{"a"}, usages: clientUsages}, "subject alternative names"},
		"client": {certificateRequest{signer: certificatesv1.KubeAPIServerClientSignerName,
			subject: pkix.Name{CommonName: "jane"}, usages: clientUsages}, ""},
		"client-signs": {certificateRequest{signer: certificatesv1.KubeAPIServerClientSignerName,
			subject: pkix.Name{CommonName: "jane"},
			usages:  append([]certificatesv1.KeyUsage{certificatesv1.UsageCertSign}, clientUsages...)},
			"must not contain cert sign"},
		"client-serves": {certificateRequest{signer: certificatesv1.KubeAPIServerClientSignerName,
			subject: pkix.Name{CommonName: "jane"}, usages: serving}, "client auth"},
	} {
		c.request(c.Client, name, r.certificateRequest)
		c.decide(name, certificatesv1.CertificateApproved)
		if r.failure == "" {
			cert := c.issued(name)
			require.Equal(t, r.subject.CommonName, cert.Subject.CommonName)
			require.Len(t, r.hosts, len(cert.DNSNames)+len(cert.IPAddresses))
			require.WithinDuration(t, c.Now().Add(365*24*time.Hour), cert.NotAfter, time.Hour)
			continue
		}
		c.Reaches(name+" has failed", func() bool {
			for _, condition := range c.csr(name).Status.Conditions {
				if condition.Type == certificatesv1.CertificateFailed {
					require.Equal(t, "SignerValidationFailure", condition.Reason)
					return strings.Contains(condition.Message, r.failure)
				}
			}
			return false
		})
		require.Empty(t, c.csr(name).Status.Certificate)
	}

	// Requests for other signers, and requests that are denied or undecided, are not signed.
	c.request(c.Client, "foreign", certificateRequest{signer: "example.com/signer", subject: node,
		usages: clientUsages})
	c.decide("foreign", certificatesv1.CertificateApproved)
	c.request(c.Client, "denied", certificateRequest{signer: certificatesv1.KubeAPIServerClientSignerName,
		subject: pkix.Name{CommonName: "x"}, usages: clientUsages})
	c.decide("denied", certificatesv1.CertificateDenied)
	c.request(c.Client, "last", certificateRequest{signer: certificatesv1.KubeAPIServerClientSignerName,
		subject: pkix.Name{CommonName: "last"}, usages: clientUsages})
	c.decide("last", certificatesv1.CertificateApproved)
	c.issued("last")
	require.Empty(t, c.csr("foreign").Status.Certificate)
	require.Empty(t, c.csr("denied").Status.Certificate)
}

func TestCertificates_ApprovesKubeletsByRights(t *testing.T) {
	t.Parallel()
	c := cluster{controllertest.NewSigning(t, "csrapproving", "csrsigning")}
	request := certificateRequest{
		signer:  certificatesv1.KubeAPIServerClientKubeletSignerName,
		subject: pkix.Name{CommonName: "system:node:a", Organization: []string{"system:nodes"}}, usages: clientUsages,
	}
	bind := func(role, group string) {
		_, err := c.Client.RbacV1().ClusterRoleBindings().Create(c.Context(), &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName,
				Kind: "ClusterRole", Name: role},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: group}},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	as := func(name, group string) kubernetes.Interface {
		client, err := kubernetes.NewForConfig(testenv.User(t, c.Config, name, group))
		require.NoError(t, err)
		return client
	}
	bind("system:node-bootstrapper", "system:bootstrappers")
	for _, group := range []string{"system:nodes", "thieves"} {
		bind("system:node-bootstrapper", group)
		bind("system:certificates.k8s.io:certificatesigningrequests:selfnodeclient", group)
	}
	// NodeRestriction rejects requests of another node before an approver sees them.
	joining, other, itself := as("system:bootstrap:abcdef", "system:bootstrappers"), as("jane", "thieves"),
		as("system:node:a", "system:nodes")

	c.request(itself, "renewal", request)
	require.Equal(t, "system:node:a", c.issued("renewal").Subject.CommonName)
	require.Contains(t, c.csr("renewal").Status.Conditions[0].Message, "Auto approving self kubelet client certificate")
	c.request(other, "theft", request)
	c.request(joining, "joins", request)
	c.request(itself, "sentinel", request)
	c.issued("sentinel")
	require.Empty(t, c.csr("theft").Status.Conditions)
	require.Empty(t, c.csr("joins").Status.Conditions)

	bind("system:certificates.k8s.io:certificatesigningrequests:nodeclient", "system:bootstrappers")
	c.Passing(time.Second, "the right that was given later is found", func() bool {
		return len(c.csr("joins").Status.Certificate) > 0
	})
	require.Empty(t, c.csr("theft").Status.Conditions)
}

func TestCertificates_ApprovesServingCertificatesForTheNodesAddresses(t *testing.T) {
	t.Parallel()
	c := cluster{controllertest.NewSigning(t, "csrapproving", "csrsigning")}
	node, err := c.Client.CoreV1().Nodes().Create(c.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "a"},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "a"},
			{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	itself, err := kubernetes.NewForConfig(testenv.User(t, c.Config, "system:node:"+node.Name, "system:nodes"))
	require.NoError(t, err)
	ask := func(client kubernetes.Interface, name string, names ...string) {
		c.request(client, name, certificateRequest{
			signer: certificatesv1.KubeletServingSignerName, subject: pkix.Name{CommonName: "system:node:a",
				Organization: []string{"system:nodes"}},
			usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth},
			hosts:  names,
		})
	}
	_, err = c.Client.RbacV1().ClusterRoleBindings().Create(c.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "jane"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName,
			Kind: "ClusterRole", Name: "system:node-bootstrapper"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "jane"}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	jane, err := kubernetes.NewForConfig(testenv.User(t, c.Config, "jane"))
	require.NoError(t, err)
	ask(jane, "anybody", "a")
	ask(itself, "others", "a", "kubernetes.default.svc")
	ask(itself, "own", "a")
	require.Equal(t, []string{"a"}, c.issued("own").DNSNames)
	require.Equal(t, certificatesv1.CertificateDenied, c.csr("others").Status.Conditions[0].Type)
	require.Empty(t, c.csr("anybody").Status.Conditions, "but for the node itself, people approve")
	clients := x509.NewCertPool()
	clients.AppendCertsFromPEM(c.Config.CAData)
	_, err = c.issued("own").Verify(x509.VerifyOptions{Roots: clients, CurrentTime: c.Now(), DNSName: "a"})
	require.ErrorAs(t, err, &x509.UnknownAuthorityError{}, "no client of the API server takes a node for it")
	kubelets := x509.NewCertPool()
	kubelets.AppendCertsFromPEM(c.Settings.Signing.KubeletServing.Cert)
	_, err = c.issued("own").Verify(x509.VerifyOptions{Roots: kubelets, CurrentTime: c.Now(), DNSName: "a"})
	require.NoError(t, err)
}

func TestCertificates_OldRequestsAreDeleted(t *testing.T) {
	t.Parallel()
	c := cluster{controllertest.NewSigning(t, "csrsigning", "csrcleaner")}
	client := certificateRequest{signer: certificatesv1.KubeAPIServerClientSignerName,
		subject: pkix.Name{CommonName: "jane"}, usages: clientUsages}
	for _, name := range []string{"pending", "denied", "approved"} {
		c.request(c.Client, name, client)
	}
	c.decide("denied", certificatesv1.CertificateDenied)
	c.decide("approved", certificatesv1.CertificateApproved)
	c.issued("approved")
	left := func() int {
		list, err := c.Client.CertificatesV1().CertificateSigningRequests().List(c.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		return len(list.Items)
	}
	c.Step(50 * time.Minute)
	require.Equal(t, 3, left())
	c.Step(11 * time.Minute)
	c.Reaches("those that were answered are gone", func() bool { return left() == 1 })
	require.Equal(t, "pending", c.csr("pending").Name)
	c.Step(20 * time.Hour)
	require.Equal(t, 1, left())
	c.Step(4 * time.Hour)
	c.Reaches("the one that nobody answered is gone", func() bool { return left() == 0 })
}
