package controller

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSlowStart(t *testing.T) {
	for _, c := range []struct{ n, failFrom, tried int }{
		{0, 100, 0}, {1, 100, 1}, {10, 100, 10}, {500, 1000, 500}, {500, 0, 1}, {500, 1, 3}, {500, 3, 7},
	} {
		var called atomic.Int32
		tried, err := SlowStart(c.n, func(i int) error {
			called.Add(1)
			if i >= c.failFrom {
				return fmt.Errorf("call %d", i)
			}
			return nil
		})
		require.Equal(t, c.tried, tried, "%+v", c)
		require.EqualValues(t, c.tried, called.Load())
		require.Equal(t, c.failFrom < c.n, err != nil)
	}
}
