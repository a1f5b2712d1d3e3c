package why_test

import (
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/kubectl-lite/clitest"
	"github.com/coxswain-dev/coxswain/testenv"
)

// refusing starts a webhook that denies every request.
func refusing(t *testing.T) (url, caBundle string) {
	t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if json.NewDecoder(r.Body).Decode(&review) != nil || review.Request == nil {
			http.Error(w, "no review", http.StatusBadRequest)
			return
		}
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID,
			Result: &metav1.Status{Message: "images come from our registry"}}
		review.Request = nil
		_ = json.NewEncoder(w).Encode(review) // the API server reports an incomplete response
	}))
	t.Cleanup(server.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	return server.URL, base64.StdEncoding.EncodeToString(ca)
}

// TestWhy_NamesTheWebhookThatDeniesOrFails has webhooks that deny requests, that cannot be reached, and whose Services
// do not exist.
func TestWhy_NamesTheWebhookThatDeniesOrFails(t *testing.T) {
	t.Parallel()
	l := clitest.Start(t, testenv.WithControllers("deployment", "replicaset"))
	url, ca := refusing(t)
	const configuration = `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: %s}
webhooks:
- name: %[1]s.example.com
  clientConfig: {%s}
  rules: [{operations: [CREATE], apiGroups: [""], apiVersions: [v1], resources: [%s]}]
  sideEffects: None
  failurePolicy: %s
  admissionReviewVersions: [v1]
---`
	l.Succeed(t, fmt.Sprintf(configuration, "images", "url: "+url+", caBundle: "+ca, "pods", "Fail")+
		fmt.Sprintf(configuration, "away", `url: "https://127.0.0.1:1/"`, "secrets", "Ignore")+
		fmt.Sprintf(configuration, "absent", "service: {namespace: default, name: hooks, port: 8443}", "endpoints", "Fail"),
		"create -f -")
	l.Succeed(t, clitest.WebManifest, "create -f -")
	refused := `admission webhook "images.example.com" denied the request: images come from our registry`
	var got string
	require.Eventually(t, func() bool {
		got = l.Run(t, "", "why deploy/web").Out
		return strings.Contains(got, refused)
	}, time.Minute, 10*time.Millisecond)
	require.Regexp(t, `ValidatingWebhookConfiguration/images refused \d+ of the last \d+ requests that it was asked about, `+
		`the last one \S+ ago: `+refused, got)
	require.Contains(t, l.Run(t, "", "why validatingwebhookconfiguration/images").Out, refused)

	l.Succeed(t, "", "create secret generic a")
	got = l.Run(t, "", "why -n default").Out
	require.Regexp(t, `ValidatingWebhookConfiguration/away did not decide about 1 of the last 1 requests that it was `+
		`asked about, the last one \S+ ago: failed calling webhook "away.example.com"`, got)
	require.NotContains(t, got, "ValidatingWebhookConfiguration/images", "a denial is no fault of the webhook")

	require.Contains(t, l.Run(t, "", "why validatingwebhookconfiguration/absent").Out,
		"ValidatingWebhookConfiguration/absent calls Service/hooks in default, which does not exist")
	l.Succeed(t, "", "create service clusterip hooks --tcp=443")
	got = l.Run(t, "", "why validatingwebhookconfiguration/absent").Out
	require.Contains(t, got, "calls the port 8443 of Service/hooks in default, which it does not have")
	require.Contains(t, got, "Service/hooks selects no pods")
}
