package etcd

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/embed"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/coxswain-dev/coxswain/storage"
)

// etcdServer is an etcd with a TCP listener that can be stopped and started again.
type etcdServer struct {
	t      testing.TB
	config *embed.Config
	etcd   *embed.Etcd
	// held by requests for etcd's status, which read a database that a stop closes
	asked sync.RWMutex
	// around, if set, answers instead.
	around atomic.Pointer[grpc.UnaryServerInterceptor]
}

func (s *etcdServer) intercept(ctx context.Context, request any, method *grpc.UnaryServerInfo,
	handle grpc.UnaryHandler) (any, error) {
	if method.FullMethod == pb.Maintenance_Status_FullMethodName {
		if !s.asked.TryRLock() {
			return nil, status.Error(codes.Unavailable, "etcd stops")
		}
		defer s.asked.RUnlock()
	}
	if around := s.around.Load(); around != nil {
		return (*around)(ctx, request, method, handle)
	}
	return handle(ctx, request)
}

func startEtcd(t testing.TB) *etcdServer {
	t.Helper()
	return startEtcdWith(t, EmbeddedOptions{Unsafe: true})
}

func startEtcdWith(t testing.TB, o EmbeddedOptions) *etcdServer {
	t.Helper()
	config := embeddedConfig(t.TempDir(), o)
	require.NoError(t, os.Chmod(config.Dir, 0o700))
	address := url.URL{Scheme: "http", Host: freeAddress(t)}
	config.ListenClientUrls, config.AdvertiseClientUrls = []url.URL{address}, []url.URL{address}
	config.ZapLoggerBuilder = embed.NewZapLoggerBuilder(etcdLogger(slog.Default()))
	s := &etcdServer{t: t, config: config}
	config.GRPCAdditionalServerOptions = append(config.GRPCAdditionalServerOptions,
		grpc.ChainUnaryInterceptor(s.intercept))
	s.start()
	t.Cleanup(s.stop)
	return s
}

// freeAddress returns an address with a port outside of the range that the system assigns, because it
// must still be free when etcd starts, and when it starts again.
func freeAddress(t testing.TB) string {
	var err error
	for range 100 {
		var l net.Listener
		if l, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 10_000+rand.IntN(22_000))); err == nil {
			defer l.Close()
			return l.Addr().String()
		}
	}
	require.NoError(t, err)
	return ""
}

func (s *etcdServer) start() {
	var err error
	s.etcd, err = embed.StartEtcd(s.config)
	require.NoError(s.t, err)
	require.NoError(s.t, awaitReady(testContext(s.t), s.etcd, newGiveUp()))
}

func (s *etcdServer) stop() {
	if s.etcd != nil {
		s.asked.Lock()
		defer s.asked.Unlock()
		s.etcd.Server.HardStop()
		s.etcd.Close()
		s.etcd = nil
	}
}

func (s *etcdServer) dial() storage.Backend {
	b, err := DialExternal(ExternalOptions{Servers: []string{s.config.ListenClientUrls[0].Host}, Prefix: "/test/"})
	require.NoError(s.t, err)
	s.t.Cleanup(func() { require.NoError(s.t, b.Close()) })
	return b
}

func TestExternal_TwoStoresSeeEachOthersWrites(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	server := startEtcd(t)
	one, two := openStore(t, server.dial(), storage.Options{}), openStore(t, server.dial(), storage.Options{})
	one.Collection(podsName, podOptions)
	w := watch(t, two.Collection(podsName, podOptions))
	var want []string
	for i := range 20 {
		writer, reader := one, two
		if i%2 == 1 {
			writer, reader = two, one
		}
		name := fmt.Sprintf("p%d", i)
		o := create(t, writer, podKey("default", name), pod("default", name, ""))
		got, err := reader.Collection(podsName, podOptions).Get(ctx, "default", name, storage.At{})
		require.NoError(t, err, "a consistent read sees what another server has acknowledged")
		require.Equal(t, o, got)
		want = append(want, added(o))
	}
	require.Equal(t, want, briefs(take(t, w, len(want))))
}

// Revisions of others, outside of the prefix, are reached through progress reports.
func TestExternal_SharesEtcdWithOthers(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	b := startEtcd(t).dial()
	s := openStore(t, b, storage.Options{})
	response, err := b.(*backend).client.Put(ctx, "/someone/else", "x")
	require.NoError(t, err)
	revision, err := s.Revision(ctx)
	require.NoError(t, err)
	require.GreaterOrEqual(t, revision, response.Header.Revision)
	require.GreaterOrEqual(t, s.Frontier(), response.Header.Revision)
	require.Empty(t, s.Collections())
}

func TestExternal_ARestartOfEtcdLosesNothing(t *testing.T) {
	t.Parallel()
	server := startEtcd(t)
	s := openStore(t, server.dial(), storage.Options{})
	pods := s.Collection(podsName, podOptions)
	w := watch(t, pods)
	a := create(t, s, podKey("default", "a"), pod("default", "a", ""))
	take(t, w, 1)

	server.stop()
	short, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, s.Ready(short), storage.ErrUnavailable)
	_, err := pods.Get(short, "default", "a", storage.At{})
	require.ErrorIs(t, err, storage.ErrUnavailable)
	_, err = s.Commit(testContext(t), storage.Write{Op: storage.Create, Key: podKey("default", "b"),
		Value: pod("default", "b", "")})
	require.ErrorIs(t, err, storage.ErrUnavailable)
	got, err := pods.Get(testContext(t), "default", "a", storage.At{Any: true})
	require.NoError(t, err, "memory goes on serving those who do not ask for more")
	require.Equal(t, a, got)

	server.start()
	require.Eventually(t, func() bool { return s.Ready(testContext(t)) == nil }, patience, 5*time.Millisecond)
	b := create(t, s, podKey("default", "b"), pod("default", "b", ""))
	require.Equal(t, []string{added(b)}, briefs(take(t, w, 1)))
}

func TestExternal_SaysWhatIsWrongWithItsOptions(t *testing.T) {
	t.Parallel()
	for _, o := range []ExternalOptions{
		{},
		{Servers: []string{"127.0.0.1:1"}, CAFile: "/does/not/exist"},
		{Servers: []string{"127.0.0.1:1"}, CertFile: "only-one"},
		{Servers: []string{"127.0.0.1:1"}, CertFile: "/none", KeyFile: "/none"},
	} {
		_, err := DialExternal(o)
		require.Error(t, err)
	}
}

func TestExternal_OpenWaitsForAnEtcdThatStartsLater(t *testing.T) {
	t.Parallel()
	server := startEtcd(t)
	first, err := storage.Open(testContext(t), server.dial(), storage.Options{})
	require.NoError(t, err)
	o := create(t, first, podKey("default", "a"), pod("default", "a", ""))
	require.NoError(t, first.Close())
	server.stop()

	opened := make(chan *storage.Store)
	b := server.dial()
	go func() {
		s, err := storage.Open(testContext(t), b, storage.Options{})
		if err != nil {
			t.Error(err)
		}
		opened <- s
	}()
	// Either of the two may be first.
	server.start()
	s := <-opened
	require.NotNil(t, s)
	defer s.Close()
	got, err := s.Collection(podsName, podOptions).Get(testContext(t), "default", "a", storage.At{})
	require.NoError(t, err)
	require.Equal(t, string(o.JSON), string(got.JSON))

	server.stop()
	ended, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	_, err = storage.Open(ended, server.dial(), storage.Options{})
	require.ErrorIs(t, err, storage.ErrUnavailable)
}
