package tokencleaner

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"github.com/coxswain-dev/coxswain/controllers/lib/controllertest/fakeenv"
)

func token(name, expiration string) *corev1.Secret {
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: name, UID: types.UID(name + "-1"),
		ResourceVersion: "7"}, Type: corev1.SecretTypeBootstrapToken, Data: map[string][]byte{}}
	if expiration != "" {
		s.Data["expiration"] = []byte(expiration)
	}
	return s
}

func names(t *testing.T, e *fakeenv.Env) (names []string) {
	list, err := e.Client().CoreV1().Secrets("kube-system").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	for _, s := range list.Items {
		names = append(names, s.Name)
	}
	return names
}

func TestTokenCleaner_DeletesExpiredTokens(t *testing.T) {
	t.Parallel()
	e := fakeenv.New(t)
	after := func(d time.Duration) string { return e.Clock.Now().Add(d).Format(time.RFC3339) }
	ending := token("going", after(-time.Hour))
	ending.DeletionTimestamp, ending.Finalizers = new(metav1.NewTime(e.Clock.Now())), []string{"example.com/hold"}
	for _, s := range []*corev1.Secret{token("past", after(-time.Second)), token("now", after(0)), token("soon", after(time.Minute)),
		token("later", after(time.Hour)), token("endless", ""), token("unreadable", "tomorrow"), ending} {
		require.NoError(t, e.Fake.Tracker().Add(s))
	}
	e.Start(New)
	require.Equal(t, []string{"endless", "going", "later", "soon"}, names(t, e))
	e.Pass(time.Minute - time.Second)
	require.Equal(t, []string{"endless", "going", "later", "soon"}, names(t, e))
	e.Pass(time.Second)
	require.Equal(t, []string{"endless", "going", "later"}, names(t, e))
	for _, action := range e.Writes("delete", "secrets") {
		o := action.(clienttesting.DeleteActionImpl).DeleteOptions
		require.Equal(t, types.UID(action.(clienttesting.DeleteAction).GetName()+"-1"), *o.Preconditions.UID)
		require.Equal(t, "7", *o.Preconditions.ResourceVersion, "a token that was extended meanwhile is kept")
	}
}

func TestTokenCleaner_FollowsTheWallClock(t *testing.T) {
	t.Parallel()
	e := fakeenv.New(t)
	require.NoError(t, e.Fake.Tracker().Add(token("t", e.Clock.Now().Add(time.Hour).Format(time.RFC3339))))
	e.Start(New)
	e.Clock.SetAhead(-time.Hour)
	e.Pass(time.Hour + time.Minute)
	require.NotEmpty(t, names(t, e))
	e.Clock.SetAhead(0)
	e.Pass(10 * time.Second)
	require.Empty(t, names(t, e))
}
