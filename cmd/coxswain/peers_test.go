package main

import (
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

func TestPeers_AreChecked(t *testing.T) {
	t.Parallel()
	parse := func(args ...string) (*serverFlags, error) {
		f, fs := &serverFlags{}, pflag.NewFlagSet("", pflag.ContinueOnError)
		f.addPeers(fs)
		require.NoError(t, fs.Parse(args))
		return f, f.checkPeers()
	}
	f, err := parse()
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1:10257", f.peers["controller-manager"])
	f, err = parse("--component-health=controller-manager=controllers:10257")
	require.NoError(t, err)
	require.Equal(t, map[string]string{"controller-manager": "controllers:10257", "scheduler": "127.0.0.1:10259"},
		f.peers)
	_, err = parse("--component-health=kubelet=node:10250")
	require.ErrorContains(t, err, `"kubelet" is not controller-manager or scheduler`)
	_, err = parse("--component-health=scheduler=nowhere")
	require.ErrorContains(t, err, "missing port")
}
