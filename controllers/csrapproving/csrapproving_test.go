package csrapproving

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
	"github.com/coxswain-dev/coxswain/controllers/lib/controllertest/fakeenv"
)

const nodeA = "system:node:a"

// attempt is a certificate request of the test with its requester and the requester's rights. client and
// serving fill the fields with values of node a, which requests a certificate for itself.
type attempt struct {
	signer   string
	subject  pkix.Name
	names    []string
	ips      []string
	emails   []string
	uris     []string
	usages   []certificatesv1.KeyUsage
	user     string
	groups   []string
	rights   []string // subresources that the SubjectAccessReview allows
	existing []certificatesv1.CertificateSigningRequestCondition
	issued   bool
}

// client returns node a's request for a client certificate, after change.
func client(change func(*attempt)) attempt {
	a := attempt{signer: certificatesv1.KubeAPIServerClientKubeletSignerName,
		subject: pkix.Name{CommonName: nodeA, Organization: []string{"system:nodes"}},
		usages:  []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
		user:    nodeA, groups: []string{"system:nodes", "system:authenticated"}, rights: []string{"selfnodeclient"}}
	change(&a)
	return a
}

// serving returns node a's request for a serving certificate for its own name and address, after change.
func serving(change func(*attempt)) attempt {
	return client(func(a *attempt) {
		a.signer, a.rights = certificatesv1.KubeletServingSignerName, nil
		a.names, a.ips = []string{"a"}, []string{"10.0.0.1"}
		a.usages = []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth}
		change(a)
	})
}

func condition(c certificatesv1.RequestConditionType) []certificatesv1.CertificateSigningRequestCondition {
	return []certificatesv1.CertificateSigningRequestCondition{{Type: c, Status: corev1.ConditionTrue}}
}

func (a attempt) object(t *testing.T) *certificatesv1.CertificateSigningRequest {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.CertificateRequest{Subject: a.subject, DNSNames: a.names, EmailAddresses: a.emails}
	for _, ip := range a.ips {
		template.IPAddresses = append(template.IPAddresses, net.ParseIP(ip))
	}
	for _, u := range a.uris {
		parsed, err := url.Parse(u)
		require.NoError(t, err)
		template.URIs = append(template.URIs, parsed)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	require.NoError(t, err)
	r := &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: "request"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
			SignerName: a.signer, Usages: a.usages, Username: a.user, UID: "user-uid", Groups: a.groups,
			Extra: map[string]certificatesv1.ExtraValue{"example.com/from": {"a test"}},
		}}
	r.Status.Conditions = a.existing
	if a.issued {
		r.Status.Certificate = []byte("certificate")
	}
	return r
}

// outcome is the decision about a request: Approved, Denied, or "" if it is left to an administrator.
type outcome struct {
	decision certificatesv1.RequestConditionType
	message  string
	events   []string
}

// state holds the Nodes a and b and two Services, after the changes of a test.
type state struct {
	nodes    []*corev1.Node
	services []*corev1.Service
	age      time.Duration // of the request
	signing  controller.SigningSettings
}

func newCluster(change ...func(*state)) *state {
	keys := testKeys()
	c := &state{nodes: []*corev1.Node{node("a", "10.0.0.1", "fd00::1"), node("b", "10.0.0.2")},
		services: []*corev1.Service{service("web", "10.96.0.9"), service("outside", "172.30.0.9")},
		signing: controller.SigningSettings{Default: keys[0], KubeletServing: keys[1],
			APIServerNames: []string{"api.example.org"}}}
	for _, f := range change {
		f(c)
	}
	return c
}

