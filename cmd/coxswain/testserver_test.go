package main

import (
	"bytes"
	"encoding/json"
	"encoding/pem"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/apiserver/pki"
)

func TestTestServer_WritesAddressForShellsAndPrograms(t *testing.T) {
	t.Parallel()
	server := address{Endpoint: "https://127.0.0.1:1", CA: "/tmp/it's/ca.crt", Token: "ABC", Kubeconfig: "/tmp/k", PID: 7}
	var shell, line bytes.Buffer
	require.NoError(t, server.write(&shell, false))
	require.Equal(t, "export KUBECONFIG=/tmp/k\nexport COXSWAIN_ENDPOINT=https://127.0.0.1:1\n"+
		"export COXSWAIN_CA='/tmp/it'\\''s/ca.crt'\nexport COXSWAIN_TOKEN=ABC\nexport COXSWAIN_PID=7\n", shell.String())
	require.NoError(t, server.write(&line, true))
	require.Equal(t, 1, bytes.Count(line.Bytes(), []byte("\n")), "programs read one line")
	var read address
	require.NoError(t, json.Unmarshal(line.Bytes(), &read))
	require.Equal(t, server, read)
}

func TestOnlyCAs_OmitsServerCertificates(t *testing.T) {
	t.Parallel()
	ca, err := pki.NewCA()
	require.NoError(t, err)
	leaf, _, err := ca.Issue(pki.Leaf{User: "server", Hosts: []string{"localhost"}})
	require.NoError(t, err)
	require.Empty(t, onlyCAs(leaf))
	got := onlyCAs(append(leaf, ca.PEM()...))
	block, rest := pem.Decode(got)
	require.Empty(t, rest)
	require.Equal(t, ca.Certificate().Raw, block.Bytes)
}
