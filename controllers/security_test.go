package controllers_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/coxswain-dev/coxswain/controllers"
	"github.com/coxswain-dev/coxswain/testenv"
)

// newSecured runs the named controllers against an API server of ours, each as itself and with the keys
// of the control plane, in time that is moved by hand.
func newSecured(t testing.TB, names ...string) *clocked {
	needsItsOwn(t, "the controllers sign with the control plane's own keys")
	config := testenv.Start(t, testenv.APIServerOnly())
	client, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	c := &clocked{
		cluster:   &cluster{TB: t, config: config, client: client, ctx: t.Context()},
		FakeClock: clocktesting.NewFakeClock(metav1.Now().Time),
	}
	c.startControllers(controllers.Options{Controllers: names, Clock: c.FakeClock, Settings: testenv.ControllerSettings(t, config)})
	return c
}

// whoIs asks the server who a configuration is.
func (c *clocked) whoIs(config *rest.Config) (string, error) {
	client, err := kubernetes.NewForConfig(config)
	require.NoError(c, err)
	review, err := client.AuthenticationV1().SelfSubjectReviews().Create(c.ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return review.Status.UserInfo.Username, nil
}

func (c *clocked) bearing(token string) *rest.Config {
	return &rest.Config{Host: c.config.Host, BearerToken: token, TLSClientConfig: rest.TLSClientConfig{CAData: c.config.CAData}}
}

func TestClusterRoleAggregation_FollowsTheLabels(t *testing.T) {
	t.Parallel()
	c := newSecured(t, "clusterrole-aggregation-controller")
	roles := c.client.RbacV1().ClusterRoles()
	rule := func(resource string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{"example.com"}, Resources: []string{resource}}
	}
	part := func(name, resource string, labels map[string]string) {
		_, err := roles.Create(c.ctx, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Rules: []rbacv1.PolicyRule{rule(resource)}}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	_, err := roles.Create(c.ctx, &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "sum"},
		AggregationRule: &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{
			{MatchLabels: map[string]string{"to": "sum"}}, {MatchLabels: map[string]string{"also": "sum"}},
		}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	part("b", "bees", map[string]string{"to": "sum"})
	part("a", "ants", map[string]string{"to": "sum", "also": "sum"})
	part("other", "wasps", nil)
	reaches := func(name string, want ...rbacv1.PolicyRule) {
		t.Helper()
		c.reaches(name, func() bool {
			role, err := roles.Get(c.ctx, name, metav1.GetOptions{})
			require.NoError(t, err)
			return len(role.Rules) == len(want) && (len(want) == 0 || equality.Semantic.DeepEqual(want, role.Rules))
		})
	}
	reaches("sum", rule("ants"), rule("bees"))
	_, err = roles.Patch(c.ctx, "b", "application/merge-patch+json", []byte(`{"metadata":{"labels":{"to":null}}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	reaches("sum", rule("ants"))
	require.NoError(t, roles.Delete(c.ctx, "a", metav1.DeleteOptions{}))
	reaches("sum")

	// What is aggregated to view is a part of edit and of admin.
	part("crd-view", "widgets", map[string]string{"rbac.authorization.k8s.io/aggregate-to-view": "true"})
	for _, name := range []string{"view", "edit", "admin"} {
		c.reaches(name, func() bool {
			role, err := roles.Get(c.ctx, name, metav1.GetOptions{})
			require.NoError(t, err)
			for _, r := range role.Rules {
				if equality.Semantic.DeepEqual(r, rule("widgets")) {
					return true
				}
			}
			return false
		})
	}
	role, err := roles.Get(c.ctx, "sum", metav1.GetOptions{})
	require.NoError(t, err)
	require.Empty(t, role.Rules)
}

func TestServiceAccountToken_FillsSecretsAndEndsWithTheAccount(t *testing.T) {
	t.Parallel()
	c := newSecured(t, "serviceaccount-token-controller")
	accounts, secrets := c.client.CoreV1().ServiceAccounts("default"), c.client.CoreV1().Secrets("default")
	account, err := accounts.Create(c.ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	create := func(name, of string, data map[string][]byte) {
		_, err := secrets.Create(c.ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{corev1.ServiceAccountNameKey: of}},
			Type:       corev1.SecretTypeServiceAccountToken, Data: data,
		}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	filled := func(name string) *corev1.Secret {
		t.Helper()
		var secret *corev1.Secret
		c.reaches(name+" is filled", func() bool {
			var err error
			secret, err = secrets.Get(c.ctx, name, metav1.GetOptions{})
			require.NoError(t, err)
			return len(secret.Data[corev1.ServiceAccountTokenKey]) > 0 && secret.Annotations[corev1.ServiceAccountUIDKey] != ""
		})
		return secret
	}
	gone := func(name string) {
		t.Helper()
		c.reaches(name+" is gone", func() bool {
			_, err := secrets.Get(c.ctx, name, metav1.GetOptions{})
			return apierrors.IsNotFound(err)
		})
	}
	create("robot-token", "robot", nil)
	secret := filled("robot-token")
	require.Equal(t, string(account.UID), secret.Annotations[corev1.ServiceAccountUIDKey])
	require.Equal(t, "default", string(secret.Data[corev1.ServiceAccountNamespaceKey]))
	require.Equal(t, string(c.config.CAData), string(secret.Data[corev1.ServiceAccountRootCAKey]))
	token := string(secret.Data[corev1.ServiceAccountTokenKey])
	name, err := c.whoIs(c.bearing(token))
	require.NoError(t, err)
	require.Equal(t, "system:serviceaccount:default:robot", name)

	// A token that is there is no other's to replace, and what has been taken away comes back.
	create("own", "robot", map[string][]byte{corev1.ServiceAccountTokenKey: []byte("mine"), "more": []byte("data")})
	own := filled("own")
	require.Equal(t, "mine", string(own.Data[corev1.ServiceAccountTokenKey]))
	require.Equal(t, "data", string(own.Data["more"]))
	_, err = secrets.Patch(c.ctx, "robot-token", "application/merge-patch+json", []byte(`{"data":{"token":null}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	require.NotEmpty(t, filled("robot-token").Data[corev1.ServiceAccountTokenKey])

	create("orphan", "nobody", nil)
	gone("orphan")
	require.NoError(t, accounts.Delete(c.ctx, "robot", metav1.DeleteOptions{}))
	gone("robot-token")
	gone("own")
	_, err = c.whoIs(c.bearing(token))
	require.True(t, apierrors.IsUnauthorized(err), "%v", err)
}

// certificateRequest is what a test asks to be certified.
type certificateRequest struct {
	signer  string
	subject pkix.Name
	hosts   []string
	usages  []certificatesv1.KeyUsage
	seconds *int32
}

var clientUsages = []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth}

// request asks for a certificate, as the user of client.
func (c *clocked) request(client kubernetes.Interface, name string, r certificateRequest) (key *ecdsa.PrivateKey) {
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
	_, err = client.CertificatesV1().CertificateSigningRequests().Create(c.ctx, &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
			SignerName: r.signer, Usages: r.usages, ExpirationSeconds: r.seconds,
		},
	}, metav1.CreateOptions{})
	require.NoError(c, err)
	return key
}

func (c *clocked) csr(name string) *certificatesv1.CertificateSigningRequest {
	c.Helper()
	r, err := c.client.CertificatesV1().CertificateSigningRequests().Get(c.ctx, name, metav1.GetOptions{})
	require.NoError(c, err)
	return r
}

// decide is `kubectl certificate approve` or deny.
func (c *clocked) decide(name string, what certificatesv1.RequestConditionType) {
	c.Helper()
	c.reaches("decide "+name, func() bool {
		r := c.csr(name)
		for _, condition := range r.Status.Conditions {
			if condition.Type == what {
				return true // the approver, who may approve what an administrator asks for, was faster
			}
		}
		r.Status.Conditions = append(r.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
			Type: what, Status: corev1.ConditionTrue, Reason: "ByATest", LastUpdateTime: metav1.NewTime(c.Now()),
		})
		_, err := c.client.CertificatesV1().CertificateSigningRequests().UpdateApproval(c.ctx, name, r, metav1.UpdateOptions{})
		if !apierrors.IsConflict(err) {
			require.NoError(c, err)
		}
		return err == nil
	})
}

