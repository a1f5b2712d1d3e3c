package testenv_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/coxswain-dev/coxswain/testenv"
)

// whoAmI asks the API server for the user of a configuration.
func whoAmI(t *testing.T, config *rest.Config) authenticationv1.UserInfo {
	t.Helper()
	review, err := kubernetes.NewForConfigOrDie(config).AuthenticationV1().SelfSubjectReviews().Create(t.Context(),
		&authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	require.NoError(t, err)
	return review.Status.UserInfo
}

func TestUsers_HaveTheRightsOfTheirRoles(t *testing.T) {
	t.Parallel()
	env := testenv.StartEnvironment(t, testenv.APIServerOnly())
	require.Contains(t, whoAmI(t, env.Config).Groups, "system:masters")

	jane := env.User("jane", "team-a")
	require.Equal(t, "jane", whoAmI(t, jane).Username)
	require.Equal(t, []string{"team-a", "system:authenticated"}, whoAmI(t, jane).Groups)
	_, err := kubernetes.NewForConfigOrDie(jane).CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
	require.True(t, apierrors.IsForbidden(err), "%v", err)
}

func TestServiceAccount_HasATokenOfTheAccount(t *testing.T) {
	t.Parallel()
	env := testenv.StartEnvironment(t, testenv.APIServerOnly())
	config, err := env.ServiceAccount(t.Context(), "default", "operator")
	require.NoError(t, err)
	user := whoAmI(t, config)
	require.Equal(t, "system:serviceaccount:default:operator", user.Username)
	require.Contains(t, user.Groups, "system:serviceaccounts:default")

	operator, admin := kubernetes.NewForConfigOrDie(config), kubernetes.NewForConfigOrDie(env.Config)
	_, err = operator.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
	require.True(t, apierrors.IsForbidden(err), "%v", err)
	_, err = admin.RbacV1().RoleBindings("default").Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "operator"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "default", Name: "operator"}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = operator.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)

	again, err := env.ServiceAccount(t.Context(), "default", "operator")
	require.NoError(t, err, "the account is there already")
	require.Equal(t, user.UID, whoAmI(t, again).UID)
	_, err = env.ServiceAccount(t.Context(), "nowhere", "operator")
	require.True(t, apierrors.IsNotFound(err), "%v", err)
}

func TestKubeConfig_WorksWithTools(t *testing.T) {
	t.Parallel()
	env := testenv.StartEnvironment(t, testenv.APIServerOnly())
	account, err := env.ServiceAccount(t.Context(), "default", "operator")
	require.NoError(t, err)
	var files []string
	for _, config := range []*rest.Config{env.Config, env.User("jane", "team-a"), account} {
		path, err := env.KubeConfigFile(config)
		require.NoError(t, err)
		files = append(files, path)
		read, err := clientcmd.BuildConfigFromFlags("", path)
		require.NoError(t, err)
		require.Equal(t, whoAmI(t, config).Username, whoAmI(t, read).Username)
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode().Perm(), "it holds a key")
	}
	require.NoError(t, env.Stop())
	for _, path := range files {
		require.NoFileExists(t, path)
	}
}

func TestNewEnvironment_NeedsNoTest(t *testing.T) {
	t.Parallel()
	env, err := testenv.NewEnvironment(testenv.APIServerOnly())
	require.NoError(t, err)
	_, err = kubernetes.NewForConfigOrDie(env.Config).CoreV1().ConfigMaps("default").Create(t.Context(),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "mine"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	require.NoError(t, env.Stop())
	require.NoError(t, env.Stop(), "once more is no error")

	_, err = testenv.NewEnvironment(testenv.APIServerOnly(), testenv.WithCRDs("testdata/missing"))
	require.ErrorIs(t, err, os.ErrNotExist)
}
