package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

// testdata/kube-apiserver-flags.txt has the name and the type of each flag of kube-apiserver.
func TestKubeAPIServer_HasTheFlagsOfKubeAPIServer(t *testing.T) {
	t.Parallel()
	listing, err := os.ReadFile("testdata/kube-apiserver-flags.txt")
	require.NoError(t, err)
	want := map[string]string{}
	for line := range strings.Lines(string(listing)) {
		name, kind, _ := strings.Cut(strings.TrimSpace(line), " ")
		want[name] = kind
	}
	require.Greater(t, len(want), 170)
	cmd := newKubeAPIServer()
	cmd.InitDefaultHelpFlag()
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		require.Contains(t, want, f.Name, "kube-apiserver has no such flag")
		// A flag that can be given without a value would otherwise take the next argument as its value, or leave one.
		require.Equal(t, want[f.Name] == "bool" || want[f.Name] == "version", f.NoOptDefVal != "", f.Name)
		delete(want, f.Name)
	})
	require.Empty(t, want, "flags of kube-apiserver that are missing")
}

func TestKubeAPIServer_RejectsFlagsItMustNotIgnore(t *testing.T) {
	t.Parallel()
	for arg, words := range map[string]string{
		"--authorization-config=/nothing":               "--authorization-config",
		"--authorization-policy-file=p":                 "--authorization-policy-file",
		"--authorization-mode=ABAC":                     "ABAC",
		"--encryption-provider-config-automatic-reload": "must be set with --encryption-provider-config",
		"--egress-selector-config-file=e":               "--egress-selector-config-file",
		"--etcd-servers-overrides=/pods#u":              "--etcd-servers-overrides",
		"--allow-privileged=false":                      "--allow-privileged",
		"--service-account-signing-endpoint=s":          "--service-account-signing-endpoint",
		"--admission-control=AlwaysDeny":                "--admission-control",
		"--enable-admission-plugins=Unknown":            "Unknown",
		"--enable-admission-plugins=EventRateLimit":     "EventRateLimit",
		"--data-dir=d":                                  "unknown flag: --data-dir",
		"--insecure-port=8080":                          "unknown flag: --insecure-port",
		"--watch-cache=maybe":                           "must be true or false",
		"--secure-port=70000":                           "--secure-port",
	} {
		err := kubeAPIServerWith(t, arg)
		require.ErrorContains(t, err, words, arg)
	}
	err := kubeAPIServerWith(t)
	require.ErrorContains(t, err, "--etcd-servers must be specified")
}

// kubeAPIServerWith returns the error of a kube-apiserver that starts without an etcd and with a canceled context.
func kubeAPIServerWith(t *testing.T, args ...string) error {
	t.Helper()
	cmd := newKubeAPIServer()
	cmd.SetArgs(append([]string{"--cert-dir=" + t.TempDir(), "--secure-port=0"},
		args...))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return cmd.ExecuteContext(ctx)
}

func TestKubeAPIServer_MakesMissingServerCertificate(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "certs")
	k := &kubeAPIServer{certDir: dir, server: serverFlags{bindAddress: "127.0.0.1"}}
	require.NoError(t, k.useCertDir())
	first, err := os.ReadFile(filepath.Join(dir, "apiserver.crt"))
	require.NoError(t, err)
	require.Equal(t, first, k.server.trusted)
	key, err := os.Stat(filepath.Join(dir, "apiserver.key"))
	require.NoError(t, err)
	require.EqualValues(t, 0o600, key.Mode().Perm())
	again := &kubeAPIServer{certDir: dir, server: serverFlags{bindAddress: "127.0.0.1"}}
	require.NoError(t, again.useCertDir())
	require.Equal(t, first, again.server.trusted, "an existing certificate is kept")
	other := &kubeAPIServer{certDir: dir, server: serverFlags{tlsCertFile: filepath.Join(dir, "none")}}
	require.ErrorContains(t, other.useCertDir(), "none")
}

func TestEtcd_ElectsSingleMemberAtOnce(t *testing.T) {
	t.Parallel()
	for args, single := range map[string]bool{
		"--data-dir=d --listen-client-urls=http://a,http://b":          true,
		"-data-dir d --initial-cluster default=http://localhost:1":     true,
		"--initial-cluster=default=http://localhost:1":                 true,
		"--initial-cluster a=http://localhost:1,b=http://localhost:2":  false,
		"--initial-cluster=a=http://localhost:1,b=https://localhost:2": false,
		"--heartbeat-interval=100":                                     false,
		"--election-timeout 1000":                                      false,
		"--config-file=c":                                              false,
		"grpc-proxy start":                                             false,
		"":                                                             false,
	} {
		require.Equal(t, single, singleMember(strings.Fields(args)), args)
	}
}
