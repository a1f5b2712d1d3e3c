package csrapproving

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"net"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/coxswain-dev/coxswain/controllers/controller"
	"github.com/coxswain-dev/coxswain/controllers/csr"
)

const nodeA = "system:node:a"

// attempt is a request that a test makes, its requester, and the requester's rights. The zero value of the fields
// stands for those of node a, which asks for a certificate of its own.
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
	rights   []string // subresources for which the SubjectAccessReview allows the request
	existing []certificatesv1.CertificateSigningRequestCondition
	issued   bool
}

// client is node a's request for a client certificate, as changed.
func client(change func(*attempt)) attempt {
	a := attempt{signer: certificatesv1.KubeAPIServerClientKubeletSignerName,
		subject: pkix.Name{CommonName: nodeA, Organization: []string{"system:nodes"}},
		usages:  []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
		user:    nodeA, groups: []string{"system:nodes", "system:authenticated"}, rights: []string{"selfnodeclient"}}
	change(&a)
	return a
}

// serving is node a's request for a serving certificate for its own name and address, as changed.
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

// approved reconciles the request and reports whether it became approved. The API server has the Nodes a and b.
func (a attempt) approved(t *testing.T) bool {
	r := a.object(t)
	server := fake.NewClientset(r, node("a", "10.0.0.1", "fd00::1"), node("b", "10.0.0.2"))
	server.PrependReactor("create", "subjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object,
		error) {
		review := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview).DeepCopy()
		asked := review.Spec.ResourceAttributes
		for _, right := range a.rights {
			review.Status.Allowed = review.Status.Allowed || *asked == authorizationv1.ResourceAttributes{
				Group: "certificates.k8s.io", Resource: "certificatesigningrequests", Subresource: right,
				Verb: "create", Version: "*"}
		}
		require.Equal(t, a.user, review.Spec.User)
		require.Equal(t, a.groups, review.Spec.Groups)
		require.Equal(t, "user-uid", review.Spec.UID)
		require.Equal(t, authorizationv1.ExtraValue{"a test"}, review.Spec.Extra["example.com/from"])
		return true, review, nil
	})
	if err := (&approver{server}).reconcile(t.Context(), r); err != nil {
		require.ErrorIs(t, err, controller.ErrRequeue)
	}
	after, err := server.CertificatesV1().CertificateSigningRequests().Get(t.Context(), r.Name, metav1.GetOptions{})
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(after.Status.Conditions), len(a.existing))
	return len(after.Status.Conditions) > len(a.existing) && csr.Has(after, certificatesv1.CertificateApproved) != nil
}

func node(name string, ips ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: name}}
	for _, ip := range ips {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip})
	}
	return n
}

func TestApproving_ApprovesANodesOwnRequest(t *testing.T) {
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
		"for an address of another Node":         func(a *attempt) { a.ips = []string{"10.0.0.2"} },
		"for an address beside its own":          func(a *attempt) { a.ips = append(a.ips, "10.96.0.1") },
		"for an address alone that is no Node's": func(a *attempt) { a.names, a.ips = nil, []string{"10.96.0.1"} },
		"for the name of another Node":           func(a *attempt) { a.names = []string{"b"} },
		"for a name beside its own": func(a *attempt) {
			a.names = append(a.names, "kubernetes.default.svc")
		},
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
			require.False(t, serving(change).approved(t))
		})
	}
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