// outcome reconciles the request once and returns the decision and the Events.
func (c *state) outcome(t *testing.T, a attempt) outcome {
	r := a.object(t)
	objects := []runtime.Object{r,
		&networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"},
			Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/16", "fd96::/112"}}},
		&discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes",
			Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"}},
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.6"}}}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}},
	}
	for _, n := range c.nodes {
		objects = append(objects, n)
	}
	for _, s := range c.services {
		objects = append(objects, s)
	}
	e := fakeenv.New(t, objects...)
	r.CreationTimestamp = metav1.NewTime(e.Clock.Now().Add(-c.age))
	requests := certificatesv1.SchemeGroupVersion.WithResource("certificatesigningrequests")
	require.NoError(t, e.Fake.Tracker().Update(requests, r, ""))
	e.Settings.Signing, e.RootCA = c.signing, testKeys()[0].Cert
	e.ServerCertificate = func(context.Context) (*x509.Certificate, error) {
		return &x509.Certificate{DNSNames: []string{"san.example.org", "*.lb.example"},
			IPAddresses: []net.IP{net.IPv4(10, 0, 0, 60)}}, nil
	}
	e.Fake.PrependReactor("create", "subjectaccessreviews", a.review(t))
	e.Start(New)
	after, err := e.Client().CertificatesV1().CertificateSigningRequests().Get(t.Context(), r.Name, metav1.GetOptions{})
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(after.Status.Conditions), len(a.existing))
	o := outcome{events: e.Events()}
	if len(after.Status.Conditions) > len(a.existing) {
		decision := after.Status.Conditions[len(a.existing)]
		require.Equal(t, corev1.ConditionTrue, decision.Status)
		o.decision, o.message = decision.Type, decision.Message
	}
	return o
}

// review answers the controller's SubjectAccessReviews by the requester's rights.
func (a attempt) review(t *testing.T) clienttesting.ReactionFunc {
	return func(action clienttesting.Action) (bool, runtime.Object, error) {
		review := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview).DeepCopy()
		attributes := review.Spec.ResourceAttributes
		for _, right := range a.rights {
			review.Status.Allowed = review.Status.Allowed || *attributes == authorizationv1.ResourceAttributes{
				Group: "certificates.k8s.io", Resource: "certificatesigningrequests", Subresource: right,
				Verb: "create", Version: "*"}
		}
		require.Equal(t, a.user, review.Spec.User)
		require.Equal(t, a.groups, review.Spec.Groups)
		require.Equal(t, "user-uid", review.Spec.UID)
		require.Equal(t, authorizationv1.ExtraValue{"a test"}, review.Spec.Extra["example.com/from"])
		return true, review, nil
	}
}

func (a attempt) approved(t *testing.T) bool {
	return newCluster().outcome(t, a).decision == certificatesv1.CertificateApproved
}

// testKeys returns the cluster's CA and the CA of nodes' serving certificates.
var testKeys = sync.OnceValue(func() (pairs [2]controller.KeyPair) {
	for i := range pairs {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			panic(err)
		}
		template := &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true,
			NotAfter: time.Date(2040, 1, 1, 0, 0, 0, 0, time.UTC)}
		der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
		if err != nil {
			panic(err)
		}
		pairs[i] = controller.KeyPair{Cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
			Key: []byte("a key")}
	}
	return pairs
})

func service(name string, addresses ...string) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: corev1.ServiceSpec{ClusterIP: addresses[0], ClusterIPs: addresses}}
}

func node(name string, ips ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: name}}
	for _, ip := range ips {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip})
	}
	return n
}

func TestApproving_ApprovesRequestsOfTheNodeItself(t *testing.T) {
	t.Parallel()
	for name, a := range map[string]attempt{
		"client": client(func(*attempt) {}),
		"client, by a bootstrap token": client(func(a *attempt) {
			a.user, a.groups, a.rights = "system:bootstrap:abcdef", []string{"system:bootstrappers"}, []string{"nodeclient"}
		}),
		"serving":                   serving(func(*attempt) {}),
		"serving, at every address": serving(func(a *attempt) { a.ips = []string{"10.0.0.1", "fd00::1"} }),
		"serving, by a user with the right": serving(func(a *attempt) {
			a.user, a.groups, a.rights = "jane", []string{"system:authenticated"}, []string{"nodeserver"}
		}),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.True(t, a.approved(t))
		})
	}
}

