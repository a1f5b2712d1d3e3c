package history

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"sigs.k8s.io/yaml"
)

// TestHistory_FindsRevisionsByTime asks a server that has the revisions 40 to 100, each a second after the one before,
// and a Lease that is renewed with every tenth.
func TestHistory_FindsRevisionsByTime(t *testing.T) {
	t.Parallel()
	start := time.Now().Add(-100 * time.Second)
	second := func(i int64) time.Time { return start.Add(time.Duration(i) * time.Second) }
	client := fake.NewClientset()
	requests := 0
	client.PrependReactor("list", "leases", func(action clienttesting.Action) (bool, runtime.Object, error) {
		requests++
		revision, err := strconv.ParseInt(action.(clienttesting.ListActionImpl).GetListOptions().ResourceVersion, 10,
			64)
		require.NoError(t, err)
		if revision < 40 {
			return true, nil, apierrors.NewResourceExpired("compacted")
		}
		renewed := metav1.NewMicroTime(second(revision / 10 * 10))
		lease := coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{RenewTime: &renewed}}
		return true, &coordinationv1.LeaseList{Items: []coordinationv1.Lease{lease}}, nil
	})
	h := &History{client: client, newest: 100}

	oldest, err := h.oldest(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 40, oldest)

	then, err := h.At(t.Context(), second(67))
	require.NoError(t, err)
	require.EqualValues(t, 69, then.Revision, "the last one before the Lease has a later time")
	require.True(t, then.start.Equal(second(60)) && then.end.Equal(second(70)), "%v", then)
	require.Less(t, requests, 40, "the number of requests grows with the logarithm")

	then, err = h.At(t.Context(), second(200))
	require.NoError(t, err)
	require.Equal(t, "revision 100, the present", then.String())

	_, err = h.At(t.Context(), second(20))
	require.ErrorContains(t, err, "does not reach back so far: it begins with revision 40")
}

func TestDeltas_MatchListElementsByName(t *testing.T) {
	t.Parallel()
	object := func(text string) map[string]any {
		var v map[string]any
		require.NoError(t, yaml.Unmarshal([]byte(text), &v))
		return v
	}
	var got []string
	for _, d := range deltas("",
		object("{a: 1, l: [{name: x, v: 1}, {name: y}], p: [1, 2], m: {k: v}, gone: {deep: true}}"),
		object("{a: 2, l: [{name: y}, {name: x, v: 3}], p: [1, 3, 4], m: {k: v, o: w}, new: [1]}")) {
		got = append(got, d.String())
	}
	require.Equal(t, []string{
		"~ a: 1 → 2",
		`- gone: {"deep":true}`,
		"~ l[x].v: 1 → 3",
		"+ m.o: w",
		"+ new: [1]",
		"~ p[1]: 2 → 3",
		"+ p[2]: 4",
	}, got)
}

func TestPaintTimeline_ColorsRevisionsAndChanges(t *testing.T) {
	t.Parallel()
	const plain = "revision 1  created by a\n  + x: y\n  - x: y\n  ~ x: y → z\n"
	paint := paintTimeline()
	var colored []string
	for _, line := range strings.Split(plain, "\n") {
		colored = append(colored, paint(line))
	}
	require.Equal(t, "\x1b[1mrevision 1  created by a\x1b[0m\n\x1b[32m  + x: y\x1b[0m\n\x1b[31m  - x: y\x1b[0m\n"+
		"\x1b[33m  ~ x: y → z\x1b[0m\n", strings.Join(colored, "\n"))
}
