package bootstraptoken_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/controllers/lib/controllertest"
)

func TestMain(m *testing.M) { controllertest.Main(m) }

func TestBootstrapTokens_SignAndExpire(t *testing.T) {
	t.Parallel()
	c := controllertest.NewSigning(t, "bootstrapsigner", "tokencleaner")
	secrets, infos := c.Client.CoreV1().Secrets("kube-system"), c.Client.CoreV1().ConfigMaps("kube-public")
	token := func(id string, fields map[string]string) {
		data := map[string]string{"token-id": id, "token-secret": "0123456789abcdef", "usage-bootstrap-signing": "true"}
		for key, value := range fields {
			data[key] = value
		}
		_, err := secrets.Create(c.Context(), &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-" + id}, Type: corev1.SecretTypeBootstrapToken,
			StringData: data,
		}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	token("aaaaaa", nil)
	token("bbbbbb", map[string]string{"expiration": c.Now().Add(time.Hour).Format(time.RFC3339)})
	token("cccccc", map[string]string{"usage-bootstrap-signing": "false"})
	token("dddddd", map[string]string{"expiration": c.Now().Add(-time.Hour).Format(time.RFC3339)})
	const content = "apiVersion: v1\nkind: Config\n"
	_, err := infos.Create(c.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "cluster-info"},
		Data:       map[string]string{"kubeconfig": content, "jws-kubeconfig-zzzzzz": "of one that is gone"},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	var signed map[string]string
	signers := func(ids ...string) {
		t.Helper()
		c.Reaches(strings.Join(ids, " "), func() bool {
			info, err := infos.Get(c.Context(), "cluster-info", metav1.GetOptions{})
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
		_, err := secrets.Get(c.Context(), "bootstrap-token-"+id, metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			require.NoError(t, err)
		}
		return err == nil
	}
	c.Reaches("the expired token is gone", func() bool { return !exists("dddddd") })
	require.True(t, exists("bbbbbb"))
	c.Step(59 * time.Minute)
	require.True(t, exists("bbbbbb"))
	c.Step(2 * time.Minute)
	c.Reaches("its hour has passed", func() bool { return !exists("bbbbbb") })
	signers("aaaaaa")
	require.True(t, exists("aaaaaa"))
	require.True(t, exists("cccccc"))
	require.NoError(t, secrets.Delete(c.Context(), "bootstrap-token-aaaaaa", metav1.DeleteOptions{}))
	signers()
}
