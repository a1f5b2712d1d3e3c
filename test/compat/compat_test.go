//go:build e2e

// Package compat_test runs clients of other releases against the server.
package compat_test

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/coxswain-dev/coxswain/testenv"
)

// releases of client-go to build the informer with: COMPAT_CLIENT_GO, separated by commas.
// Each takes a minute or two to compile for the first time.
func releases() []string {
	if list := os.Getenv("COMPAT_CLIENT_GO"); list != "" {
		return strings.Split(list, ",")
	}
	return []string{"v0.32.0"}
}

func TestInformers_OfOtherReleasesSeeTheSameState(t *testing.T) {
	config := testenv.Start(t, testenv.APIServerOnly())
	kubeconfig := writeKubeconfig(t, config)
	for _, release := range releases() {
		informer := build(t, release)
		for _, streaming := range []string{"true", "false"} {
			t.Run(release+"/WatchListClient="+streaming, func(t *testing.T) {
				client := kubernetes.NewForConfigOrDie(config)
				namespace := fmt.Sprintf("compat-%d", rand.Uint32())
				_, err := client.CoreV1().Namespaces().Create(t.Context(),
					&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
				require.NoError(t, err)
				seen := observe(t, informer, kubeconfig, namespace, streaming, func() { churn(t, client, namespace) })
				list, err := client.CoreV1().ConfigMaps(namespace).List(t.Context(), metav1.ListOptions{})
				require.NoError(t, err)
				var want []string
				for _, cm := range list.Items {
					want = append(want, cm.Name+" "+cm.ResourceVersion)
				}
				slices.Sort(want)
				require.Equal(t, want, seen)
			})
		}
	}
}

// churn writes at random, and "end" last.
func churn(t *testing.T, client kubernetes.Interface, namespace string) {
	maps := client.CoreV1().ConfigMaps(namespace)
	for i := range 300 {
		name := fmt.Sprintf("m-%d", rand.IntN(40))
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"i": fmt.Sprint(i)}}
		if _, err := maps.Create(t.Context(), cm, metav1.CreateOptions{}); err == nil {
			continue
		}
		var err error
		if rand.IntN(3) == 0 {
			err = maps.Delete(t.Context(), name, metav1.DeleteOptions{})
		} else {
			_, err = maps.Update(t.Context(), cm, metav1.UpdateOptions{})
		}
		require.NoError(t, err)
	}
	_, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "end"}},
		metav1.CreateOptions{})
	require.NoError(t, err)
}

// observe runs the informer, calls write once it has synced, and returns what it held.
func observe(t *testing.T, informer, kubeconfig, namespace, streaming string, write func()) []string {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cmd := exec.CommandContext(ctx, informer, kubeconfig, namespace)
	cmd.Env = append(os.Environ(), "KUBE_FEATURE_WatchListClient="+streaming)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	var lines []string
	for scanner := bufio.NewScanner(out); scanner.Scan(); {
		if scanner.Text() == "synced" {
			write()
			continue
		}
		lines = append(lines, scanner.Text())
	}
	require.NoError(t, cmd.Wait())
	return lines
}

func build(t *testing.T, release string) string {
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, os.DirFS("informer")))
	run := func(args ...string) {
		cmd := exec.Command("go", args...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "go %v: %s", args, out)
	}
	if release != "v0.32.0" { // which go.mod names
		run("get", "k8s.io/client-go@"+release, "k8s.io/api@"+release)
		run("mod", "tidy")
	}
	binary := filepath.Join(dir, "informer.bin")
	run("build", "-o", binary, ".")
	return binary
}

func writeKubeconfig(t *testing.T, config *rest.Config) string {
	c := clientcmdapi.NewConfig()
	c.Clusters["c"] = &clientcmdapi.Cluster{Server: config.Host, CertificateAuthorityData: config.CAData}
	c.AuthInfos["u"] = &clientcmdapi.AuthInfo{ClientCertificateData: config.CertData, ClientKeyData: config.KeyData}
	c.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	c.CurrentContext = "x"
	path := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, clientcmd.WriteToFile(*c, path))
	return path
}
