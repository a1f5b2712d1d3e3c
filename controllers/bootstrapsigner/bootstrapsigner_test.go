package bootstrapsigner

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/controllers/lib/controllertest/fakeenv"
)

const content = "apiVersion: v1\nkind: Config\n"

// token returns a token that may sign, after change.
func token(id string, change map[string]string) *corev1.Secret {
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "bootstrap-token-" + id},
		Type: corev1.SecretTypeBootstrapToken, Data: map[string][]byte{"token-id": []byte(id),
			"token-secret": []byte("secret of " + id), "usage-bootstrap-signing": []byte("true")}}
	for key, value := range change {
		s.Data[key] = []byte(value)
	}
	return s
}

func info(data map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-public", Name: "cluster-info"}, Data: data}
}

func signed(t *testing.T, e *fakeenv.Env) map[string]string {
	cm, err := e.Client().CoreV1().ConfigMaps("kube-public").Get(t.Context(), "cluster-info", metav1.GetOptions{})
	require.NoError(t, err)
	return cm.Data
}

// requireSignature verifies a detached JWS as a client does that has the token and the kubeconfig.
func requireSignature(t *testing.T, jws, id string) {
	t.Helper()
	parts := strings.Split(jws, ".")
	require.Len(t, parts, 3)
	require.Empty(t, parts[1])
	header, err := base64.RawURLEncoding.DecodeString(parts[0])
	require.NoError(t, err)
	require.JSONEq(t, `{"alg":"HS256","kid":"`+id+`"}`, string(header))
	mac := hmac.New(sha256.New, []byte("secret of "+id))
	mac.Write([]byte(parts[0] + "." + base64.RawURLEncoding.EncodeToString([]byte(content))))
	require.Equal(t, base64.RawURLEncoding.EncodeToString(mac.Sum(nil)), parts[2])
}

func TestBootstrapSigner_SignsWithSigningTokens(t *testing.T) {
	t.Parallel()
	e := fakeenv.New(t, info(map[string]string{"kubeconfig": content, "other": "kept", "jws-kubeconfig-gone": "old"}),
		token("aaaaaa", nil), token("bbbbbb", map[string]string{"usage-bootstrap-signing": "false"}),
		token("cccccc", map[string]string{"token-id": "dddddd"}), token("eeeeee", map[string]string{"token-secret": ""}),
		token("ffffff", map[string]string{"expiration": "2000-01-01T00:00:00Z"}))
	e.Start(New)
	data := signed(t, e)
	requireSignature(t, data["jws-kubeconfig-aaaaaa"], "aaaaaa")
	delete(data, "jws-kubeconfig-aaaaaa")
	require.Equal(t, map[string]string{"kubeconfig": content, "other": "kept"}, data)
}

func TestBootstrapSigner_DropsASignatureWhenItsTokenExpires(t *testing.T) {
	t.Parallel()
	for _, ahead := range []time.Duration{0, 50 * time.Minute, -50 * time.Minute} {
		e := fakeenv.New(t, info(map[string]string{"kubeconfig": content}))
		expires := e.Clock.Now().Add(time.Hour)
		require.NoError(t, e.Fake.Tracker().Add(token("aaaaaa",
			map[string]string{"expiration": expires.Format(time.RFC3339)})))
		e.Start(New)
		e.Clock.SetAhead(ahead)
		e.Pass(expires.Sub(e.Clock.Now()) - time.Second)
		requireSignature(t, signed(t, e)["jws-kubeconfig-aaaaaa"], "aaaaaa")
		e.Pass(10 * time.Second)
		require.Equal(t, map[string]string{"kubeconfig": content}, signed(t, e), "%s", ahead)
	}
}

func TestBootstrapSigner_WritesOnlyChanges(t *testing.T) {
	t.Parallel()
	for name, cm := range map[string]*corev1.ConfigMap{
		"no kubeconfig": info(map[string]string{"other": "kept"}),
		"no ConfigMap":  {ObjectMeta: metav1.ObjectMeta{Namespace: "kube-public", Name: "another"}},
	} {
		e := fakeenv.New(t, cm, token("aaaaaa", nil))
		e.Start(New)
		require.Empty(t, e.Writes("update", "configmaps"), name)
		require.Empty(t, e.Writes("create", "configmaps"), name)
	}
}
