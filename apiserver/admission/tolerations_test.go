package admission

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

func TestMergeTolerations_DropsCoveredTolerations(t *testing.T) {
	t.Parallel()
	exists := func(key string) corev1.Toleration {
		return corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists}
	}
	valued := corev1.Toleration{Key: "a", Operator: corev1.TolerationOpEqual, Value: "v"}
	short := corev1.Toleration{Key: "b", Operator: corev1.TolerationOpExists, TolerationSeconds: ptr.To[int64](1)}
	for name, c := range map[string]struct{ first, second, want []corev1.Toleration }{
		"different":    {[]corev1.Toleration{exists("a")}, []corev1.Toleration{short}, []corev1.Toleration{exists("a"), short}},
		"the same":     {[]corev1.Toleration{valued}, []corev1.Toleration{valued}, []corev1.Toleration{valued}},
		"a wider one":  {[]corev1.Toleration{valued}, []corev1.Toleration{exists("a")}, []corev1.Toleration{exists("a")}},
		"a longer one": {[]corev1.Toleration{short}, []corev1.Toleration{exists("b")}, []corev1.Toleration{exists("b")}},
		"all":          {[]corev1.Toleration{valued, short}, []corev1.Toleration{exists("")}, []corev1.Toleration{exists("")}},
	} {
		merged, err := mergeTolerations(t.Context(), c.first, c.second)
		require.NoError(t, err, name)
		require.Equal(t, c.want, merged, name)
	}
}

// Comparing each of 100,000 tolerations with all others takes half a minute, and must end with the request.
func TestMergeTolerations_EndsWithItsRequest(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	many := make([]corev1.Toleration, 100_000)
	for i := range many {
		many[i].Key = fmt.Sprint(i)
	}
	cancel()
	_, err := mergeTolerations(ctx, many, nil)
	require.ErrorIs(t, err, context.Canceled)
}
