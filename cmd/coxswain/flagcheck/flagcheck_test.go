package flagcheck

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestIsHost_AcceptsWildcards(t *testing.T) {
	t.Parallel()
	require.NoError(t, isHost("*.example.com"))
	require.Error(t, isHost("a_b"))
}

func TestFlags_RejectTooLittleRequestMemory(t *testing.T) {
	t.Parallel()
	for text, rejected := range map[string]bool{"1Mi": true, "27Mi": true, "-64Mi": true, "1": true, "28Mi": false,
		"64Mi": false, "0": false} {
		err := isRequestMemory(text)
		if rejected {
			require.ErrorContains(t, err, text+" is less than 28Mi")
		} else {
			require.NoError(t, err, text)
		}
	}
}
