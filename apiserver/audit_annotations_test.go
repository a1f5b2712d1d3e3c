package apiserver_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log"
	"maps"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAudit_AnnotatesAdmission(t *testing.T) {
	t.Parallel()
	s := startAudited(t, "rules: [{level: Metadata, namespaces: [quiet]}, "+auditAll[len("rules: ["):])
	h := hookedBy(s.server)
	h.mutates("early", h.hook("labels.example.com", m{}), h.hook("same.example.com", m{}))
	h.validates("late", h.hook("notes.example.com", m{}),
		h.hook("down.example.com", m{"failurePolicy": "Ignore", "clientConfig": m{"url": "https://" + closedPort(t)}}))
	h.on("labels.example.com", respondPatch(add("/metadata/labels", m{"a": "b"})))
	h.on("notes.example.com", respond(m{"allowed": true, "auditAnnotations": m{"seen": "yes"}}))
	s.validating("auditor", m{
		"matchConstraints": m{"resourceRules": []m{rule("", "configmaps", "CREATE")}},
		"validations":      []m{{"expression": "false", "message": "never"}},
		"auditAnnotations": []m{{"key": "name", "valueExpression": "string(object.metadata.name)"}},
	}, m{"validationActions": []string{"Audit"}})

	e := s.complete(s.create(configMapsURL, settings("a", m{})))
	maps.DeleteFunc(e.Annotations, func(key, _ string) bool { // on a busy machine there are annotations of latencies
		return strings.HasPrefix(key, "authorization.k8s.io/") || strings.HasPrefix(key, "apiserver.latency.k8s.io/")
	})
	require.Equal(t, map[string]string{
		"mutation.webhook.admission.k8s.io/round_0_index_0": `{"configuration":"early","webhook":"labels.example.com",` +
			`"mutated":true}`,
		"patch.webhook.admission.k8s.io/round_0_index_0": `{"configuration":"early","webhook":"labels.example.com",` +
			`"patch":[{"op":"add","path":"/metadata/labels","value":{"a":"b"}}],"patchType":"JSONPatch"}`,
		"mutation.webhook.admission.k8s.io/round_0_index_1": `{"configuration":"early","webhook":"same.example.com",` +
			`"mutated":false}`,
		"notes.example.com/seen": "yes",
		"auditor/name":           "a",
		"validation.policy.admission.k8s.io/validation_failure": `[{"message":"never","policy":"auditor",` +
			`"binding":"auditor-b","expressionIndex":0,"validationActions":["Audit"]}]`,
		"failed-open.validating.webhook.admission.k8s.io/round_0_index_1": "down.example.com",
	}, e.Annotations)

	s.create(namespaces, m{"apiVersion": "v1", "kind": "Namespace", "metadata": m{"name": "quiet"}})
	e = s.complete(s.create("/api/v1/namespaces/quiet/configmaps", settings("a", m{})))
	require.Contains(t, e.Annotations, "mutation.webhook.admission.k8s.io/round_0_index_0")
	require.NotContains(t, e.Annotations, "patch.webhook.admission.k8s.io/round_0_index_0", "it is part of the body")
}

// If a request takes more than half a second, its annotations distinguish the times of a webhook, the queue and etcd.
func TestAudit_AnnotatesLatencies(t *testing.T) {
	t.Parallel()
	s := startAudited(t, auditAll)
	h := hookedBy(s.server)
	h.validates("late", h.hook("late.example.com", m{}))
	h.on("late.example.com", func(w http.ResponseWriter, r *http.Request) {
		<-time.After(600 * time.Millisecond) // longer than the threshold of the annotations
		respond(m{"allowed": true})(w, r)
	})
	took := func(e auditEvent, part string) time.Duration {
		d, err := time.ParseDuration(e.Annotations["apiserver.latency.k8s.io/"+part])
		require.NoError(t, err, part)
		return d
	}
	e := s.complete(s.create(configMapsURL, settings("a", m{})))
	require.Greater(t, took(e, "validating-webhook"), 600*time.Millisecond)
	parts := time.Duration(0)
	for _, part := range []string{"authentication", "authorization", "etcd", "serialize-response-object",
		"response-write"} {
		require.Positive(t, took(e, part), part)
		parts += took(e, part)
	}
	require.Greater(t, took(e, "total"), took(e, "validating-webhook")+parts)
	require.NotContains(t, e.Annotations, "apiserver.latency.k8s.io/mutating-webhook")
}

// Go rejects a certificate without a subject alternative name, which it accepted in the past.
func TestAudit_AnnotatesWebhooksWithoutSAN(t *testing.T) {
	t.Parallel()
	s := startAudited(t, auditAll)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "localhost"},
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	hook := httptest.NewUnstartedServer(http.NotFoundHandler())
	hook.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	hook.Config.ErrorLog = log.New(io.Discard, "", 0)
	hook.StartTLS()
	t.Cleanup(hook.Close)
	h := hookedBy(s.server)
	h.validates("old", h.hook("old.example.com", m{"failurePolicy": "Ignore", "clientConfig": m{
		"url":      strings.Replace(hook.URL, "127.0.0.1", "localhost", 1),
		"caBundle": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}}))

	e := s.complete(s.create(configMapsURL, settings("a", m{})))
	require.Equal(t, "relies on a legacy Common Name field instead of the SAN extension for subject validation",
		e.Annotations["missing-san.invalid-cert.kubernetes.io/localhost"])
	require.True(t, bytes.Contains(s.do(http.MethodGet, "/metrics", nil).ok(200).body,
		[]byte("apiserver_webhooks_x509_missing_san_total 1\n")))
}

func TestAudit_AnnotatesPodSecurity(t *testing.T) {
	t.Parallel()
	s := startAudited(t, "rules: [{level: Metadata}]\n")
	const prefix = "pod-security.kubernetes.io/"
	s.create("/api/v1/namespaces/default/serviceaccounts", m{"metadata": m{"name": "default"}})
	e := s.complete(s.create(pods, pod("a")))
	require.Equal(t, "privileged:latest", e.Annotations[prefix+"enforce-policy"])
	require.NotContains(t, e.Annotations, prefix+"audit-violations")

	s.patch(namespaces+"/default", mergePatch, m{"metadata": m{"labels": m{prefix + "audit": "restricted"}}}).ok(200)
	e = s.complete(s.create(pods, pod("b")))
	require.Equal(t, "privileged:latest", e.Annotations[prefix+"enforce-policy"])
	require.Contains(t, e.Annotations[prefix+"audit-violations"], `would violate PodSecurity "restricted:latest"`)

	s.patch(namespaces+"/default", mergePatch, m{"metadata": m{"labels": m{prefix + "enforce": "restricted"}}}).ok(200)
	e = s.complete(s.do(http.MethodPost, pods, pod("c")).ok(http.StatusForbidden))
	require.Equal(t, "restricted:latest", e.Annotations[prefix+"enforce-policy"])
	require.Equal(t, "allow", e.Annotations["authorization.k8s.io/decision"], "admission refuses, not authorization")
}
