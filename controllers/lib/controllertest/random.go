package controllertest

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// NewRandom logs its seed, so that a failure can be reproduced.
func NewRandom(t testing.TB) *rand.Rand {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, seed))
}

// WalkSteps is how long a random walk is: as COXSWAIN_WALK_STEPS says, or by default so many steps.
func WalkSteps(t testing.TB, usual int) int {
	text := os.Getenv("COXSWAIN_WALK_STEPS")
	if text == "" {
		return usual
	}
	steps, err := strconv.Atoi(text)
	require.NoError(t, err)
	return steps
}
