package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCredentialFiles_AreTheKubeconfigAndWhatItPointsTo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"kubeconfig": "apiVersion: v1\nkind: Config\nusers:\n- {name: a, user: {client-certificate: a.crt, " +
			"client-key: a.key}}\n" +
			"- {name: b, user: {tokenFile: token}}\n- {name: c, user: {tokenFile: gone}}\n",
		"a.crt": "", "a.key": "", "token": "",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	files := credentialFiles(at("kubeconfig"))
	require.Subset(t, files, []string{at("kubeconfig"), at("a.key"), at("token")})
	require.NotContains(t, files, at("gone"))
	require.NotContains(t, files, "")
}