func (c *clocked) issued(name string) *x509.Certificate {
	c.Helper()
	var r *certificatesv1.CertificateSigningRequest
	c.reaches(name+" is signed", func() bool {
		r = c.csr(name)
		return len(r.Status.Certificate) > 0
	})
	block, rest := pem.Decode(r.Status.Certificate)
	require.Empty(c, rest)
	cert, err := x509.ParseCertificate(block.Bytes)
	require.NoError(c, err)
	return cert
}

func TestCertificates_AnApprovedOneLogsIn(t *testing.T) {
	t.Parallel()
	c := newSecured(t, "csrapproving", "csrsigning")
	// By the clock of the test's API server the certificate must be valid.
	key := c.request(c.client, "jane", certificateRequest{
		signer: certificatesv1.KubeAPIServerClientSignerName, subject: pkix.Name{CommonName: "jane", Organization: []string{"devs"}},
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
	name, err := c.whoIs(&rest.Config{Host: c.config.Host, TLSClientConfig: rest.TLSClientConfig{
		CAData: c.config.CAData, CertData: c.csr("jane").Status.Certificate, KeyData: pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}),
	}})
	require.NoError(t, err)
	require.Equal(t, "jane", name)
}

func TestCertificates_SignersSignWhatTheyAreForAndNothingElse(t *testing.T) {
	t.Parallel()
	c := newSecured(t, "csrapproving", "csrsigning")
	node := pkix.Name{CommonName: "system:node:a", Organization: []string{"system:nodes"}}
	serving := []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth}
	for name, r := range map[string]struct {
		certificateRequest
		failure string // "" where it is signed
	}{
		"serving":         {certificateRequest{signer: certificatesv1.KubeletServingSignerName, subject: node, hosts: []string{"a", "10.0.0.1"}, usages: serving}, ""},
		"serving-no-name": {certificateRequest{signer: certificatesv1.KubeletServingSignerName, subject: node, usages: serving}, "needs a DNS or IP"},
		"serving-user":    {certificateRequest{signer: certificatesv1.KubeletServingSignerName, subject: pkix.Name{CommonName: "a"}, hosts: []string{"a"}, usages: serving}, "organization"},
		"serving-client":  {certificateRequest{signer: certificatesv1.KubeletServingSignerName, subject: node, hosts: []string{"a"}, usages: clientUsages}, "server auth"},
		"kubelet":         {certificateRequest{signer: certificatesv1.KubeAPIServerClientKubeletSignerName, subject: node, usages: clientUsages}, ""},
		"kubelet-hosts":   {certificateRequest{signer: certificatesv1.KubeAPIServerClientKubeletSignerName, subject: node, hosts: []string{"a"}, usages: clientUsages}, "subject alternative names"},
		"client":          {certificateRequest{signer: certificatesv1.KubeAPIServerClientSignerName, subject: pkix.Name{CommonName: "jane"}, usages: clientUsages}, ""},
		"client-signs":    {certificateRequest{signer: certificatesv1.KubeAPIServerClientSignerName, subject: pkix.Name{CommonName: "jane"}, usages: append([]certificatesv1.KeyUsage{certificatesv1.UsageCertSign}, clientUsages...)}, "must not contain cert sign"},
		"client-serves":   {certificateRequest{signer: certificatesv1.KubeAPIServerClientSignerName, subject: pkix.Name{CommonName: "jane"}, usages: serving}, "client auth"},
	} {
		c.request(c.client, name, r.certificateRequest)
		c.decide(name, certificatesv1.CertificateApproved)
		if r.failure == "" {
			cert := c.issued(name)
			require.Equal(t, r.subject.CommonName, cert.Subject.CommonName)
			require.Len(t, r.hosts, len(cert.DNSNames)+len(cert.IPAddresses))
			require.WithinDuration(t, c.Now().Add(365*24*time.Hour), cert.NotAfter, time.Hour)
			continue
		}
		c.reaches(name+" has failed", func() bool {
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

	// Others' signers are others', and what is denied or not decided is not signed.
	c.request(c.client, "foreign", certificateRequest{signer: "example.com/signer", subject: node, usages: clientUsages})
	c.decide("foreign", certificatesv1.CertificateApproved)
	c.request(c.client, "denied", certificateRequest{signer: certificatesv1.KubeAPIServerClientSignerName, subject: pkix.Name{CommonName: "x"}, usages: clientUsages})
	c.decide("denied", certificatesv1.CertificateDenied)
	c.request(c.client, "last", certificateRequest{signer: certificatesv1.KubeAPIServerClientSignerName, subject: pkix.Name{CommonName: "last"}, usages: clientUsages})
	c.decide("last", certificatesv1.CertificateApproved)
	c.issued("last")
	require.Empty(t, c.csr("foreign").Status.Certificate)
	require.Empty(t, c.csr("denied").Status.Certificate)
}

func TestCertificates_AKubeletsIsApprovedIfItMayAsk(t *testing.T) {
	t.Parallel()
	c := newSecured(t, "csrapproving", "csrsigning")
	request := certificateRequest{
		signer:  certificatesv1.KubeAPIServerClientKubeletSignerName,
		subject: pkix.Name{CommonName: "system:node:a", Organization: []string{"system:nodes"}}, usages: clientUsages,
	}
	bind := func(role, group string) {
		_, err := c.client.RbacV1().ClusterRoleBindings().Create(c.ctx, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: group}},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	as := func(name, group string) kubernetes.Interface {
		client, err := kubernetes.NewForConfig(testenv.User(t, c.config, name, group))
		require.NoError(t, err)
		return client
	}
	bind("system:node-bootstrapper", "system:bootstrappers")
	for _, group := range []string{"system:nodes", "thieves"} {
		bind("system:node-bootstrapper", group)
		bind("system:certificates.k8s.io:certificatesigningrequests:selfnodeclient", group)
	}
	// Another node is refused by NodeRestriction before anybody could approve.
	joining, other, itself := as("system:bootstrap:abcdef", "system:bootstrappers"), as("jane", "thieves"), as("system:node:a", "system:nodes")

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
	c.passing(time.Second, "the right that was given later is found", func() bool { return len(c.csr("joins").Status.Certificate) > 0 })
	require.Empty(t, c.csr("theft").Status.Conditions)
}

func TestCertificates_ANodesServingCertificateIsForItsOwnAddresses(t *testing.T) {
	t.Parallel()
	c := newSecured(t, "csrapproving", "csrsigning")
	node, err := c.client.CoreV1().Nodes().Create(c.ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "a"},
		Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "a"}, {Type: corev1.NodeInternalIP, Address: "10.0.0.1"}}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	itself, err := kubernetes.NewForConfig(testenv.User(t, c.config, "system:node:"+node.Name, "system:nodes"))
	require.NoError(t, err)
	ask := func(client kubernetes.Interface, name string, names ...string) {
		c.request(client, name, certificateRequest{
			signer: certificatesv1.KubeletServingSignerName, subject: pkix.Name{CommonName: "system:node:a", Organization: []string{"system:nodes"}},
			usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth}, hosts: names,
		})
	}
	_, err = c.client.RbacV1().ClusterRoleBindings().Create(c.ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "jane"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:node-bootstrapper"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "jane"}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	jane, err := kubernetes.NewForConfig(testenv.User(t, c.config, "jane"))
	require.NoError(t, err)
	ask(jane, "anybody", "a")
	ask(itself, "others", "a", "kubernetes.default.svc")
	ask(itself, "own", "a")
	require.Equal(t, []string{"a"}, c.issued("own").DNSNames)
	require.Empty(t, c.csr("others").Status.Conditions)
	require.Empty(t, c.csr("anybody").Status.Conditions, "but for the node itself, people approve")
}

