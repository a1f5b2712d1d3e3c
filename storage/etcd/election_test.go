package etcd

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"

	"github.com/coxswain-dev/coxswain/storage"
)

// dialMembers connects to one etcd as if it had two members.
func (s *etcdServer) dialMembers() storage.Backend {
	address := s.config.ListenClientUrls[0].Host
	b, err := DialExternal(ExternalOptions{Servers: []string{address, address}, Prefix: "/test/"})
	require.NoError(s.t, err)
	s.t.Cleanup(func() { require.NoError(s.t, b.Close()) })
	return b
}

// holdWrites makes writes wait for release, and adds termOffset to the term in the responses to reads before that.
func (s *etcdServer) holdWrites(termOffset uint64, release func(ctx context.Context, reads <-chan struct{})) {
	reads := make(chan struct{}, 100)
	around := grpc.UnaryServerInterceptor(func(ctx context.Context, request any, method *grpc.UnaryServerInfo,
		handle grpc.UnaryHandler) (any, error) {
		if method.FullMethod == pb.KV_Txn_FullMethodName {
			release(ctx, reads)
			return handle(ctx, request)
		}
		answer, err := handle(ctx, request)
		if read, ok := answer.(*pb.RangeResponse); ok && err == nil {
			read.Header.RaftTerm += termOffset
			reads <- struct{}{}
		}
		return answer, err
	})
	s.around.Store(&around)
}

func TestCommit_IsGivenUpAfterItsLeaderDied(t *testing.T) {
	t.Parallel()
	server := startEtcd(t)
	b := server.dialMembers()
	write := func(name string) (*storage.Outcome, error) {
		return b.Commit(testContext(t), []storage.Write{{Op: storage.Create, Key: podKey("default", name),
			Value: pod("default", name, "")}})
	}
	_, err := write("before")
	require.NoError(t, err)

	server.holdWrites(1, func(ctx context.Context, _ <-chan struct{}) { <-ctx.Done() })
	_, err = write("lost")
	require.ErrorIs(t, err, storage.ErrUnknownOutcome)
	require.ErrorIs(t, err, errNewLeader, "long before anyone else has lost patience")
}

func TestCommit_WaitsWhileItsLeaderIsAlive(t *testing.T) {
	t.Parallel()
	server := startEtcd(t)
	b := server.dialMembers()
	_, err := b.Revision(testContext(t))
	require.NoError(t, err)
	server.holdWrites(0, func(ctx context.Context, reads <-chan struct{}) {
		for range 2 { // it is late, and there is no other leader, and still none
			select {
			case <-reads:
			case <-ctx.Done():
			}
		}
	})
	outcome, err := b.Commit(testContext(t), []storage.Write{{Op: storage.Create, Key: podKey("default", "slow"),
		Value: pod("default", "slow", "")}})
	require.NoError(t, err)
	require.True(t, outcome.Applied)
}
