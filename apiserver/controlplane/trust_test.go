package controlplane_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/coxswain-dev/coxswain/apiserver"
	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/pki"
	"github.com/coxswain-dev/coxswain/storage"
	"github.com/coxswain-dev/coxswain/testenv/servertest"
)

const trustName = "extension-apiserver-authentication"

func newCA(t *testing.T) *pki.CA {
	t.Helper()
	ca, err := pki.NewCA()
	require.NoError(t, err)
	return ca
}

// touch makes the server check the ConfigMap, if it has not done so by itself since its clock moved.
func touch(t *testing.T, maps typedcorev1.ConfigMapInterface) {
	t.Helper()
	_, err := maps.Patch(t.Context(), trustName, types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`),
		metav1.PatchOptions{})
	require.NoError(t, err)
}

// becomes waits until the ConfigMap has the data.
func becomes(t *testing.T, maps typedcorev1.ConfigMapInterface, want map[string]string) *corev1.ConfigMap {
	t.Helper()
	var have *corev1.ConfigMap
	require.Eventually(t, func() bool {
		var err error
		have, err = maps.Get(t.Context(), trustName, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return false
		}
		require.NoError(t, err)
		if len(have.Data) != len(want) {
			return false
		}
		for key, value := range want {
			if have.Data[key] != value {
				return false
			}
		}
		return true
	}, patience, tick)
	return have
}

func trusting(clients, proxies authn.CAs, names ...string) apiserver.Options {
	o := apiserver.Options{Authentication: authn.Options{ClientCAs: clients}}
	if proxies != nil {
		o.Authentication.RequestHeader = &authn.RequestHeader{CAs: proxies, AllowedNames: names,
			Headers: authn.StandardIdentityHeaders()}
	}
	return o
}

// administers makes a client of a server with the test's own CAs.
func administers(t *testing.T, s *servertest.Server, ca *pki.CA) typedcorev1.ConfigMapInterface {
	t.Helper()
	cert, key, err := ca.Client("admin", "system:masters")
	require.NoError(t, err)
	s.Config.CertData, s.Config.KeyData = cert, key
	return s.Client(t).CoreV1().ConfigMaps("kube-system")
}

func published(clients, proxies string, names string) map[string]string {
	return map[string]string{
		"client-ca-file": clients, "requestheader-client-ca-file": proxies,
		"requestheader-username-headers": `["X-Remote-User"]`, "requestheader-uid-headers": `["X-Remote-Uid"]`,
		"requestheader-group-headers":        `["X-Remote-Group"]`,
		"requestheader-extra-headers-prefix": `["X-Remote-Extra-"]`,
		"requestheader-allowed-names":        names,
	}
}

func TestTrust_IsPublishedAndRestored(t *testing.T) {
	t.Parallel()
	clients, proxies := newCA(t), newCA(t)
	maps := administers(t, servertest.Start(t, trusting(authn.PublishedCAs(clients.PEM()),
		authn.PublishedCAs(proxies.PEM()), "front-proxy-client")), clients)
	want := published(string(clients.PEM()), string(proxies.PEM()), `["front-proxy-client"]`)
	first := becomes(t, maps, want)
	require.Equal(t, "kube-apiserver", first.ManagedFields[0].Manager)

	require.NoError(t, maps.Delete(t.Context(), trustName, metav1.DeleteOptions{}))
	have := becomes(t, maps, want)
	require.NotEqual(t, first.UID, have.UID)

	have.Data = map[string]string{"requestheader-allowed-names": `["other"]`, "else": "?"}
	have.Labels = map[string]string{"a": "b"}
	_, err := maps.Update(t.Context(), have, metav1.UpdateOptions{})
	require.NoError(t, err)
	want["requestheader-allowed-names"] = `["other","front-proxy-client"]`
	require.Equal(t, "b", becomes(t, maps, want).Labels["a"])
}

// Servers with different CAs publish all of them, and none undoes another's writes.
func TestTrust_HasTheCAsOfAllServers(t *testing.T) {
	t.Parallel()
	store := servertest.Store(t, servertest.Backend(t), storage.Options{})
	var clients, proxies [2]*pki.CA
	var maps typedcorev1.ConfigMapInterface
	for i, name := range []string{"a", "b"} {
		clients[i], proxies[i] = newCA(t), newCA(t)
		o := trusting(authn.PublishedCAs(clients[i].PEM()), authn.PublishedCAs(proxies[i].PEM()), name)
		o.Store = store
		maps = administers(t, servertest.Start(t, o), clients[i])
		if i == 0 {
			becomes(t, maps, published(string(clients[0].PEM()), string(proxies[0].PEM()), `["a"]`))
		}
	}
	both := func(cas [2]*pki.CA) string { return string(cas[0].PEM()) + string(cas[1].PEM()) }
	becomes(t, maps, published(both(clients), both(proxies), `["a","b"]`))
}

// Without front proxies only the CAs of clients are published. Expired ones are not.
func TestTrust_OfClientsAlone(t *testing.T) {
	t.Parallel()
	old := newCA(t)
	clients, err := pki.NewCAWithin("clients", time.Now(), old.Certificate().NotAfter.AddDate(1, 0, 0))
	require.NoError(t, err)
	o := trusting(authn.PublishedCAs(clients.PEM()), nil)
	clock := clocktesting.NewFakeClock(old.Certificate().NotAfter.Add(-time.Hour))
	o.Clock = clock
	maps := administers(t, servertest.Start(t, o), clients)
	have := becomes(t, maps, map[string]string{"client-ca-file": string(clients.PEM())})
	have.Data["client-ca-file"] = string(old.PEM()) + "\n" + string(old.PEM())
	_, err = maps.Update(t.Context(), have, metav1.UpdateOptions{})
	require.NoError(t, err)
	becomes(t, maps, map[string]string{"client-ca-file": string(old.PEM()) + string(clients.PEM())})

	clock.SetTime(old.Certificate().NotAfter.Add(time.Hour))
	touch(t, maps)
	becomes(t, maps, map[string]string{"client-ca-file": string(clients.PEM())})
}

// When every CA of clients has expired, none is published. The administrator has a token, since certificates that such
// CAs have signed are no longer accepted.
func TestTrust_IsEmptyWhenAllCAsHaveExpired(t *testing.T) {
	t.Parallel()
	clients, err := pki.NewCAWithin("clients", time.Now(), time.Now().AddDate(1, 0, 0))
	require.NoError(t, err)
	tokens := filepath.Join(t.TempDir(), "tokens.csv")
	require.NoError(t, os.WriteFile(tokens, []byte("secret,admin,1,system:masters\n"), 0o600))
	o := trusting(authn.PublishedCAs(clients.PEM()), nil)
	o.Authentication.TokenFile = tokens
	clock := clocktesting.NewFakeClock(clients.Certificate().NotAfter.Add(-time.Hour))
	o.Clock = clock
	s := servertest.Start(t, o)
	byCertificate := administers(t, s, clients)
	s.Config = rest.AnonymousClientConfig(s.Config)
	s.Config.BearerToken = "secret"
	maps := s.Client(t).CoreV1().ConfigMaps("kube-system")
	becomes(t, byCertificate, map[string]string{"client-ca-file": string(clients.PEM())})

	clock.SetTime(clients.Certificate().NotAfter.Add(time.Hour))
	_, err = byCertificate.Get(t.Context(), trustName, metav1.GetOptions{})
	require.True(t, apierrors.IsUnauthorized(err), "%v", err)
	touch(t, maps)
	becomes(t, maps, nil)
}

// A file of CAs that changes is published with the next look at the ConfigMap.
func TestTrust_FollowsFiles(t *testing.T) {
	t.Parallel()
	clients, before, after := newCA(t), newCA(t), newCA(t)
	file := filepath.Join(t.TempDir(), "ca.crt")
	require.NoError(t, os.WriteFile(file, before.PEM(), 0o600))
	cas, err := authn.OpenCAs(slog.New(slog.DiscardHandler), nil, file)
	require.NoError(t, err)
	maps := administers(t, servertest.Start(t, trusting(authn.PublishedCAs(clients.PEM()), cas)), clients)
	becomes(t, maps, published(string(clients.PEM()), string(before.PEM()), `[]`))
	require.NoError(t, os.WriteFile(file+".new", after.PEM(), 0o600))
	require.NoError(t, os.Rename(file+".new", file))
	require.Eventually(t, func() bool { return string(cas.PEM()) == string(after.PEM())+"\n" }, patience, tick)
	require.NoError(t, maps.Delete(t.Context(), trustName, metav1.DeleteOptions{}))
	becomes(t, maps, published(string(clients.PEM()), string(after.PEM()), `[]`))
}

// The data of other servers is limited: if the ConfigMap becomes too large, it is dropped.
func TestTrust_DropsOthersDataAboveTheLimit(t *testing.T) {
	t.Parallel()
	clients := newCA(t)
	maps := administers(t, servertest.Start(t, trusting(authn.PublishedCAs(clients.PEM()),
		authn.PublishedCAs(clients.PEM()), "proxy")), clients)
	want := published(string(clients.PEM()), string(clients.PEM()), `["proxy"]`)
	have := becomes(t, maps, want)
	have.Data = map[string]string{"requestheader-allowed-names": `["` + strings.Repeat("n", 1<<20-4) + `"]`}
	_, err := maps.Update(t.Context(), have, metav1.UpdateOptions{})
	require.NoError(t, err)
	becomes(t, maps, want)
}

// An extension server with the documented rights can authenticate and authorize requests: it watches the ConfigMap, and
// creates TokenReviews and SubjectAccessReviews. It can read no other ConfigMap.
func TestTrust_IsReadByDelegators(t *testing.T) {
	t.Parallel()
	clients := newCA(t)
	s := servertest.Start(t, trusting(authn.PublishedCAs(clients.PEM()), nil))
	administers(t, s, clients)
	admin, ctx := s.Client(t), t.Context()
	account := []rbacv1.Subject{{Kind: "ServiceAccount", Name: "server", Namespace: "ext"}}
	_, err := admin.RbacV1().RoleBindings("kube-system").Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "reader"}, Subjects: account,
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: trustName + "-reader"},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = admin.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "delegator"}, Subjects: account,
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:auth-delegator"},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	s.Config.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:ext:server"}
	server := s.Client(t)
	own := metav1.ListOptions{FieldSelector: "metadata.name=" + trustName}
	becomes(t, server.CoreV1().ConfigMaps("kube-system"), map[string]string{"client-ca-file": string(clients.PEM())})
	list, err := server.CoreV1().ConfigMaps("kube-system").List(ctx, own)
	require.NoError(t, err)
	require.Len(t, list.Items, 1)
	watch, err := server.CoreV1().ConfigMaps("kube-system").Watch(ctx, own)
	require.NoError(t, err)
	require.Equal(t, trustName, (<-watch.ResultChan()).Object.(*corev1.ConfigMap).Name)
	watch.Stop()
	_, err = server.CoreV1().ConfigMaps("kube-system").List(ctx, metav1.ListOptions{})
	require.True(t, apierrors.IsForbidden(err), err)

	token, err := server.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: "none"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	require.False(t, token.Status.Authenticated)
	for group, allowed := range map[string]bool{"system:masters": true, "strangers": false} {
		access, err := server.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{User: "jane", Groups: []string{group},
				ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: "default", Verb: "list",
					Group: "wardle.example.com", Version: "v1alpha1", Resource: "flunders"}},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
		require.Equal(t, allowed, access.Status.Allowed, group)
	}
}
