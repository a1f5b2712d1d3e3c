package kubeconfig_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/cmd/coxswain/kubeconfig"
)

func TestCredentialFiles_IncludeReferencedFiles(t *testing.T) {
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
	in := func(name string) string { return filepath.Join(dir, name) }
	files := kubeconfig.CredentialFiles(in("kubeconfig"))
	require.Subset(t, files, []string{in("kubeconfig"), in("a.key"), in("token")})
	require.NotContains(t, files, in("gone"))
	require.NotContains(t, files, "")
}
