package legacytokencleaner_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coxswain-dev/coxswain/controllers/lib/controllertest"
)

func TestMain(m *testing.M) { controllertest.Main(m) }

func TestLegacyTokens_AreInvalidatedAndDeletedWhenUnused(t *testing.T) {
	t.Parallel()
	c := controllertest.NewSigning(t, "serviceaccount-token-controller", "legacy-serviceaccount-token-cleaner-controller")
	secrets, accounts := c.Client.CoreV1().Secrets("default"), c.Client.CoreV1().ServiceAccounts("default")
	account, err := accounts.Create(c.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot"}},
		metav1.CreateOptions{})
	require.NoError(t, err)
	tokens := map[string]string{}
	for _, name := range []string{"idle", "used", "mounted", "manual"} {
		_, err := secrets.Create(c.Context(), &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: name,
				Annotations: map[string]string{corev1.ServiceAccountNameKey: "robot"}},
			Type: corev1.SecretTypeServiceAccountToken,
		}, metav1.CreateOptions{})
		require.NoError(t, err)
		c.Reaches("a token", func() bool {
			s, err := secrets.Get(c.Context(), name, metav1.GetOptions{})
			require.NoError(t, err)
			tokens[name] = string(s.Data[corev1.ServiceAccountTokenKey])
			return tokens[name] != ""
		})
		if name != "manual" { // generated Secrets are in the account's list
			account.Secrets = append(account.Secrets, corev1.ObjectReference{Name: name})
		}
	}
	_, err = accounts.Update(c.Context(), account, metav1.UpdateOptions{})
	require.NoError(t, err)
	_, err = c.Client.CoreV1().Pods("default").Create(c.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "one",
			Env: []corev1.EnvVar{{Name: "T", ValueFrom: &corev1.EnvVarSource{
				SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "mounted"},
					Key: "token"},
			}}}}}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	label := func(secret, key string) string {
		s, err := secrets.Get(c.Context(), secret, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "gone"
		}
		require.NoError(t, err)
		return s.Labels[key]
	}
	const lastUsed, invalidSince = "kubernetes.io/legacy-token-last-used", "kubernetes.io/legacy-token-invalid-since"

	// The server records uses, at most once a day each.
	require.Empty(t, label("used", lastUsed))
	for range 2 {
		name, err := c.WhoIs(c.Bearing(tokens["used"]))
		require.NoError(t, err)
		require.Equal(t, "system:serviceaccount:default:robot", name)
	}
	_, err = time.Parse(time.DateOnly, label("used", lastUsed))
	require.NoError(t, err)

	const year = 366 * 24 * time.Hour
	start := c.Now()
	use := func() { // record a use, as the server does
		patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:%q}}}`, lastUsed, c.Now().UTC().Format(time.DateOnly))
		_, err := secrets.Patch(c.Context(), "used", types.MergePatchType, patch, metav1.PatchOptions{})
		require.NoError(t, err)
	}
	c.Step(year / 2)
	use()
	require.Empty(t, label("idle", invalidSince))
	c.Passing(30*24*time.Hour, "who is idle is invalid", func() bool {
		use()
		return label("idle", invalidSince) != ""
	})
	require.GreaterOrEqual(t, c.Since(start), 365*24*time.Hour)
	_, err = c.WhoIs(c.Bearing(tokens["idle"]))
	require.True(t, apierrors.IsUnauthorized(err), "%v", err)
	marked := c.Now()
	c.Passing(30*24*time.Hour, "who is invalid for long is gone", func() bool {
		use()
		return label("idle", invalidSince) == "gone"
	})
	require.GreaterOrEqual(t, c.Since(marked), 300*24*time.Hour)
	for _, name := range []string{"used", "mounted", "manual"} {
		require.Empty(t, label(name, invalidSince), name)
		_, err = c.WhoIs(c.Bearing(tokens[name]))
		require.NoError(t, err, name)
	}
}
