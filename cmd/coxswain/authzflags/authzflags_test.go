package authzflags

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/apiserver/authz"
)

func TestAuthorizationFlags_MakeOrReadConfiguration(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "config.yaml")
	require.NoError(t, os.WriteFile(file, []byte("apiVersion: apiserver.config.k8s.io/v1\n"+
		"kind: AuthorizationConfiguration\nauthorizers: [{type: RBAC, name: rbac}]\n"), 0o600))
	for name, c := range map[string]struct {
		args  []string
		want  []string // the types
		words string
	}{
		"by default":   {want: []string{"Node", "RBAC"}},
		"modes":        {args: []string{"--authorization-mode=AlwaysDeny,RBAC"}, want: []string{"AlwaysDeny", "RBAC"}},
		"a file":       {args: []string{"--authorization-config", file}, want: []string{"RBAC"}},
		"a mode twice": {args: []string{"--authorization-mode=RBAC,RBAC"}, words: "has mode RBAC twice"},
		"both": {args: []string{"--authorization-config", file, "--authorization-mode=RBAC"},
			words: "--authorization-config can not be specified when --authorization-mode or --authorization-webhook-*"},
		"a webhook's flag": {args: []string{"--authorization-config", file, "--authorization-webhook-version=v1"},
			words: "can not be specified when"},
		"a version": {args: []string{"--authorization-webhook-version=v2"}, words: `"v2" is not one of: v1, v1beta1`},
		"no file":   {args: []string{"--authorization-config", "/nothing"}, words: "--authorization-config: "},
	} {
		var f Flags
		fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
		f.Add(fs)
		require.NoError(t, fs.Parse(c.args), name)
		o, err := f.Options()
		if c.words != "" {
			require.ErrorContains(t, err, c.words, name)
			continue
		}
		require.NoError(t, err, name)
		require.Equal(t, c.want, o.Configuration.Types(), name)
	}
	var f Flags
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	f.Add(fs)
	require.NoError(t, fs.Parse([]string{"--authorization-mode=Webhook"}))
	o, err := f.Options()
	require.NoError(t, err)
	_, err = authz.New(o)
	require.ErrorContains(t, err, "needs a webhook", "the mode Webhook needs a kubeconfig")
}
