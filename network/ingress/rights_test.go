package ingress

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/coxswain-dev/coxswain/testenv"
)

// grant binds a new role in a namespace to the user, or a ClusterRole if the namespace is empty.
func grant(t *testing.T, client kubernetes.Interface, user, namespace, name string, rules ...rbacv1.PolicyRule) {
	t.Helper()
	meta := metav1.ObjectMeta{Name: name}
	subjects := []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user}}
	ref := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name}
	rbac, ctx := client.RbacV1(), t.Context()
	if namespace == "" {
		ref.Kind = "ClusterRole"
		_, err := rbac.ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules},
			metav1.CreateOptions{})
		require.NoError(t, err)
		_, err = rbac.ClusterRoleBindings().Create(ctx,
			&rbacv1.ClusterRoleBinding{ObjectMeta: meta, Subjects: subjects, RoleRef: ref}, metav1.CreateOptions{})
		require.NoError(t, err)
		return
	}
	_, err := rbac.Roles(namespace).Create(ctx, &rbacv1.Role{ObjectMeta: meta, Rules: rules}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = rbac.RoleBindings(namespace).Create(ctx,
		&rbacv1.RoleBinding{ObjectMeta: meta, Subjects: subjects, RoleRef: ref}, metav1.CreateOptions{})
	require.NoError(t, err)
}

func rule(group, resource, names string, verbs ...string) rbacv1.PolicyRule {
	r := rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs}
	if names != "" {
		r.ResourceNames = []string{names}
	}
	return r
}

// TestIngress_ForOneNamespaceNeedsNoOtherPermissions runs with the rights that docs/ingress.md lists for
// --watch-namespace.
func TestIngress_ForOneNamespaceNeedsNoOtherPermissions(t *testing.T) {
	t.Parallel()
	config := testenv.Start(t, testenv.APIServerOnly())
	client := kubernetes.NewForConfigOrDie(config)
	for _, name := range []string{"other", "front"} {
		_, err := client.CoreV1().Namespaces().Create(t.Context(),
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	_, err := client.CoreV1().Services("front").Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "balancer"}, Spec: corev1.ServiceSpec{ExternalIPs: []string{"203.0.113.9"},
			Ports: []corev1.ServicePort{{Port: 80}}}}, metav1.CreateOptions{})
	require.NoError(t, err)
	inFront := secretFor(t, "front", "front.example.com")
	_, err = client.CoreV1().Secrets("front").Create(t.Context(), inFront, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = client.CoreV1().Secrets("other").Create(t.Context(), secretFor(t, "secret", "a.example.com"),
		metav1.CreateOptions{})
	require.NoError(t, err)

	const user = "ingress-of-default"
	grant(t, client, user, "", user, rule("networking.k8s.io", "ingressclasses", "", "list", "watch"))
	grant(t, client, user, "default", user,
		rule("networking.k8s.io", "ingresses", "", "list", "watch"),
		rule("networking.k8s.io", "ingresses/status", "", "patch"),
		rule("", "services", "", "list", "watch"), rule("", "secrets", "", "list", "watch"),
		rule("discovery.k8s.io", "endpointslices", "", "list", "watch"), rule("", "events", "", "create", "patch"))
	grant(t, client, user, "front", user,
		rule("", "services", "balancer", "list", "watch"), rule("", "secrets", "front", "list", "watch"))

	c := startAs(t, config, user, func(o *Options) {
		o.CreateClass, o.WatchNamespace = false, "default"
		o.PublishService = types.NamespacedName{Namespace: "front", Name: "balancer"}
		o.DefaultCertificate = types.NamespacedName{Namespace: "front", Name: "front"}
	})
	c.serve("s", "", backend(t, text("served")))
	c.route("a.example.com", "s", func(i *networkingv1.Ingress) {
		i.Spec.TLS = []networkingv1.IngressTLS{{Hosts: []string{"a.example.com"}, SecretName: "secret"}}
	})
	foreign := ingressAt("other", "foreign", 0, "b.example.com", pathOf(networkingv1.PathTypePrefix, "/", "s"))
	foreign.UID, foreign.CreationTimestamp, foreign.Spec.IngressClassName = "", metav1.Time{}, ptrTo(ClassName)
	_, err = client.NetworkingV1().Ingresses("other").Create(t.Context(), foreign, metav1.CreateOptions{})
	require.NoError(t, err)

	browser := c.browser(nil)
	c.eventually(browser, "https://a.example.com/", 200, "served")
	require.Eventually(t, func() bool {
		i, err := client.NetworkingV1().Ingresses("default").Get(context.Background(), "a.example.com", metav1.GetOptions{})
		require.NoError(t, err)
		a := i.Status.LoadBalancer.Ingress
		return len(a) == 1 && a[0].IP == "203.0.113.9"
	}, patience, tick)
	require.Equal(t, string(inFront.Data[corev1.TLSCertKey]), c.served("a.example.com"), "not the one of namespace other")
	status, _, _ := c.get(browser, "https://b.example.com/")
	require.Equal(t, 404, status)
}
