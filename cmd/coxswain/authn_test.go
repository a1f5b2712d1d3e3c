package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/apiserver/authn"
)

func TestAnonymousFlags_BehaveLikeKubernetes(t *testing.T) {
	t.Parallel()
	const header = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n"
	for name, c := range map[string]struct {
		args  []string
		file  string // content of --authentication-config, "" for none
		modes []string
		want  authn.Options
		words string
	}{
		"by default":          {},
		"off":                 {args: []string{"--anonymous-auth=false"}, want: authn.Options{NoAnonymous: true}},
		"all allowed":         {modes: []string{"AlwaysAllow"}, want: authn.Options{NoAnonymous: true}},
		"nothing in the file": {file: header},
		"no issuers":          {file: header + "jwt: []\n"},
		"off by the flag": {args: []string{"--anonymous-auth=false"}, file: header,
			want: authn.Options{NoAnonymous: true}},
		"on in the file": {file: header + "anonymous: {enabled: true}\n",
			want: authn.Options{AnonymousPaths: []string{}}},
		"off in the file": {file: header + "anonymous: {enabled: false}\n",
			want: authn.Options{NoAnonymous: true, AnonymousPaths: []string{}}},
		"at paths": {file: header + "anonymous: {enabled: true, conditions: [{path: /livez}, {path: " +
			"/readyz}]}\n", want: authn.Options{AnonymousPaths: []string{"/livez", "/readyz"}}},
		"an older version": {file: "apiVersion: apiserver.config.k8s.io/v1beta1\nkind: " +
			"AuthenticationConfiguration\nanonymous: {enabled: true}\n",
			want: authn.Options{AnonymousPaths: []string{}}},
		"both": {args: []string{"--anonymous-auth=true"}, file: header + "anonymous: {enabled: true}\n",
			words: "--anonymous-auth flag cannot be set when anonymous field is configured in authentication " +
				"configuration file"},
		"with OIDC": {args: []string{"--oidc-client-id=a"}, file: header,
			words: "authentication-config file and oidc-* flags are mutually exclusive"},
		"half of OIDC": {args: []string{"--oidc-client-id=a"},
			words: "oidc-issuer-url and oidc-client-id must be specified together when any oidc-* flags are set"},
		"an unknown field": {file: header + "anonymous: {enabled: true, path: /livez}\n",
			words: `unknown field "anonymous.path"`},
		"a field twice": {file: header + "anonymous: {enabled: true}\nanonymous: {enabled: false}\n",
			words: `already set`},
		"another case": {file: header + "Anonymous: {enabled: true}\n", words: `unknown field "Anonymous"`},
		"another kind": {file: "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\n",
			words: "not apiserver.config.k8s.io/v1 AuthenticationConfiguration"},
		"another version": {file: "apiVersion: apiserver.config.k8s.io/v2\nkind: AuthenticationConfiguration\n",
			words: "not apiserver.config.k8s.io/v1 AuthenticationConfiguration"},
		"not an object": {file: "[]", words: "authentication configuration"},
	} {
		var f authnFlags
		fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
		f.add(fs)
		if c.file != "" {
			file := filepath.Join(t.TempDir(), "config.yaml")
			require.NoError(t, os.WriteFile(file, []byte(c.file), 0o600))
			c.args = append(c.args, "--authentication-config", file)
		}
		require.NoError(t, fs.Parse(c.args))
		var got authn.Options
		err := f.configOptions(&got, c.modes)
		if c.words != "" {
			require.ErrorContains(t, err, c.words, name)
			continue
		}
		require.NoError(t, err, name)
		if c.file != "" {
			require.Equal(t, c.file, string(got.Config.Content), name)
			require.Equal(t, f.configFile, got.Config.File, name)
		}
		got.Config = nil
		require.Equal(t, c.want, got, name)
	}
	f := authnFlags{configFile: filepath.Join(t.TempDir(), "none")}
	f.set = pflag.NewFlagSet("test", pflag.ContinueOnError)
	require.ErrorIs(t, f.configOptions(&authn.Options{}, nil), os.ErrNotExist)
	empty := filepath.Join(t.TempDir(), "empty")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	f.configFile = empty
	require.ErrorContains(t, f.configOptions(&authn.Options{}, nil), "empty config data")
}
