package etcd

import (
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/storage"
)

// hanging is an address of an etcd that can be made to hang, as if its process was stopped by SIGSTOP: the kernel still
// accepts connections, but no data is read or written.
type hanging struct {
	net.Listener
	to      string
	mu      sync.Mutex
	stopped chan struct{} // closed by stop
	ended   chan struct{}
	conns   []net.Conn
}

func hangingBefore(t *testing.T, to string) *hanging {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	h := &hanging{Listener: ln, to: to, stopped: make(chan struct{}), ended: make(chan struct{})}
	var copying sync.WaitGroup
	go func() {
		defer close(h.ended)
		defer copying.Wait()
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			h.keep(conn)
			select {
			case <-h.stopped:
				continue
			default:
			}
			behind, err := net.Dial("tcp", to)
			if err != nil {
				_ = conn.Close()
				continue
			}
			h.keep(behind)
			copying.Go(func() { h.copy(conn, behind) })
			copying.Go(func() { h.copy(behind, conn) })
		}
	}()
	t.Cleanup(func() {
		_ = ln.Close()
		h.mu.Lock()
		for _, c := range h.conns {
			_ = c.Close()
		}
		h.mu.Unlock()
		<-h.ended
	})
	return h
}

func (h *hanging) keep(c net.Conn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.conns = append(h.conns, c)
}

func (h *hanging) stop() { close(h.stopped) }

func (h *hanging) copy(to io.Writer, from io.Reader) {
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		select {
		case <-h.stopped:
			return
		default:
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// gRPC's own probes are later than the end of every test, so that only the code under test can detect a member that
// hangs.
func init() { keepAliveTime = time.Hour }

// Requests use all members in turn. Requests to a member that hangs fail soon, and later requests avoid it.
func TestExternal_AbandonsAMemberThatHangs(t *testing.T) {
	t.Parallel()
	server := startEtcd(t)
	address := server.config.ListenClientUrls[0].Host
	one, two := hangingBefore(t, address), hangingBefore(t, address)
	b, err := DialExternal(ExternalOptions{
		Servers: []string{one.Addr().String(), two.Addr().String()}, Prefix: "/test/"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	s := openStore(t, b, storage.Options{})
	create(t, s, podKey("default", "before"), pod("default", "before", ""))
	require.Eventually(t, func() bool { // both are connected to
		one.mu.Lock()
		defer one.mu.Unlock()
		two.mu.Lock()
		defer two.mu.Unlock()
		return len(one.conns) > 1 && len(two.conns) > 1
	}, patience, 5*time.Millisecond)

	one.stop()
	good := 0
	for i := 0; good < 20; i++ {
		_, err := s.Commit(testContext(t), storage.Write{Op: storage.Update, Key: podKey("default", "before"),
			Value: pod("default", "before", ""), Expect: storage.AnyRevision})
		if err != nil {
			require.ErrorIs(t, err, storage.ErrUnknownOutcome)
			good = 0
			continue
		}
		good++
	}
}

func TestMemberConn_KeepsASilentMemberThatIsAlive(t *testing.T) {
	t.Parallel()
	server := startEtcd(t)
	conn, err := net.Dial("tcp", server.config.ListenClientUrls[0].Host)
	require.NoError(t, err)
	m := &memberConn{Conn: conn, address: conn.RemoteAddr().String(), closed: make(chan struct{})}
	m.waiting.Store(time.Now().Add(-time.Minute).UnixNano())
	ended := make(chan struct{})
	go func() { defer close(ended); m.watch() }()
	require.Eventually(t, func() bool { return m.waiting.Load() == 0 }, patience, 5*time.Millisecond)
	require.NoError(t, m.Close())
	<-ended
}
