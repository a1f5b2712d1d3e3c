package apiserver_test

import (
	"net/http"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/controllers"
	"github.com/coxswain-dev/coxswain/testenv"
)

const (
	rbacPath            = "/apis/rbac.authorization.k8s.io/v1"
	clusterRoles        = rbacPath + "/clusterroles"
	clusterRoleBindings = rbacPath + "/clusterrolebindings"
	roles               = rbacPath + "/namespaces/default/roles"
	roleBindings        = rbacPath + "/namespaces/default/rolebindings"
)

// as returns the same server for another user.
func (s *server) as(name string, groups ...string) *server {
	s.t.Helper()
	return connect(s.t, testenv.User(s.t, s.config, name, groups...))
}

func roleBinding(name, kind, role string, subjects ...m) m {
	return m{
		"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": m{"name": name},
		"roleRef":  m{"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
		"subjects": subjects,
	}
}

func clusterRoleBinding(name, role string, subjects ...m) m {
	b := roleBinding(name, "ClusterRole", role, subjects...)
	b["kind"] = "ClusterRoleBinding"
	return b
}

func subject(kind, name string) m {
	return m{"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}
}

// A deletecollection has no name, even if a selector has one: rules with resourceNames do not allow it.
func TestAuthorize_DeleteCollectionIsNoDeleteByName(t *testing.T) {
	t.Parallel()
	s := start(t)
	grant := func(name string, rule m) {
		s.create(clusterRoles, m{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
			"metadata": m{"name": name}, "rules": []m{rule}})
		s.create(clusterRoleBindings, clusterRoleBinding(name, name, subject("User", name)))
	}
	grant("one", m{"apiGroups": []string{""}, "resources": []string{"configmaps"}, "resourceNames": []string{"a"},
		"verbs": []string{"*"}})
	grant("each", m{"apiGroups": []string{""}, "resources": []string{"configmaps"}, "verbs": []string{"delete", "list"}})
	grant("all", m{"apiGroups": []string{""}, "resources": []string{"configmaps"}, "verbs": []string{"deletecollection"}})
	s.create(configMaps, configMap("a"))
	s.create(configMaps, with(configMap("held"), "finalizers", []string{"example.com/hold"}))
	narrow := configMaps + "?fieldSelector=metadata.name%3Da"
	const words = `cannot deletecollection resource "configmaps" in API group "" in the namespace "default"`
	s.as("one").get(narrow).ok(http.StatusOK)
	for _, user := range []string{"one", "each"} {
		for _, path := range []string{narrow, configMaps} {
			s.as(user).delete(path, nil).refused(http.StatusForbidden, metav1.StatusReasonForbidden, words)
		}
	}
	s.as("all").delete(configMaps+"/a", nil).refused(http.StatusForbidden, metav1.StatusReasonForbidden,
		`cannot delete resource "configmaps"`)
	wrong := m{"preconditions": m{"uid": "other"}}
	s.as("all").delete(narrow, wrong).refused(http.StatusConflict, metav1.StatusReasonConflict,
		"the UID in the precondition (other)")
	s.as("all").delete(configMaps, nil).ok(http.StatusOK)
	s.gone(configMaps + "/a")
	require.NotNil(t, s.get(configMaps+"/held").ok(http.StatusOK).object().GetDeletionTimestamp())
}

func TestAuthorize_RolesAreInForceAtOnce(t *testing.T) {
	t.Parallel()
	s := start(t)
	jane := s.as("jane", "team")
	refused := func(a *answer, words string) {
		t.Helper()
		a.refused(http.StatusForbidden, metav1.StatusReasonForbidden, words)
	}
	refused(jane.get(pods),
		`pods is forbidden: User "jane" cannot list resource "pods" in API group "" in the namespace "default"`)
	refused(jane.get(nodes),
		`nodes is forbidden: User "jane" cannot list resource "nodes" in API group "" at the cluster scope`)
	refused(jane.get(deployments+"/web/scale"),
		`deployments.apps "web" is forbidden: User "jane" cannot get resource "deployments/scale" in API group "apps" in the namespace "default"`)
	refused(jane.get("/metrics"), `forbidden: User "jane" cannot get path "/metrics"`)
	refused(jane.get("/apis/no.such/v1/namespaces/default/things"),
		`cannot list resource "things" in API group "no.such"`)
	jane.get("/apis").ok(http.StatusOK)
	jane.get("/version").ok(http.StatusOK)

	for range 20 { // a grant and a revocation are in force for the next request
		s.create(roleBindings, roleBinding("view", "ClusterRole", "view", subject("Group", "team")))
		jane.get(pods).ok(http.StatusOK)
		refused(jane.do(http.MethodPost, pods, pod("a")), `cannot create resource "pods"`)
		refused(jane.get("/api/v1/namespaces/default/secrets"), "secrets")
		refused(jane.get("/api/v1/pods"), "at the cluster scope")
		jane.get(namespaces + "/default").ok(http.StatusOK)
		s.delete(roleBindings+"/view", nil).ok(http.StatusOK)
		refused(jane.get(pods), "")
	}

	s.create(roleBindings, roleBinding("lost", "Role", "nowhere", subject("User", "jane")))
	refused(jane.get(pods), `in the namespace "default": RBAC: role.rbac.authorization.k8s.io "nowhere" not found`)
}

func TestAuthorize_AListOfOneNameIsAuthorizedForTheName(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.create(roles, m{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": m{"name": "one"},
		"rules": []m{
			{"apiGroups": []string{""}, "resources": []string{"configmaps"}, "resourceNames": []string{"mine"},
				"verbs": []string{"get", "list", "watch"}},
		}})
	s.create(roleBindings, roleBinding("one", "Role", "one", subject("User", "jane")))
	jane := s.as("jane")
	jane.get(configMaps + "?fieldSelector=metadata.name%3Dmine").ok(http.StatusOK)
	for _, query := range []string{"", "?fieldSelector=metadata.name%3Dtheirs",
		"?fieldSelector=metadata.name!%3Dmine"} {
		jane.get(configMaps+query).refused(http.StatusForbidden, metav1.StatusReasonForbidden, "configmaps")
	}
}

func TestPolicy_IsStoredAndEveryControllerHasItsRole(t *testing.T) {
	t.Parallel()
	s := start(t)
	client := s.typed().RbacV1()
	for _, account := range controllers.Accounts() {
		name := "system:controller:" + account
		// These need rights in few namespaces only.
		if slices.Contains([]string{"bootstrap-signer", "cluster-dns-controller", "token-cleaner"}, account) {
			_, err := client.RoleBindings("kube-system").Get(t.Context(), name, metav1.GetOptions{})
			require.NoError(t, err)
			continue
		}
		_, err := client.ClusterRoles().Get(t.Context(), name, metav1.GetOptions{})
		require.NoError(t, err)
		binding, err := client.ClusterRoleBindings().Get(t.Context(), name, metav1.GetOptions{})
		require.NoError(t, err)
		require.Equal(t, []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "kube-system", Name: account}},
			binding.Subjects)
	}
	list, err := client.ClusterRoles().List(t.Context(),
		metav1.ListOptions{LabelSelector: "kubernetes.io/bootstrapping=rbac-defaults"})
	require.NoError(t, err)
	require.Greater(t, len(list.Items), 70)
	for _, r := range list.Items {
		require.NotEmpty(t, r.Rules, r.Name)
		require.Equal(t, "true", r.Annotations[rbacv1.AutoUpdateAnnotationKey])
	}
	inSystem, err := client.RoleBindings("kube-system").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	var names []string
	for _, b := range inSystem.Items {
		names = append(names, b.Name)
	}
	require.ElementsMatch(t, []string{
		"system::extension-apiserver-authentication-reader",
		"system::leader-locking-kube-controller-manager",
		"system::leader-locking-kube-scheduler",
		"system:controller:bootstrap-signer",
		"system:controller:cloud-provider",
		"system:controller:cluster-dns-controller",
		"system:controller:token-cleaner",
	}, names, "those of Kubernetes, and one of our own")
}