func TestApproving_RefusesAServingCertificate(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*attempt){
		"for an address of another Node":          func(a *attempt) { a.ips = []string{"10.0.0.2"} },
		"for an address beside its own":           func(a *attempt) { a.ips = append(a.ips, "10.0.0.7") },
		"for an address alone that is no Node's":  func(a *attempt) { a.names, a.ips = nil, []string{"10.0.0.7"} },
		"for the name of another Node":            func(a *attempt) { a.names = []string{"b"} },
		"for a name beside its own":               func(a *attempt) { a.names = append(a.names, "c") },
		"for no name and no address":              func(a *attempt) { a.names, a.ips = nil, nil },
		"for an email address":                    func(a *attempt) { a.emails = []string{"a@example.com"} },
		"for a URI":                               func(a *attempt) { a.uris = []string{"spiffe://cluster/a"} },
		"of another Node":                         func(a *attempt) { a.user = "system:node:b" },
		"by the Node's name outside of its group": func(a *attempt) { a.groups = []string{"system:authenticated"} },
		"in the Nodes' group under another name":  func(a *attempt) { a.user = "jane" },
		"of a Node that does not exist": func(a *attempt) {
			a.user, a.subject.CommonName = "system:node:c", "system:node:c"
		},
		"by a right to client certificates": func(a *attempt) {
			a.user, a.rights = "jane", []string{"nodeclient", "selfnodeclient"}
		},
		"by a right, for an address of another": func(a *attempt) {
			a.rights, a.ips = []string{"nodeserver"}, []string{"10.0.0.2"}
		},
		"whose subject is in another organization": func(a *attempt) {
			a.subject.Organization = []string{"system:masters"}
		},
		"whose subject is in two organizations": func(a *attempt) {
			a.subject.Organization = []string{"system:nodes", "system:masters"}
		},
		"whose subject is no Node": func(a *attempt) { a.user, a.subject.CommonName = "a", "a" },
		"that is for clients too":  func(a *attempt) { a.usages = append(a.usages, certificatesv1.UsageClientAuth) },
		"that was denied":          func(a *attempt) { a.existing = condition(certificatesv1.CertificateDenied) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Empty(t, newCluster().outcome(t, serving(change)).decision, "an administrator may still approve it")
		})
	}
}

// The node writes the forbidden name or address into its status before it requests the certificate.
func TestApproving_DeniesForbiddenHosts(t *testing.T) {
	t.Parallel()
	for claim, words := range map[string]string{
		"kubernetes":                           "API server",
		"kubernetes.default":                   "API server",
		"Kubernetes.Default.":                  "API server",
		"kubernetes.default.svc":               "Services",
		"kubernetes.default.svc.cluster.local": "Services",
		"hook.x.svc":                           "Services",
		"hook.x.svc.example.org":               "Services",
		"10-0-0-1.x.pod.cluster.local":         "Services or pods",
		"anything.cluster.local":               "Services or pods",
		"localhost":                            "every machine",
		"a.localhost":                          "every machine",
		"*.example.org":                        "many names",
		"10.96.0.1":                            "address of Services",
		"::ffff:10.96.0.1":                     "address of Services",
		"fd96::a":                              "address of Services",
		"0.0.0.0":                              "no machine",
		"::":                                   "no machine",
		"224.0.0.1":                            "no machine",
		"ff02::1":                              "no machine",
		"255.255.255.255":                      "no machine",
		"169.254.169.254":                      "link-local",
		"fe80::1":                              "link-local",
	} {
		t.Run(claim, func(t *testing.T) {
			t.Parallel()
			o := newCluster(claiming("a", claim)).outcome(t, serving(asking(claim)))
			require.Equal(t, certificatesv1.CertificateDenied, o.decision)
			require.Contains(t, o.message, words)
		})
	}
}

