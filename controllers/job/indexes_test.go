package job

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
)

func TestIntervals(t *testing.T) {
	for _, c := range []struct {
		text  string
		limit int
		want  string
		total int
	}{
		{"", 10, "", 0}, {"3", 10, "3", 1}, {"0,1", 10, "0,1", 2}, {"0-2,5", 10, "0-2,5", 4},
		{"0-9", 5, "0-4", 5}, {"0,7-9", 5, "0", 1}, {"x,2-y,4", 10, "4", 1},
		{"5-7,0-2,1-5,9", 10, "0-7,9", 9}, {"0-9,0-9,0-9", 10, "0-9", 10}, {"0-9223372036854775807", 5, "0-4", 5},
		{"-3,7-5", 10, "", 0},
	} {
		s := parseIntervals(c.text, c.limit)
		require.Equal(t, c.want, s.String(), "%q", c.text)
		require.Equal(t, c.total, s.total(), "%q", c.text)
	}
}

// TestIntervals_EqualAMap compares with a map, through the serialized form.
func TestIntervals_EqualAMap(t *testing.T) {
	const n = 60
	model := map[int]bool{}
	s := intervals{}
	for range 500 {
		i := rand.IntN(n)
		if len(model) == n {
			model, s = map[int]bool{}, intervals{}
		}
		model[i] = true
		s = parseIntervals(s.with(i).String(), n)
		require.Equal(t, len(model), s.total())
		for j := range n {
			require.Equal(t, model[j], s.has(j), "%d in %s", j, s)
		}
		require.Equal(t, len(model), s.common(intervals{{0, n - 1}}))
	}
}

// A client that may write the status may write any ranges. They must take time by the length of the text only.
func TestIntervals_TakeTimeByTheLengthOfTheText(t *testing.T) {
	t.Parallel()
	soon := func(f func()) {
		t.Helper()
		done := make(chan struct{})
		go func() {
			defer close(done)
			f()
		}()
		select {
		case <-done:
		case <-time.After(10 * time.Second):
			t.Fatal("it takes too long")
		}
	}
	job := &batchv1.Job{}
	job.Spec.Completions = new(int32(math.MaxInt32))
	s := &sync{job: job, done: parseIntervals("0-2147483640,2147483642", math.MaxInt32),
		lost: parseIntervals("2147483644", math.MaxInt32)}
	soon(func() {
		require.Equal(t, []int{2147483641, 2147483643, 2147483645}, s.pendingIndexes(3))
		require.Equal(t, []int{2147483641, 2147483643, 2147483645, 2147483646}, s.pendingIndexes(100))
	})
	var text strings.Builder
	for i := range 150_000 {
		fmt.Fprintf(&text, "%d,", 2*i)
	}
	soon(func() {
		s := parseIntervals(text.String(), math.MaxInt32)
		require.Equal(t, 150_000, s.common(s))
	})
}

func TestIntervals_AbsentYieldsTheComplement(t *testing.T) {
	for text, want := range map[string][]int{"": {0, 1, 2, 3, 4}, "0-4": nil, "1,3": {0, 2, 4}, "0,4": {1, 2, 3}} {
		require.Equal(t, want, slices.Collect(parseIntervals(text, 5).absent(5)), text)
	}
}