func TestNode_ReadsOnlyReferencesOfItsPods(t *testing.T) {
	t.Parallel()
	s := start(t)
	secret := func(name string) m { return m{"apiVersion": "v1", "kind": "Secret", "metadata": m{"name": name}} }
	secrets := "/api/v1/namespaces/default/secrets/"
	for _, name := range []string{"mine", "theirs", "volumes"} {
		s.create("/api/v1/namespaces/default/secrets", secret(name))
	}
	bound := func(name, node, secret string) {
		p := pod(name)
		p["spec"].(m)["nodeName"] = node
		p["spec"].(m)["volumes"] = []any{m{"name": "v", "secret": m{"secretName": secret}}}
		s.create(pods, p)
	}
	bound("a", "node-a", "mine")
	bound("b", "node-b", "theirs")
	a := s.as("system:node:node-a", "system:nodes")
	forbidden := func(answer *answer, words string) {
		t.Helper()
		answer.refused(http.StatusForbidden, metav1.StatusReasonForbidden, words)
	}
	mirror := pod("mirror")
	mirror["metadata"].(m)["annotations"] = m{"kubernetes.io/config.mirror": "x"}
	mirror["spec"].(m)["nodeName"] = "node-a"
	mirror["spec"].(m)["volumes"] = []any{m{"name": "v", "configMap": m{"name": "mirrored"}}}
	s.create(pods, mirror)
	a.get(pods + "/mirror").ok(http.StatusOK)
	forbidden(a.get("/api/v1/namespaces/default/configmaps/mirrored"), "no relationship found")
	a.get(secrets + "mine").ok(http.StatusOK)
	forbidden(a.get(secrets+"theirs"), `no relationship found between node 'node-a' and this object`)
	forbidden(a.get("/api/v1/namespaces/default/secrets"), "No Object name found")
	forbidden(a.get("/api/v1/namespaces/kube-system/secrets/mine"), "no relationship")
	forbidden(a.delete(secrets+"mine", nil), "can only read resources of this type")
	a.get(pods + "/a").ok(http.StatusOK)
	forbidden(a.get(pods+"/b"), "no relationship")
	a.get("/api/v1/pods?fieldSelector=spec.nodeName%3Dnode-a").ok(http.StatusOK)
	forbidden(a.get("/api/v1/pods?fieldSelector=spec.nodeName%3Dnode-b"),
		"can only list/watch pods with spec.nodeName field selector")
	forbidden(a.get("/api/v1/pods"), "spec.nodeName field selector")
	forbidden(a.get(nodes), "node 'node-a' cannot read all nodes, only its own Node object")
	forbidden(a.get(nodes+"/node-b"), "node 'node-a' cannot read 'node-b', only its own Node object")
	forbidden(a.get("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/x"),
		"can only access leases in the \"kube-node-lease\" system namespace")
	forbidden(a.get(clusterRoles), "clusterroles")
	// Neither the name alone nor the group alone identifies a node.
	forbidden(s.as("system:node:node-a").get(secrets+"mine"), "secrets")
	forbidden(s.as("node-a", "system:nodes").get(secrets+"mine"), "secrets")

	// The node can read a volume's secret if a pod uses the claim that binds the volume.
	client := s.typed().CoreV1()
	pvc, err := client.PersistentVolumeClaims("default").Create(t.Context(), &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "claim"},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, VolumeName: "volume",
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = client.PersistentVolumes().Create(t.Context(), &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "volume"},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Capacity:    corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			ClaimRef: &corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: "default", Name: "claim",
				UID: pvc.UID},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: "d", VolumeHandle: "h", NodePublishSecretRef: &corev1.SecretReference{Namespace: "default",
					Name: "volumes"},
			}},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	forbidden(a.get(secrets+"volumes"), "no relationship")
	forbidden(a.get("/api/v1/persistentvolumes/volume"), "no relationship")
	p := pod("claims")
	p["spec"].(m)["nodeName"] = "node-a"
	p["spec"].(m)["volumes"] = []any{m{"name": "v", "persistentVolumeClaim": m{"claimName": "claim"}}}
	s.create(pods, p)
	a.get(secrets + "volumes").ok(http.StatusOK)
	a.get("/api/v1/persistentvolumes/volume").ok(http.StatusOK)
	forbidden(s.as("system:node:node-b", "system:nodes").get(secrets+"volumes"), "no relationship")
}