// The node writes another object's name or address into its status before it requests the certificate.
func TestApproving_LeavesConflictingHostsToAnAdministrator(t *testing.T) {
	t.Parallel()
	for claim, words := range map[string]string{
		"10.0.0.2":        "also of Node b",
		"b":               "also of Node b",
		"B.":              "also of Node b",
		"172.30.0.9":      "also of Service default/outside",
		"203.0.113.3":     "also of Service default/external",
		"lb.example.org":  "also of Service default/external",
		"10.0.0.6":        "address of an API server",
		"api.example.org": "address of an API server",
		"san.example.org": "address of an API server",
		"x.lb.example":    "address of an API server",
		"10.0.0.60":       "address of an API server",
		"web.shop":        "the name of a Service in the namespace shop",
		"Web.Shop.":       "the name of a Service in the namespace shop",
		"127.0.0.1":       "address of an API server",
		"127.1.2.3":       "address of an API server",
		"::1":             "address of an API server",
	} {
		t.Run(claim, func(t *testing.T) {
			t.Parallel()
			c := newCluster(claiming("a", claim), withExternalService, aged(time.Minute))
			o := c.outcome(t, serving(asking(claim)))
			require.Empty(t, o.decision)
			require.NotEmpty(t, o.events)
			require.Contains(t, o.events[0], "Warning NotApproved Not approved automatically: ")
			require.Contains(t, o.events[0], words)
		})
	}
}

// Otherwise a Service that lists a Node's address as its own would keep the Node from its certificate.
func TestApproving_IgnoresAddressesThatAServiceAsksFor(t *testing.T) {
	t.Parallel()
	for _, claim := range []string{"203.0.113.1", "203.0.113.2"} {
		c := newCluster(claiming("a", claim), withExternalService)
		require.Equal(t, certificatesv1.CertificateApproved, c.outcome(t, serving(asking(claim))).decision, claim)
	}
}

func TestApproving_ApprovesNamesOfTwoLabelsOutsideOfNamespaces(t *testing.T) {
	t.Parallel()
	for _, claim := range []string{"web.elsewhere", "web.shop.example.org", "shop", "lb.example"} {
		o := newCluster(claiming("a", claim)).outcome(t, serving(asking(claim)))
		require.Equal(t, certificatesv1.CertificateApproved, o.decision, claim)
	}
}

func TestApproving_ApprovesAPIServerAddressesOfControlPlaneNodes(t *testing.T) {
	t.Parallel()
	for _, claim := range []string{"10.0.0.6", "127.0.0.1", "::1", "api.example.org", "san.example.org", "10.0.0.60"} {
		c := newCluster(claiming("a", claim))
		c.nodes[0].Labels = map[string]string{"node-role.kubernetes.io/control-plane": ""}
		require.Equal(t, certificatesv1.CertificateApproved, c.outcome(t, serving(asking(claim))).decision, claim)
	}
}

func TestApproving_NodesOfOneAgentShareItsAddress(t *testing.T) {
	t.Parallel()
	c := newCluster(claiming("b", "10.0.0.1"))
	require.Empty(t, c.outcome(t, serving(func(*attempt) {})).decision)
	c.nodes[1].Annotations = map[string]string{"coxswain.dev/agent": "a"}
	require.Equal(t, certificatesv1.CertificateApproved, c.outcome(t, serving(func(*attempt) {})).decision)
	c.nodes[1].Annotations = nil
	for _, agent := range []string{"a", "b"} {
		c.nodes[0].Annotations = map[string]string{"coxswain.dev/agent": agent}
		require.Empty(t, c.outcome(t, serving(func(*attempt) {})).decision, "agent %s", agent)
	}
}

