package configfile_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/apiserver/configfile"
)

func TestDecode_IsStrict(t *testing.T) {
	t.Parallel()
	const header = "apiVersion: apiserver.config.k8s.io/v1\nkind: Fleet\n"
	for text, words := range map[string]string{
		"":                                       "empty config data",
		header + strings.Repeat(" ", 4<<20):      "has more than 4194304 bytes",
		header + "ships: [":                      "strict decoding error",
		header + "ships: 5":                      "strict decoding error",
		header + "boats: [a]":                    `unknown field "boats"`,
		header + "Ships: [a]":                    `unknown field "Ships"`,
		header + "ships: [a]\nships: [b]":        "already set",
		"apiVersion: v1\nkind: Fleet":            `is v1 "Fleet", not apiserver.config.k8s.io/v1 Fleet`,
		strings.Replace(header, "v1", "v2", 1):   "not apiserver.config.k8s.io/v1 Fleet",
		strings.Replace(header, "Fleet", "F", 1): "not apiserver.config.k8s.io/v1 Fleet",
		"[]":                                     "json",
	} {
		var into fleet
		require.ErrorContains(t, configfile.Decode([]byte(text), "Fleet", []string{"v1", "v1beta1"}, &into), words, text)
	}
	var into fleet
	require.NoError(t, configfile.Decode([]byte(strings.Replace(header, "v1", "v1beta1", 1)+"ships: [a, b]"), "Fleet",
		[]string{"v1", "v1beta1"}, &into))
	require.Equal(t, []string{"a", "b"}, into.Ships)
}

type fleet struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Ships      []string `json:"ships"`
}
