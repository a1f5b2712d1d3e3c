package kubectllite

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/cli-runtime/pkg/genericiooptions"
)

// startProxy runs a proxy to the server until the test ends, and returns where it listens.
func startProxy(t *testing.T, f *fakeServer, flags ...string) (network, address string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	out := &lockedBuffer{}
	ended := make(chan int)
	args := append([]string{"--kubeconfig", f.kubeconfig(t), "proxy"}, flags...)
	go func() {
		ended <- Main(ctx, args, genericiooptions.IOStreams{In: strings.NewReader(""), Out: out, ErrOut: out})
	}()
	t.Cleanup(func() { cancel(); require.Zero(t, <-ended) })
	serving := regexp.MustCompile(`Starting to serve on (\S+)\n`)
	require.Eventually(t, func() bool { return serving.MatchString(out.String()) }, 30*time.Second, time.Millisecond, out)
	address = serving.FindStringSubmatch(out.String())[1]
	if strings.HasPrefix(address, "/") {
		return "unix", address
	}
	return "tcp", address
}

// ask sends a request whose target stands in it as it is written here, and returns the status code and the body.
func ask(t *testing.T, network, address, method, target, host string) (int, string) {
	t.Helper()
	conn, err := net.Dial(network, address)
	require.NoError(t, err)
	defer conn.Close() //nolint:errcheck // it was only read
	_, err = fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", method, target, host)
	require.NoError(t, err)
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	defer res.Body.Close() //nolint:errcheck // it was only read
	text, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return res.StatusCode, string(text)
}

func TestProxy_RulesSeeThePathThatIsSentOn(t *testing.T) {
	t.Parallel()
	const pod = "/api/v1/namespaces/default/pods/web-0"
	for name, c := range map[string]struct {
		flags           []string
		passes, refused []string
	}{
		"the API at the root": {
			nil,
			[]string{"/version", "/api/v1/namespaces", pod, pod + "/log", "/apis/apps/v1/deployments"},
			[]string{
				pod + "/exec", pod + "/attach", pod + "/exec?command=sh", pod + "/exec/", pod + "/%65xec", pod + "%2Fexec", pod + "/exec;x",
				"/x/%2e%2e" + pod + "/exec", "/%2E%2E/x/%2e%2e/%2fapi/v1/namespaces/default/pods/web-0/attach", "/%2F" + pod + "/exec", "/%2e" + pod + "/exec",
				"/api/%0A/%2e%2e/v1/namespaces/default/pods/web-0/exec", "/api/v1/namespaces/%0A/pods/web-0/exec",
			},
		},
		"the API below a prefix": {
			[]string{"--api-prefix=/k8s/"},
			[]string{"/k8s/version", "/k8s" + pod + "/log"},
			[]string{"/k8s" + pod + "/exec", "/k8s" + pod + "/attach", "/k8s" + pod + "/%65xec", "/k8s/%2fapi/v1/namespaces/default/pods/web-0/exec"},
		},
		"only some paths, below a prefix": {
			[]string{"--api-prefix=/k8s", "--accept-paths=^/api/v1/namespaces/default/"},
			[]string{"/k8s" + pod},
			[]string{
				"/k8s/version", "/k8s/api/v1/namespaces/other/pods", "/k8s/api/v1/namespaces/default/%2e%2e/other/pods",
				"/k8s/k8s/api/v1/namespaces/default/pods",
			},
		},
		"a part of the API": {
			[]string{"--api-prefix=/api/"},
			[]string{"/api/v1/namespaces", pod},
			[]string{pod + "/exec"},
		},
		"a method": {
			[]string{"--reject-methods=POST,PUT", "--api-prefix=/k8s/"},
			[]string{"GET /k8s/version", "DELETE /k8s" + pod},
			[]string{"POST /k8s/api/v1/namespaces", "PUT /k8s" + pod},
		},
		"no rules": {[]string{"--disable-filter"}, []string{pod + "/exec"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFakeServer(t)
			f.streams = func(w http.ResponseWriter, _ *http.Request) bool { _, _ = w.Write([]byte("passed")); return true }
			network, address := startProxy(t, f, append(c.flags, "--port=0")...)
			call := func(line string) (int, string) {
				method, target, two := strings.Cut(line, " ")
				if !two {
					method, target = http.MethodGet, line
				}
				return ask(t, network, address, method, target, "localhost")
			}
			for _, line := range c.passes {
				code, text := call(line)
				require.Equal(t, http.StatusOK, code, line)
				require.Equal(t, "passed", text, line)
			}
			passed := f.asked("")
			for _, line := range c.refused {
				code, _ := call(line)
				require.Equal(t, http.StatusForbidden, code, line)
			}
			require.Equal(t, passed, f.asked(""), "nothing that was refused reached the server: %v", f.requests)
			if name != "no rules" {
				code, _ := ask(t, network, address, http.MethodGet, "/k8s/version", "evil.example")
				require.Equal(t, http.StatusForbidden, code)
			}
		})
	}
}

func TestProxy_FilesAreNoMatterOfTheAPIsRules(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(folder, "page"), []byte("hello"), 0o600))
	network, address := startProxy(t, newFakeServer(t), "--port=0", "--www="+folder, "--accept-paths=^/version$")
	code, text := ask(t, network, address, http.MethodGet, "/static/page", "localhost")
	require.Equal(t, http.StatusOK, code)
	require.Equal(t, "hello", text)
	code, _ = ask(t, network, address, http.MethodGet, "/static/page", "evil.example")
	require.Equal(t, http.StatusForbidden, code)
	code, _ = ask(t, network, address, http.MethodGet, "/static/%2e%2e/%2e%2e/etc/passwd", "localhost")
	require.NotEqual(t, http.StatusOK, code)
}

func TestProxy_SocketIsTheUsersAloneAndReplacesNothingElse(t *testing.T) {
	t.Parallel()
	folder, err := os.MkdirTemp("", "proxy") // a socket's name is short
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	socket := filepath.Join(folder, "s")
	f := newFakeServer(t)
	require.NoError(t, os.WriteFile(socket, []byte("precious"), 0o600))
	got := f.run(t, "", "proxy", "--unix-socket="+socket)
	require.Equal(t, outcome{1, "", "error: " + socket + " exists and is not a socket\n"}, got)
	require.Equal(t, "precious", readFile(t, socket))
	require.NoError(t, os.Remove(socket))

	left, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
	require.NoError(t, err)
	left.(*net.UnixListener).SetUnlinkOnClose(false)
	require.NoError(t, left.Close())
	network, address := startProxy(t, f, "--unix-socket="+socket)
	require.Equal(t, "unix", network)
	info, err := os.Stat(socket)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	code, _ := ask(t, network, address, http.MethodGet, "/version", "localhost")
	require.Equal(t, http.StatusOK, code)
	entries, err := os.ReadDir(folder)
	require.NoError(t, err)
	require.Len(t, entries, 1, "nothing but the socket is left in the folder")
}
