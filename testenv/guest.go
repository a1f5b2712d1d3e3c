package testenv

import (
	"context"
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// ExternalKubeconfig returns the path that ExternalVariable holds. If there is none, it skips the test and logs the
// reason.
func ExternalKubeconfig(t testing.TB) string {
	t.Helper()
	path := os.Getenv(ExternalVariable)
	if path == "" {
		t.Skipf("SKIPPED: not run against an external API server: %s names no kubeconfig", ExternalVariable)
	}
	return path
}

// Guest returns a client of the server of ExternalKubeconfig, which others may use at the same time, and a new
// namespace that contains the ServiceAccount that pods need. Cluster-scoped objects of the test should have the
// namespace's name. Namespace and connections end with the test.
func Guest(t testing.TB) (config *rest.Config, client kubernetes.Interface, namespace string) {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", ExternalKubeconfig(t))
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	connections, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { utilnet.CloseIdleConnectionsFor(connections.Transport) })
	if client, err = kubernetes.NewForConfigAndClient(config, connections); err != nil {
		t.Fatal(err)
	}
	namespace = "coxswain-" + rand.String(8)
	if _, err := client.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = client.CoreV1().Namespaces().Delete(context.WithoutCancel(t.Context()), namespace, metav1.DeleteOptions{})
	})
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	if _, err := client.CoreV1().ServiceAccounts(namespace).Create(t.Context(), account,
		metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err) // the account's controller may or may not run
	}
	return config, client, namespace
}
