package controllertest

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// NewRandom returns a random source and logs its seed, so that a failure can be reproduced.
func NewRandom(t testing.TB) *rand.Rand {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, seed))
}

// WalkSteps returns the length of a random walk: COXSWAIN_WALK_STEPS, or by default usual.
func WalkSteps(t testing.TB, usual int) int {
	text := os.Getenv("COXSWAIN_WALK_STEPS")
	if text == "" {
		return usual
	}
	steps, err := strconv.Atoi(text)
	require.NoError(t, err)
	return steps
}
