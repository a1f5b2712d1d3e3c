//go:build e2e

package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// copierEnv makes the test binary run a controller with the account of the pod that it is in, in place of tests.
const copierEnv = "COXSWAIN_TEST_COPIER"

// runCopier runs a controller that copies each ConfigMap of the namespace default with the label copy to another one,
// until it is terminated.
func runCopier() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	config, err := rest.InClusterConfig()
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	maps := client.CoreV1().ConfigMaps("default")
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace("default"),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = "copy" }))
	if _, err := factory.Core().V1().ConfigMaps().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			original := obj.(*corev1.ConfigMap)
			_, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: original.Name + "-copy"},
				Data: original.Data}, metav1.CreateOptions{})
			fmt.Println("copied", original.Name, err)
		},
	}); err != nil {
		return err
	}
	factory.Start(ctx.Done())
	<-ctx.Done()
	factory.Shutdown()
	return nil
}

// copier is the controller in a pod. It gets the folder of the test binary.
const copier = `
apiVersion: v1
kind: ServiceAccount
metadata: {name: copier}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: copier}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: edit}
subjects: [{kind: ServiceAccount, name: copier}]
---
apiVersion: v1
kind: Pod
metadata: {name: copier}
spec:
  serviceAccountName: copier
  terminationGracePeriodSeconds: 5
  volumes: [{name: program, hostPath: {path: %q}}]
  containers:
  - name: copier
    image: none
    command: [/program/%s]
    env: [{name: COXSWAIN_TEST_COPIER, value: "1"}]
    volumeMounts: [{name: program, mountPath: /program, readOnly: true}]
`

// TestInCluster_ControllerReachesTheAPIServer runs a controller in a pod, which finds the API server as all programs in
// pods do: by the Service kubernetes. It works on when the API server is killed and started again at another port.
func TestInCluster_ControllerReachesTheAPIServer(t *testing.T) {
	needNamespaces(t)
	program, err := os.Executable()
	require.NoError(t, err)
	dir := dataDir(t)
	c := up(t, dir, "--runtime", "process").withAccount()
	out, err := c.kubectlWith(fmt.Sprintf(copier, filepath.Dir(program), filepath.Base(program)), "apply", "-f", "-")
	require.NoError(t, err, out)
	copies := func(name string) {
		_, err := c.client.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"copy": "yes"}},
			Data:       map[string]string{"key": name}}, metav1.CreateOptions{})
		require.NoError(t, err)
		eventually(t, 2*time.Minute, "the copy of "+name, func() bool {
			made, err := c.client.CoreV1().ConfigMaps("default").Get(t.Context(), name+"-copy", metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return false
			}
			return err == nil && made.Data["key"] == name
		})
	}
	copies("first")
	c.endpointAnswers()
	c.server.kill()
	c = up(t, dir, "--runtime", "process")
	copies("second")
	c.endpointAnswers()
	c.kubectl("delete", "pod", "copier", "--wait=true")
	c.server.interrupt()
}

// endpointAnswers requires that the endpoint of the Service kubernetes serves the API, with a certificate for it.
func (c *cluster) endpointAnswers() {
	c.t.Helper()
	slice, err := c.client.DiscoveryV1().EndpointSlices("default").Get(c.t.Context(), "kubernetes", metav1.GetOptions{})
	require.NoError(c.t, err)
	require.Len(c.t, slice.Endpoints, 1)
	address := net.JoinHostPort(slice.Endpoints[0].Addresses[0], strconv.Itoa(int(*slice.Ports[0].Port)))
	roots := x509.NewCertPool()
	require.True(c.t, roots.AppendCertsFromPEM(c.config.CAData))
	conn, err := tls.Dial("tcp", address, &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12})
	require.NoError(c.t, err, address)
	require.NoError(c.t, conn.Close())
}

func TestKubernetesService_PointsToAnAddressThatTheServerListensOn(t *testing.T) {
	t.Parallel()
	c := up(t, dataDir(t), "--nodes", "0")
	c.endpointAnswers()
	c.server.interrupt()
}
