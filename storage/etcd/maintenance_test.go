package etcd

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/coxswain-dev/coxswain/storage"
)

// An external etcd is maintained by its operators, with the same requests that a store makes to its own.
func TestExternal_IsCompactedDefragmentedAndDisarmed(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	b := startEtcdWith(t, EmbeddedOptions{Unsafe: true, QuotaBytes: 4 << 20}).dial()
	big := fmt.Appendf(nil, `{"data":%q}`, strings.Repeat("x", 500<<10))
	var err error
	for err == nil {
		_, err = b.Commit(ctx, []storage.Write{{Op: storage.Update, Key: podKey("default", "a"),
			Value: big, Expect: storage.AnyRevision}})
	}
	require.ErrorIs(t, err, storage.ErrNoSpace)
	status, err := b.Status(ctx)
	require.NoError(t, err)
	require.True(t, status.Has(storage.NoSpace))
	require.False(t, status.Embedded)

	require.NoError(t, b.Compact(ctx, status.Revision))
	require.NoError(t, b.Defragment(ctx))
	require.NoError(t, b.Disarm(ctx, storage.NoSpace))
	after, err := b.Status(ctx)
	require.NoError(t, err)
	require.Empty(t, after.Alarms)
	require.Less(t, after.Size, status.Size)
	_, err = b.Commit(ctx, []storage.Write{{Op: storage.Create, Key: podKey("default", "b"), Value: []byte(`{}`)}})
	require.NoError(t, err)
}

func TestStatus_ReportsACorruptEtcd(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	server := startEtcd(t)
	b := server.dial()
	s := openStore(t, b, storage.Options{})
	require.NoError(t, s.Ready(ctx))
	_, err := server.etcd.Server.Alarm(ctx, &pb.AlarmRequest{Action: pb.AlarmRequest_ACTIVATE,
		Alarm: pb.AlarmType_CORRUPT})
	require.NoError(t, err)
	require.ErrorContains(t, s.Ready(ctx), "CORRUPT")
	status, err := b.Status(ctx)
	require.NoError(t, err)
	require.True(t, status.Has(storage.Corrupt))
	_, err = s.Commit(ctx, storage.Write{Op: storage.Create, Key: podKey("default", "a"), Value: []byte(`{}`)})
	require.ErrorIs(t, err, storage.ErrUnavailable)
	require.NotErrorIs(t, err, storage.ErrUnknownOutcome)
}
