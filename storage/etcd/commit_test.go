package etcd

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/coxswain-dev/coxswain/storage"
)

// A caller may reuse a value's bytes as soon as Commit has returned, even if only because its context
// ended.
func TestCommit_DoesNotRetainValues(t *testing.T) {
	t.Parallel()
	for name, backend := range map[string]func() storage.Backend{
		"embedded": func() storage.Backend { return startBackend(t) },
		"external": func() storage.Backend { return startEtcd(t).dial() },
	} {
		b := backend()
		s := openStore(t, b, storage.Options{})
		pods := s.Collection(podsName, podOptions)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var want, buffer []byte
			for i := range 100 {
				want = pod("default", fmt.Sprintf("p%d", i), "")
				buffer = append(buffer[:0], want...)
				ctx, cancel := context.WithTimeout(testContext(t), time.Duration(i%10)*100*time.Microsecond+
					time.Minute*time.Duration(i%2))
				result, err := s.Commit(ctx, storage.Write{Op: storage.Create,
					Key: podKey("default", fmt.Sprintf("p%d", i)), Value: buffer})
				cancel()
				for j := range buffer {
					buffer[j] = 'x'
				}
				if err == nil {
					require.True(t, result.Objects[0].Same(want))
				}
			}
			list, err := pods.List(testContext(t), storage.ListRequest{})
			require.NoError(t, err)
			require.GreaterOrEqual(t, len(list.Items), 50)
			for _, objects := range []*storage.Collection{pods,
				openStore(t, b, storage.Options{}).Collection(podsName, podOptions)} {
				list, err := objects.List(testContext(t), storage.ListRequest{})
				require.NoError(t, err)
				for _, o := range list.Items {
					require.True(t, o.Same(pod("default", o.Key.Name, "")), "%s", o.JSON)
				}
			}
		})
	}
}

func TestCommit_ErrorsShowWhetherItWasApplied(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ err, want error }{
		{rpctypes.ErrNoSpace, storage.ErrNoSpace},
		{rpctypes.ErrRequestTooLarge, storage.ErrTooLarge},
		{rpctypes.ErrTooManyOps, storage.ErrTooLarge},
		{rpctypes.ErrNoLeader, storage.ErrUnavailable},
		{rpctypes.ErrTooManyRequests, storage.ErrUnavailable},
		{rpctypes.ErrTimeout, storage.ErrUnknownOutcome},
		{rpctypes.ErrTimeoutDueToLeaderFail, storage.ErrUnknownOutcome},
		{rpctypes.ErrLeaderChanged, storage.ErrUnknownOutcome},
		{rpctypes.ErrStopped, storage.ErrUnknownOutcome},
		{context.DeadlineExceeded, storage.ErrUnknownOutcome},
		{context.Canceled, storage.ErrUnknownOutcome},
		{notSent{context.Canceled}, storage.ErrUnavailable},
		{status.Error(codes.Unavailable, "error reading from server: EOF"), storage.ErrUnknownOutcome},
		{status.Error(codes.Unavailable,
			`connection error: desc = "transport: Error while dialing: dial tcp: refused"`), storage.ErrUnavailable},
		{status.Error(codes.ResourceExhausted, "trying to send message larger than max (3 vs. 2)"),
			storage.ErrTooLarge},
	} {
		require.ErrorIs(t, writeError(c.err), c.want, "%v", c.err)
	}
	denied := writeError(rpctypes.ErrPermissionDenied)
	require.ErrorIs(t, denied, rpctypes.ErrPermissionDenied)
	require.NotErrorIs(t, denied, storage.ErrUnknownOutcome)
	require.ErrorIs(t, readError(rpctypes.ErrCompacted), storage.ErrExpired)
	require.ErrorIs(t, readError(rpctypes.ErrFutureRev), storage.ErrFuture)
	require.ErrorIs(t, readError(errors.New("lost")), storage.ErrUnavailable)
}
