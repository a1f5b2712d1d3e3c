package serviceaccounttoken_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/controllers/lib/controllertest"
)

func TestMain(m *testing.M) { controllertest.Main(m) }

func TestServiceAccountToken_FillsSecretsAndDeletesThemWithTheAccount(t *testing.T) {
	t.Parallel()
	c := controllertest.NewSigning(t, "serviceaccount-token-controller")
	accounts, secrets := c.Client.CoreV1().ServiceAccounts("default"), c.Client.CoreV1().Secrets("default")
	account, err := accounts.Create(c.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot"}},
		metav1.CreateOptions{})
	require.NoError(t, err)
	create := func(name, owner string, data map[string][]byte) {
		_, err := secrets.Create(c.Context(), &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: name,
				Annotations: map[string]string{corev1.ServiceAccountNameKey: owner}},
			Type: corev1.SecretTypeServiceAccountToken, Data: data,
		}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	filled := func(name string) *corev1.Secret {
		t.Helper()
		var secret *corev1.Secret
		c.Reaches(name+" is filled", func() bool {
			var err error
			secret, err = secrets.Get(c.Context(), name, metav1.GetOptions{})
			require.NoError(t, err)
			return len(secret.Data[corev1.ServiceAccountTokenKey]) > 0 &&
				secret.Annotations[corev1.ServiceAccountUIDKey] != ""
		})
		return secret
	}
	awaitGone := func(name string) {
		t.Helper()
		c.Reaches(name+" is deleted", func() bool {
			_, err := secrets.Get(c.Context(), name, metav1.GetOptions{})
			return apierrors.IsNotFound(err)
		})
	}
	create("robot-token", "robot", nil)
	secret := filled("robot-token")
	require.Equal(t, string(account.UID), secret.Annotations[corev1.ServiceAccountUIDKey])
	require.Equal(t, "default", string(secret.Data[corev1.ServiceAccountNamespaceKey]))
	require.Equal(t, string(c.Config.CAData), string(secret.Data[corev1.ServiceAccountRootCAKey]))
	token := string(secret.Data[corev1.ServiceAccountTokenKey])
	name, err := c.WhoIs(c.Bearing(token))
	require.NoError(t, err)
	require.Equal(t, "system:serviceaccount:default:robot", name)

	// An existing token is not replaced, and a removed token is added again.
	create("own", "robot", map[string][]byte{corev1.ServiceAccountTokenKey: []byte("mine"), "more": []byte("data")})
	own := filled("own")
	require.Equal(t, "mine", string(own.Data[corev1.ServiceAccountTokenKey]))
	require.Equal(t, "data", string(own.Data["more"]))
	_, err = secrets.Patch(c.Context(), "robot-token", "application/merge-patch+json", []byte(`{"data":{"token":null}}`),
		metav1.PatchOptions{})
	require.NoError(t, err)
	require.NotEmpty(t, filled("robot-token").Data[corev1.ServiceAccountTokenKey])

	create("orphan", "nobody", nil)
	awaitGone("orphan")
	require.NoError(t, accounts.Delete(c.Context(), "robot", metav1.DeleteOptions{}))
	awaitGone("robot-token")
	awaitGone("own")
	_, err = c.WhoIs(c.Bearing(token))
	require.True(t, apierrors.IsUnauthorized(err), "%v", err)
}
