package apiserver_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	trustBundles    = "/apis/certificates.k8s.io/v1/clustertrustbundles"
	podCertificates = "/apis/certificates.k8s.io/v1/namespaces/default/podcertificaterequests"
)

func (s *server) trustBundle(name, signer string) m {
	s.t.Helper()
	return m{"apiVersion": "certificates.k8s.io/v1", "kind": "ClusterTrustBundle", "metadata": m{"name": name},
		"spec": m{"signerName": signer, "trustBundle": string(trustAnchor(s.t))}}
}

// grant gives a user one more right.
func (s *server) grant(user, name string, rule m) {
	s.t.Helper()
	s.create(clusterRoles, m{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
		"metadata": m{"name": name}, "rules": []m{rule}})
	s.create(clusterRoleBindings, clusterRoleBinding(name, name, subject("User", user)))
}

func signerRule(verb, name string) m {
	return m{"apiGroups": []string{"certificates.k8s.io"}, "resources": []string{"signers"},
		"resourceNames": []string{name}, "verbs": []string{verb}}
}

func TestTrustBundle_RequiresTheRightToAttest(t *testing.T) {
	t.Parallel()
	s := start(t)
	jane := s.may("jane", "certificates.k8s.io", "clustertrustbundles", "create", "get", "list", "patch", "update")
	jane.create(trustBundles, s.trustBundle("anybody", ""))
	mine := s.trustBundle("example.com:signer:a", "example.com/signer")
	require.True(t, jane.do(http.MethodPost, trustBundles,
		mine).forbidden(`user not permitted to attest for signerName \"example.com/signer\"`))
	s.grant("jane", "one", signerRule("attest", "example.com/signer"))
	jane.create(trustBundles, mine)
	other := s.trustBundle("example.com:other:a", "example.com/other")
	require.True(t, jane.do(http.MethodPost, trustBundles, other).forbidden("attest"))
	s.create(trustBundles, other)
	path := trustBundles + "/example.com:other:a"
	jane.patch(path, mergePatch, m{"metadata": m{"labels": m{"a": "b"}}}).ok(http.StatusOK)
	changed := m{"spec": m{"trustBundle": string(trustAnchor(t))}}
	require.True(t, jane.patch(path, mergePatch, changed).forbidden("attest"))
	s.grant("jane", "domain", signerRule("attest", "example.com/*"))
	jane.patch(path, mergePatch, changed).ok(http.StatusOK)
	require.Equal(t, []string{"example.com:other:a"},
		jane.get(trustBundles+"?fieldSelector=spec.signerName%3Dexample.com/other").names())

	// Every ServiceAccount may read them.
	robot := s.as("system:serviceaccount:default:robot", "system:serviceaccounts")
	require.Len(t, robot.get(trustBundles).names(), 3)
}

func TestSigningRequest_IsNotApprovedByAWriteToItself(t *testing.T) {
	t.Parallel()
	s := start(t)
	jane := s.may("jane", "certificates.k8s.io", "certificatesigningrequests", "create", "get", "patch", "update")
	approved := m{"conditions": []any{m{"type": "Approved", "status": "True", "reason": "Me", "message": "",
		"lastUpdateTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z"}}}
	sent := s.signingRequest("r", "kubernetes.io/kube-apiserver-client")
	sent["status"] = approved
	created := jane.create(requests, sent)
	require.Empty(t, created.at("status"))
	doc, path := created.object().Object, requests+"/r"
	doc["status"] = approved
	jane.put(path, doc).ok(http.StatusOK)
	change := m{"status": approved}
	jane.patch(path, mergePatch, change).ok(http.StatusOK)
	jane.patch(path, strategicPatch, change).ok(http.StatusOK)
	jane.patch(path, jsonPatch, []m{{"op": "add", "path": "/status", "value": approved}}).ok(http.StatusOK)
	jane.patch(path+"?fieldManager=jane&force=true", "application/apply-patch+yaml",
		m{"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "spec": sent["spec"],
			"status": approved}).ok(http.StatusOK)
	require.Empty(t, s.get(path).at("status"))
	jane.patch(path+"/approval", mergePatch, change).refused(http.StatusForbidden, metav1.StatusReasonForbidden,
		"certificatesigningrequests/approval")
	s.patch(path+"/status", mergePatch, change).refused(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid,
		`updates may not add a condition of type "Approved"`)
	approved["conditions"] = append(approved["conditions"].([]any), m{"type": "example.com/Seen", "status": "Unknown"})
	s.patch(path+"/approval", mergePatch, change).ok(http.StatusOK)
	jane.patch(path, mergePatch, m{"status": nil}).ok(http.StatusOK)
	require.Len(t, s.get(path).at("status", "conditions"), 2, "approval writes conditions of any type")
	s.patch(path+"/status", mergePatch, m{"status": m{"certificate": "aGVsbG8="}}).refused(
		http.StatusUnprocessableEntity, metav1.StatusReasonInvalid,
		`status.certificate: Invalid value: "<certificate data>": must contain at least one CERTIFICATE PEM block`)
}

