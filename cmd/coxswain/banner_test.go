package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/coxswain-dev/coxswain/node"
)

func TestUp_ShowsBannerWhenNodesAreReady(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "it's data")
	require.NoError(t, os.Mkdir(dir, 0o700))
	ctx, cancel := context.WithCancel(t.Context())
	out, in := io.Pipe()
	cmd := newUp()
	cmd.SetArgs([]string{"--data-dir", dir, "--secure-port", "0"})
	cmd.SetOut(in)
	ended := make(chan error, 1)
	go func() {
		err := cmd.ExecuteContext(ctx)
		_ = in.CloseWithError(err)
		ended <- err
	}()

	lines := bufio.NewScanner(out)
	require.True(t, lines.Scan(), "the banner: %v", lines.Err())
	require.Regexp(t, `^Coxswain v1\.\d+\.\S+ serves https://127\.0\.0\.1:\d+ after \d+ ms, 3 Nodes Ready after \d+ ms\.$`,
		lines.Text())
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(dir, "admin.kubeconfig"))
	require.NoError(t, err)
	nodes, err := kubernetes.NewForConfigOrDie(config).CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, nodes.Items, 3)
	for _, n := range nodes.Items {
		require.True(t, isReady(n), n.Name)
	}

	var rest strings.Builder
	cancel()
	for lines.Scan() {
		fmt.Fprintln(&rest, lines.Text())
	}
	require.NoError(t, <-ended)
	require.Contains(t, rest.String(), "  export KUBECONFIG='"+
		strings.ReplaceAll(filepath.Join(dir, "admin.kubeconfig"), "'", `'\''`)+"'\n")
	for _, command := range firstCommands(node.Simulated) {
		require.Contains(t, rest.String(), " "+command+"\n")
	}
	require.Contains(t, rest.String(), fmt.Sprintf("Ctrl-C here, or kill %d, stops it", os.Getpid()))
}

func isReady(n corev1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// The printed paths work in any working directory.
func TestBanner_NamesAbsolutePaths(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	banner{running: &running{dir: ".coxswain", url: "https://127.0.0.1:6443"}}.show(&out, "")
	here, err := os.Getwd()
	require.NoError(t, err)
	require.Contains(t, out.String(), "export KUBECONFIG="+here+"/.coxswain/admin.kubeconfig\n")
	require.Contains(t, out.String(), "stays in "+here+"/.coxswain;")
}

// Programs outlive the command that started them.
func TestBanner_ExplainsHowToEndPrograms(t *testing.T) {
	t.Parallel()
	show := func(programs bool) string {
		var out strings.Builder
		banner{running: &running{dir: "/my data"}, programs: programs}.show(&out, "")
		return out.String()
	}
	require.NotContains(t, show(false), "keep running")
	require.Contains(t, show(true), "Pods keep running without it")
	require.Contains(t, show(true), " node --cleanup --root-dir '/my data/node'\n")
}

func TestListen_NamesTheProcessOnThePort(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	_, port, err := net.SplitHostPort(ln.Addr().String())
	require.NoError(t, err)
	for _, cmd := range []string{"up", "apiserver"} {
		c := newUp()
		if cmd == "apiserver" {
			c = newAPIServer()
		}
		c.SilenceUsage, c.SilenceErrors = true, true
		c.SetArgs([]string{"--data-dir", t.TempDir(), "--secure-port", port})
		err = c.ExecuteContext(t.Context())
		require.ErrorContains(t, err, "--secure-port: "+ln.Addr().String()+" is in use by another process")
		require.ErrorContains(t, err, "choose another port with --secure-port")
		if runtime.GOOS == "linux" {
			require.ErrorContains(t, err, fmt.Sprintf("(process %d: ", os.Getpid()))
		}
	}
	f := &nodeFlags{}
	flags := pflag.NewFlagSet("node", pflag.ContinueOnError)
	f.add(flags, 1)
	f.addEndpoint(flags)
	require.NoError(t, flags.Parse([]string{"--address", "127.0.0.1", "--port", port, "--node-ip", "127.0.0.1"}))
	err = f.run(t.Context(), identities{main: &rest.Config{Host: "https://127.0.0.1:1"}})
	require.ErrorContains(t, err, "--port: "+ln.Addr().String()+" is in use by another process")

	_, err = listen("metrics-bind-address", "192.0.2.1:0")
	require.ErrorContains(t, err, "--metrics-bind-address: this machine does not have the address")
}