func TestCertificates_RequestsAreForgotten(t *testing.T) {
	t.Parallel()
	c := newSecured(t, "csrsigning", "csrcleaner")
	client := certificateRequest{signer: certificatesv1.KubeAPIServerClientSignerName, subject: pkix.Name{CommonName: "jane"}, usages: clientUsages}
	for _, name := range []string{"pending", "denied", "approved"} {
		c.request(c.client, name, client)
	}
	c.decide("denied", certificatesv1.CertificateDenied)
	c.decide("approved", certificatesv1.CertificateApproved)
	c.issued("approved")
	left := func() int {
		list, err := c.client.CertificatesV1().CertificateSigningRequests().List(c.ctx, metav1.ListOptions{})
		require.NoError(t, err)
		return len(list.Items)
	}
	c.Step(50 * time.Minute)
	require.Equal(t, 3, left())
	c.Step(11 * time.Minute)
	c.reaches("those that were answered are gone", func() bool { return left() == 1 })
	require.Equal(t, "pending", c.csr("pending").Name)
	c.Step(20 * time.Hour)
	require.Equal(t, 1, left())
	c.Step(4 * time.Hour)
	c.reaches("the one that nobody answered is gone", func() bool { return left() == 0 })
}

func TestPodCertificates_RequestsAreForgotten(t *testing.T) {
	t.Parallel()
	c := newSecured(t, "podcertificaterequest-cleaner-controller")
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	stub, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	require.NoError(t, err)
	pcrs := c.client.CertificatesV1().PodCertificateRequests("default")
	_, err = pcrs.Create(c.ctx, &certificatesv1.PodCertificateRequest{ObjectMeta: metav1.ObjectMeta{Name: "r"}, Spec: certificatesv1.PodCertificateRequestSpec{
		SignerName: "example.com/signer", PodName: "p", PodUID: "1", ServiceAccountName: "s", ServiceAccountUID: "2", NodeName: "n", NodeUID: "3", StubPKCS10Request: stub,
	}}, metav1.CreateOptions{})
	require.NoError(t, err)
	gone := func() bool {
		_, err := pcrs.Get(c.ctx, "r", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	}
	c.Step(10 * time.Minute)
	require.False(t, gone())
	c.Step(6 * time.Minute)
	c.reaches("it is gone after a quarter of an hour", gone)
}

func TestTrustBundle_OfTheServerIsPublished(t *testing.T) {
	t.Parallel()
	c := newSecured(t, "kube-apiserver-serving-clustertrustbundle-publisher-controller")
	const signer = "kubernetes.io/kube-apiserver-serving"
	bundles := c.client.CertificatesV1().ClusterTrustBundles()
	published := func() []certificatesv1.ClusterTrustBundle {
		list, err := bundles.List(c.ctx, metav1.ListOptions{FieldSelector: "spec.signerName=" + signer})
		require.NoError(t, err)
		return list.Items
	}
	var name string
	as := func() bool {
		list := published()
		if len(list) != 1 || list[0].Spec.TrustBundle != string(c.config.CAData) || name != "" && list[0].Name != name {
			return false
		}
		name = list[0].Name
		return true
	}
	c.reaches("it is there", as)
	require.Regexp(t, "^kubernetes.io:kube-apiserver-serving:[0-9a-f]{24}$", name)

	// Others go, and it comes again.
	der, _ := pem.Decode(c.config.CAData)
	_, err := bundles.Create(c.ctx, &certificatesv1.ClusterTrustBundle{
		ObjectMeta: metav1.ObjectMeta{Name: "kubernetes.io:kube-apiserver-serving:old"},
		Spec:       certificatesv1.ClusterTrustBundleSpec{SignerName: signer, TrustBundle: string(pem.EncodeToMemory(der)) + "\n"},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	c.reaches("it is alone", as)
	require.NoError(t, bundles.Delete(c.ctx, name, metav1.DeleteOptions{}))
	c.reaches("it is back", as)
}

func TestStorageVersionMigration_WritesNothingAnewAndEnds(t *testing.T) {
	t.Parallel()
	c := newSecured(t, "storage-version-migrator-controller")
	maps := c.client.CoreV1().ConfigMaps("default")
	before, err := maps.Create(c.ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kept"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	migrations := c.client.StoragemigrationV1().StorageVersionMigrations()
	ends := func(resource, as string) {
		t.Helper()
		_, err := migrations.Create(c.ctx, &storagemigrationv1.StorageVersionMigration{
			ObjectMeta: metav1.ObjectMeta{Name: resource}, Spec: storagemigrationv1.StorageVersionMigrationSpec{Resource: metav1.GroupResource{Resource: resource}},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
		c.reaches(resource, func() bool {
			m, err := migrations.Get(c.ctx, resource, metav1.GetOptions{})
			require.NoError(t, err)
			return apimeta.IsStatusConditionTrue(m.Status.Conditions, as) && !apimeta.IsStatusConditionTrue(m.Status.Conditions, "Running")
		})
	}
	ends("configmaps", "Succeeded")
	ends("nothings", "Failed")
	after, err := maps.Get(c.ctx, "kept", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, before.ResourceVersion, after.ResourceVersion)
}

func TestBootstrapTokens_SignAndExpire(t *testing.T) {
	t.Parallel()
	c := newSecured(t, "bootstrapsigner", "tokencleaner")
	secrets, infos := c.client.CoreV1().Secrets("kube-system"), c.client.CoreV1().ConfigMaps("kube-public")
	token := func(id string, fields map[string]string) {
		data := map[string]string{"token-id": id, "token-secret": "0123456789abcdef", "usage-bootstrap-signing": "true"}
		for key, value := range fields {
			data[key] = value
		}
		_, err := secrets.Create(c.ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-" + id}, Type: corev1.SecretTypeBootstrapToken, StringData: data,
		}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	token("aaaaaa", nil)
	token("bbbbbb", map[string]string{"expiration": c.Now().Add(time.Hour).Format(time.RFC3339)})
	token("cccccc", map[string]string{"usage-bootstrap-signing": "false"})
	token("dddddd", map[string]string{"expiration": c.Now().Add(-time.Hour).Format(time.RFC3339)})
	const content = "apiVersion: v1\nkind: Config\n"
	_, err := infos.Create(c.ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "cluster-info"},
		Data:       map[string]string{"kubeconfig": content, "jws-kubeconfig-zzzzzz": "of one that is gone"},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	var signed map[string]string
	signers := func(ids ...string) {
		t.Helper()
		c.reaches(strings.Join(ids, " "), func() bool {
			info, err := infos.Get(c.ctx, "cluster-info", metav1.GetOptions{})
			require.NoError(t, err)
			signed = info.Data
			for _, id := range ids {
				if signed["jws-kubeconfig-"+id] == "" {
					return false
				}
			}
			return len(signed) == 1+len(ids)
		})
	}
	signers("aaaaaa", "bbbbbb")
	header, signature, ok := strings.Cut(signed["jws-kubeconfig-aaaaaa"], "..")
	require.True(t, ok)
	mac := hmac.New(sha256.New, []byte("0123456789abcdef"))
	_, _ = mac.Write([]byte(header + "." + base64.RawURLEncoding.EncodeToString([]byte(content))))
	require.Equal(t, base64.RawURLEncoding.EncodeToString(mac.Sum(nil)), signature)
	decoded, err := base64.RawURLEncoding.DecodeString(header)
	require.NoError(t, err)
	require.JSONEq(t, `{"alg":"HS256","kid":"aaaaaa"}`, string(decoded))

	exists := func(id string) bool {
		_, err := secrets.Get(c.ctx, "bootstrap-token-"+id, metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			require.NoError(t, err)
		}
		return err == nil
	}
	c.reaches("the expired token is gone", func() bool { return !exists("dddddd") })
	require.True(t, exists("bbbbbb"))
	c.Step(59 * time.Minute)
	require.True(t, exists("bbbbbb"))
	c.Step(2 * time.Minute)
	c.reaches("its hour has passed", func() bool { return !exists("bbbbbb") })
	signers("aaaaaa")
	require.True(t, exists("aaaaaa"))
	require.True(t, exists("cccccc"))
	require.NoError(t, secrets.Delete(c.ctx, "bootstrap-token-aaaaaa", metav1.DeleteOptions{}))
	signers()
}
