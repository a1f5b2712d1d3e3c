package kubectllite

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestQuantities_InFlagsAreRejectedIfTheyWouldChange(t *testing.T) {
	t.Parallel()
	f := newFakeServer(t)
	for _, args := range []string{"create quota q --hard=pods=1,requests.memory=%s", "autoscale deploy web --max=2 --memory=%s",
		"set resources deploy web --limits=memory=%s", "set resources deploy web --requests=cpu=1,memory=%s"} {
		for quantity, words := range map[string]string{"7000E": "written with an exponent", "1e-999999999": "exponent"} {
			got := f.run(t, "", strings.Fields(strings.ReplaceAll(args, "%s", quantity))...)
			require.Equal(t, 1, got.Code)
			require.Contains(t, got.ErrOut, words)
			require.Contains(t, got.ErrOut, "invalid argument")
		}
	}
	got := f.run(t, "", strings.Fields("create quota q --hard=requests.memory=7e21 --dry-run=client -o yaml")...)
	require.Zero(t, got.Code, got.ErrOut)
	require.Contains(t, got.Out, `requests.memory: "7e21"`)
}