func TestPodCertificateRequest_RequiresTheRightToSign(t *testing.T) {
	t.Parallel()
	s := start(t)
	obj := m{"apiVersion": "certificates.k8s.io/v1", "kind": "PodCertificateRequest", "metadata": m{"name": "r"},
		"spec": s.podCertificateSpec(nil)}
	s.create(podCertificates, obj)
	require.EqualValues(t, 86400, s.get(podCertificates+"/r").at("spec", "maxExpirationSeconds"))
	jane := s.may("jane", "certificates.k8s.io", "podcertificaterequests/status", "patch")
	denied := m{"status": m{"conditions": []m{{"type": "Denied", "status": "True", "reason": "No", "message": "",
		"lastTransitionTime": metav1.Now().UTC().Format(time.RFC3339)}}}}
	status := podCertificates + "/r/status"
	jane.patch(status, mergePatch, denied).refused(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid,
		`User "jane" is not permitted to "sign" for signer "example.com/signer"`)
	s.grant("jane", "sign", signerRule("sign", "example.com/*"))
	jane.patch(status, mergePatch, denied).ok(http.StatusOK)
	jane.patch(status, mergePatch, m{"status": m{"conditions": nil}}).refused(http.StatusUnprocessableEntity,
		metav1.StatusReasonInvalid, "immutable after PodCertificateRequest is issued, denied, or failed")
	s.patch(podCertificates+"/r", mergePatch, m{"spec": m{"podName": "q"}}).refused(http.StatusUnprocessableEntity,
		metav1.StatusReasonInvalid, "field is immutable")
}

// podCertificateSpec returns a valid spec with changes.
func (s *server) podCertificateSpec(change m) m {
	s.t.Helper()
	spec := m{"signerName": "example.com/signer", "podName": "p", "podUID": "1", "serviceAccountName": "robot",
		"serviceAccountUID": "2",
		"nodeName":          "node-a", "nodeUID": "3", "stubPKCS10Request": stubRequest(s.t)}
	for key, value := range change {
		spec[key] = value
	}
	return spec
}

func TestNodeRestriction_OfCertificates(t *testing.T) {
	t.Parallel()
	s := start(t)
	uid := func(path string) string { return string(s.get(path).object().GetUID()) }
	for _, name := range []string{"node-a", "node-b"} {
		s.create(nodes, m{"metadata": m{"name": name}})
	}
	s.create(accounts, m{"metadata": m{"name": "robot"}})
	certified := []m{{"name": "cert",
		"projected": m{"sources": []m{{"podCertificate": m{"signerName": "example.com/signer", "keyType": "ED25519",
			"credentialBundlePath": "c.pem"}}}}}}
	s.create(pods, podOf("mine", m{"nodeName": "node-a", "serviceAccountName": "robot", "volumes": certified}))
	s.create(pods, podOf("theirs", m{"nodeName": "node-b", "serviceAccountName": "robot", "volumes": certified}))
	a := s.as("system:node:node-a", "system:nodes")
	sound := m{"podName": "mine", "podUID": uid(pods + "/mine"), "serviceAccountUID": uid(accounts + "/robot"),
		"nodeUID": uid(nodes + "/node-a")}
	ask := func(change m) *answer {
		spec := s.podCertificateSpec(sound)
		for key, value := range change {
			spec[key] = value
		}
		return a.do(http.MethodPost, podCertificates,
			m{"apiVersion": "certificates.k8s.io/v1", "kind": "PodCertificateRequest",
				"metadata": m{"generateName": "r-"}, "spec": spec})
	}
	ask(nil).ok(http.StatusCreated)
	for _, c := range []struct {
		words  string
		change m
	}{
		{"which is not the requesting node", m{"nodeName": "node-b"}},
		{"names node UID", m{"nodeUID": "x"}},
		{"contains pod UID", m{"podUID": "x"}},
		{"is not running on node", m{"podName": "theirs", "podUID": uid(pods + "/theirs")}},
		{"contains serviceAccountName", m{"serviceAccountName": "other"}},
		{"names service account UID", m{"serviceAccountUID": "x"}},
		{"does not have a podCertificate projection for signer", m{"signerName": "example.com/other"}},
	} {
		require.Truef(t, ask(c.change).forbidden(c.words), "%s", c.words)
	}
	ask(m{"podName": "none"}).refused(http.StatusInternalServerError, metav1.StatusReasonInternalError, "not found")
	s.grant("system:node:node-a", "other-signer", m{"apiGroups": []string{"certificates.k8s.io"},
		"resources":     []string{"example.com:other"},
		"resourceNames": []string{"robot"}, "verbs": []string{"request-serviceaccounts-podcertificate-signer"}})
	ask(m{"signerName": "example.com/other"}).ok(http.StatusCreated)

	serving := s.signingRequest("r", "kubernetes.io/kubelet-serving", "system:nodes")
	require.True(t, a.do(http.MethodPost, requests,
		serving).forbidden("can only create a node CSR with CN=system:node:node-a"))
}
