package volumes_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/coxswain-dev/coxswain/node/environment"
	"github.com/coxswain-dev/coxswain/node/volumes"
	"github.com/coxswain-dev/coxswain/testenv"
)

// The kubelet requests a new token after four fifths of the old one's lifetime, or after a day.
func TestVolumes_RenewTokensBeforeTheyExpire(t *testing.T) {
	t.Parallel()
	clock := clocktesting.NewFakeClock(time.Now())
	config := testenv.Start(t, testenv.APIServerOnly(), testenv.WithClock(clock))
	client := kubernetes.NewForConfigOrDie(config)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	const hour, month = int64(3600), int64(30 * 24 * 3600)
	source := func(path string, seconds int64) corev1.VolumeProjection {
		return corev1.VolumeProjection{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: path,
			ExpirationSeconds: &seconds, Audience: "vault"}}
	}
	_, err := client.CoreV1().ServiceAccounts("default").Create(ctx,
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "app"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	pod, err := client.CoreV1().Pods("default").Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p"},
		Spec: corev1.PodSpec{
			ServiceAccountName: "app", NodeName: "node-0", Containers: []corev1.Container{{Name: "c", Image: "nginx"}},
			Volumes: []corev1.Volume{{Name: "tokens",
				VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
					Sources: []corev1.VolumeProjection{source("hour", hour), source("month", month)}}}}},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)

	dir := t.TempDir()
	v := &volumes.Volumes{Clock: clock}
	read := func(path string) string {
		content, err := os.ReadFile(filepath.Join(dir, "tokens", path))
		require.NoError(t, err)
		return string(content)
	}
	valid := func(token string) bool {
		review, err := client.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{
			Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: []string{"vault"}}}, metav1.CreateOptions{})
		require.NoError(t, err)
		return review.Status.Authenticated && review.Status.User.Username == "system:serviceaccount:default:app"
	}
	began := clock.Now()
	setUpAfter := func(d time.Duration) (hour, month string) {
		clock.SetTime(began.Add(d))
		_, err := v.SetUp(ctx, &environment.Environment{Client: client, Pod: pod}, dir)
		require.NoError(t, err)
		return read("hour"), read("month")
	}
	first, long := setUpAfter(0)
	require.True(t, valid(first))
	cached, _ := setUpAfter(47 * time.Minute)
	require.Equal(t, first, cached)
	second, _ := setUpAfter(49 * time.Minute)
	require.NotEqual(t, first, second)
	require.True(t, valid(second))
	require.True(t, valid(first), "a container that has read the old token may still use it")
	_, cached = setUpAfter(23 * time.Hour)
	require.False(t, valid(second), "its hour is over")
	require.Equal(t, long, cached)
	_, longer := setUpAfter(25 * time.Hour)
	require.NotEqual(t, long, longer)
	require.True(t, valid(longer))
}