func TestApproving_RequeuesUndecidedRequestsForALimitedTime(t *testing.T) {
	t.Parallel()
	foreign := serving(func(a *attempt) { a.ips = []string{"10.0.0.7"} })
	require.Empty(t, newCluster().outcome(t, foreign).events, "its Node's status may be on its way")
	for age, again := range map[time.Duration]bool{0: true, undecidedFor - time.Second: true, undecidedFor: false} {
		a := &approver{clock: clocktesting.NewFakePassiveClock(time.Unix(1e9, 0)), events: &record.FakeRecorder{}}
		r := foreign.object(t)
		r.CreationTimestamp = metav1.NewTime(a.clock.Now().Add(-age))
		err := a.undecided(r, "doubt")
		require.Equal(t, again, errors.Is(err, controller.ErrRequeue), age)
		require.Equal(t, again, err != nil, age)
	}
}

func TestApproving_NeedsACAForServingCertificatesAlone(t *testing.T) {
	t.Parallel()
	cluster, nodes := testKeys()[0], testKeys()[1]
	for name, signing := range map[string]controller.SigningSettings{
		"that of the cluster":              {Default: cluster},
		"none":                             {},
		"that of the cluster, named again": {KubeletServing: cluster},
		"one that signs for kubelets too":  {KubeletServing: nodes, KubeletClient: nodes},
		"one that signs anything":          {Default: cluster, KubeletServing: nodes, LegacyUnknown: nodes},
	} {
		c := newCluster(func(c *state) { c.signing = signing })
		require.Empty(t, c.outcome(t, serving(func(*attempt) {})).decision, name)
	}
}

// claiming returns a change that writes a name or an address into a Node's status.
func claiming(name, claim string) func(*state) {
	return func(c *state) {
		for _, n := range c.nodes {
			if n.Name == name {
				n.Status.Addresses = append(n.Status.Addresses,
					corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: claim})
			}
		}
	}
}

func asking(claim string) func(*attempt) {
	return func(a *attempt) {
		a.names, a.ips = nil, nil
		if net.ParseIP(claim) != nil {
			a.ips = []string{claim}
		} else {
			a.names = []string{claim}
		}
	}
}

func aged(d time.Duration) func(*state) { return func(c *state) { c.age = d } }

func withExternalService(c *state) {
	s := service("external", corev1.ClusterIPNone)
	s.Spec.ExternalIPs, s.Spec.LoadBalancerIP = []string{"203.0.113.1"}, "203.0.113.2"
	s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.3"}, {Hostname: "lb.example.org"}}
	c.services = append(c.services, s)
}

func TestApproving_RefusesAClientCertificate(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*attempt){
		"without a right": func(a *attempt) { a.rights = nil },
		"of another Node, by the right to one's own": func(a *attempt) {
			a.user = "system:node:b"
		},
		"by a right to serving certificates": func(a *attempt) { a.rights = []string{"nodeserver"} },
		"for an address":                     func(a *attempt) { a.ips = []string{"10.0.0.1"} },
		"for a name":                         func(a *attempt) { a.names = []string{"a"} },
		"whose subject is in another organization": func(a *attempt) {
			a.subject.Organization = []string{"system:masters"}
		},
		"whose subject is no Node": func(a *attempt) { a.user, a.subject.CommonName = "jane", "jane" },
		"whose subject is a Node without a name": func(a *attempt) {
			a.user, a.subject.CommonName = "system:node:", "system:node:"
		},
		"that is for servers too": func(a *attempt) {
			a.usages = append(a.usages, certificatesv1.UsageServerAuth)
		},
		"that was denied": func(a *attempt) {
			a.existing = condition(certificatesv1.CertificateDenied)
		},
		"that has been approved": func(a *attempt) {
			a.existing = condition(certificatesv1.CertificateApproved)
		},
		"that has been issued": func(a *attempt) { a.issued = true },
		"of the signer for users": func(a *attempt) {
			a.signer = certificatesv1.KubeAPIServerClientSignerName
		},
		"of a signer of others": func(a *attempt) { a.signer = "example.com/signer" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.False(t, client(change).approved(t))
		})
	}
}
