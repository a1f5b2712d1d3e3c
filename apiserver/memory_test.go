package apiserver_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/api/builtin"
	"github.com/coxswain-dev/coxswain/apiserver"
)

func TestMemory_ARequestBeyondTheBudgetIsRejected(t *testing.T) {
	t.Parallel()
	a := assemble(t, builtin.Kinds(), apiserver.Options{Limits: apiserver.Limits{RequestMemory: 4 << 20}})
	a.mayAll("jane")
	jane := a.as("jane")
	many := `{"metadata":{"name":"many"},"spec":{"containers":[{}` + strings.Repeat(",{}", 20_000) + `]}}`
	jane.do(http.MethodPost, pods, many).refused(http.StatusRequestEntityTooLarge,
		metav1.StatusReasonRequestEntityTooLarge, "decoding the body would take about")
	large := with(configMap("large"), "annotations", m{"a": strings.Repeat("x", 250_000)})
	jane.do(http.MethodPost, configMaps, large).ok(http.StatusCreated)
	jane.put(configMaps+"/large", large).refused(http.StatusRequestEntityTooLarge,
		metav1.StatusReasonRequestEntityTooLarge, "decoding the body and the object that it changes would take about")
	jane.delete(configMaps+"/large", nil).ok(http.StatusOK)
	for i := range 30 {
		jane.do(http.MethodPost, configMaps, fmt.Sprintf(`{"metadata":{"name":"c%d"},"data":{"a":"%s"}}`, i,
			strings.Repeat("x", 200_000))).ok(http.StatusCreated)
	}
	for _, accept := range []string{"application/json", "application/vnd.kubernetes.protobuf",
		"application/json;as=Table;v=v1;g=meta.k8s.io"} {
		jane.do(http.MethodGet, configMaps, "", "Accept", accept).ok(http.StatusOK)
	}
	metrics := string(a.get("/metrics").ok(http.StatusOK).body)
	require.Contains(t, metrics, "\ncoxswain_request_memory_limit_bytes 4.194304e+06\n")
	require.Contains(t, metrics, "\ncoxswain_request_memory_used_bytes 0\n")
	require.Contains(t, metrics, "\ncoxswain_request_memory_refused_total 0\n")
}

// The largest object that etcd accepts can be created and replaced with the least budget. With a smaller budget it can
// only be created.
func TestMemory_TheLeastBudgetReplacesTheLargestObject(t *testing.T) {
	t.Parallel()
	for size, code := range map[int64]int{apiserver.LeastRequestMemory: http.StatusOK,
		apiserver.LeastRequestMemory - 3<<20: http.StatusRequestEntityTooLarge} {
		a := assemble(t, builtin.Kinds(), apiserver.Options{Limits: apiserver.Limits{RequestMemory: size}})
		a.mayAll("jane")
		jane := a.as("jane")
		large := deployment("large", 0)
		large["spec"].(m)["template"].(m)["spec"].(m)["containers"] = []any{m{"name": "main", "image": "nginx",
			"env": []any{m{"name": "LARGE", "value": strings.Repeat("x", 3<<19-8<<10)}}}}
		jane.do(http.MethodPost, deployments, large).ok(http.StatusCreated)
		large["metadata"].(m)["labels"] = m{"a": "b"}
		jane.put(deployments+"/large", large).ok(code)
		jane.do(http.MethodPatch, deployments+"/large", `{"metadata":{"labels":{"c":"d"}}}`, "Content-Type",
			mergePatch).ok(http.StatusOK)
		jane.do(http.MethodGet, deployments, "", "Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").ok(
			http.StatusOK)
		jane.delete(deployments+"/large", nil).ok(http.StatusOK)
	}
}

// An update needs memory for its body and for the object. Concurrent updates would deadlock if each held the first
// while it waited for the second.
func TestMemory_UpdatesOfLargeObjectsDoNotWaitForEachOther(t *testing.T) {
	t.Parallel()
	a := assemble(t, builtin.Kinds(), apiserver.Options{RequestTimeout: unhurried,
		Limits: apiserver.Limits{RequestMemory: 3 << 20}})
	a.mayAll("jane")
	var updating sync.WaitGroup
	for client := range 6 {
		jane, name := a.as("jane"), fmt.Sprint("c", client)
		large := func(text string) m {
			return with(configMap(name), "annotations", m{"a": strings.Repeat(text, 100_000)})
		}
		jane.do(http.MethodPost, configMaps, large("x")).ok(http.StatusCreated)
		updating.Go(func() {
			for i := range 20 {
				jane.put(configMaps+"/"+name, large(strconv.Itoa(i%10))).ok(http.StatusOK)
			}
		})
	}
	updating.Wait()
	require.Contains(t, string(a.get("/metrics").ok(http.StatusOK).body), "\ncoxswain_request_memory_refused_total 0\n")
}

// Several objects of a collection are deleted concurrently, each with a reservation of its own. Together they need more
// than the budget. All reservations are released in the end.
func TestMemory_ACollectionOfLargeObjectsIsDeleted(t *testing.T) {
	t.Parallel()
	a := assemble(t, builtin.Kinds(), apiserver.Options{RequestTimeout: unhurried,
		Limits: apiserver.Limits{RequestMemory: 4 << 20}})
	a.mayAll("jane")
	jane := a.as("jane")
	for round := range 5 {
		for i := range 32 {
			jane.do(http.MethodPost, configMaps, with(configMap(fmt.Sprintf("c%d-%d", round, i)), "annotations",
				m{"a": strings.Repeat("x", 40_000)})).ok(http.StatusCreated)
		}
		jane.delete(configMaps, nil).ok(http.StatusOK)
		require.Zero(t, a.held())
	}
	metrics := string(a.get("/metrics").ok(http.StatusOK).body)
	require.Contains(t, metrics, "\ncoxswain_request_memory_refused_total 0\n")
	require.Contains(t, metrics, "apiserver_flowcontrol_current_executing_seats{flow_schema=\"global-default\","+
		"priority_level=\"global-default\"} 0\n")
	require.NotContains(t, string(jane.get(configMaps).ok(http.StatusOK).body), "xxxxx")
}

// held returns how many bytes of the budget of requests are in use.
func (s *server) held() float64 {
	s.t.Helper()
	used := regexp.MustCompile(`\ncoxswain_request_memory_used_bytes (\S+)`)
	n, err := strconv.ParseFloat(string(used.FindSubmatch(s.get("/metrics").body)[1]), 64)
	require.NoError(s.t, err)
	return n
}

// unhurried is a request timeout that gives requests a minute to wait for memory. On a busy machine it takes long
// until a client that does not read blocks the server.
const unhurried = 4 * time.Minute

// A body that never ends holds all memory of requests. It is ended for the sake of a body that is sent.
func TestMemory_ASlowBodyIsEndedForOthers(t *testing.T) {
	t.Parallel()
	for name, http2 := range protocols {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := assemble(t, builtin.Kinds(), apiserver.Options{RequestTimeout: unhurried,
				Limits: apiserver.Limits{RequestMemory: 1 << 20}})
			a.mayAll("jane", "slow")
			slow := a.as("slow")
			slow.http = httpClient(t, slow.config, http2)
			body, rest := io.Pipe()
			t.Cleanup(func() { _ = rest.Close() })
			go func() { _, _ = io.WriteString(rest, `{"data":{"a":"`+strings.Repeat("x", 300_000)) }()
			answers := make(chan *answer, 1)
			go func() { answers <- slow.do(http.MethodPost, configMaps, body) }()
			require.Eventually(t, func() bool { return a.held() > 0.95e6 }, patience, tick)
			a.as("jane").do(http.MethodPost, configMaps, fmt.Sprintf(`{"metadata":{"name":"whole"},"data":{"a":"%s"}}`,
				strings.Repeat("x", 100_000))).ok(http.StatusCreated)
			refused := <-answers
			refused.refused(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, "")
			require.Equal(t, "1", refused.header.Get("Retry-After"))
			require.Eventually(t, func() bool { return a.held() == 0 }, patience, tick)
		})
	}
}

// unread is a connection whose client reads only the first bytes.
type unread struct {
	net.Conn
	left atomic.Int64
	gone chan struct{}
	once sync.Once // closes gone
}

func dialUnread(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err == nil {
		err = conn.(*net.TCPConn).SetReadBuffer(64 << 10) // the kernel must not read all of it either
	}
	u := &unread{Conn: conn, gone: make(chan struct{})}
	u.left.Store(64 << 10)
	return u, err
}

func (u *unread) Read(b []byte) (int, error) {
	if u.left.Load() <= 0 {
		<-u.gone
		return 0, net.ErrClosed
	}
	n, err := u.Conn.Read(b)
	u.left.Add(-int64(n))
	return n, err
}

func (u *unread) Close() error {
	u.once.Do(func() { close(u.gone) })
	return u.Conn.Close()
}

// unreadList begins a list that is larger than the kernels' buffers, and reads only the headers.
func unreadList(t *testing.T, a *assembly, http2 bool) {
	t.Helper()
	a.mayAll("slow")
	for i := range 32 {
		a.create(configMaps, m{"metadata": m{"name": fmt.Sprint("c", i)}, "data": m{"a": strings.Repeat("x", 5e5)}})
	}
	slow := a.as("slow")
	slow.http = httpClient(t, slow.config, http2)
	slow.http.Transport.(*http.Transport).DialContext = func(ctx context.Context, network, address string) (net.Conn,
		error) {
		conn, err := dialUnread(ctx, network, address)
		if err == nil {
			t.Cleanup(func() { _ = conn.Close() }) // the transport closes it only while it is idle
		}
		return conn, err
	}
	res := slow.send(http.MethodGet, configMaps, nil, "Accept", asYAML, "Accept-Encoding", "identity")
	t.Cleanup(func() { _ = res.Body.Close() })
}

// An answer that its client does not read holds all memory of requests. It is ended for the sake of a body that is
// sent.
func TestMemory_AnUnreadAnswerIsEndedForOthers(t *testing.T) {
	t.Parallel()
	for name, http2 := range protocols {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := assemble(t, builtin.Kinds(), apiserver.Options{RequestTimeout: unhurried,
				Limits: apiserver.Limits{RequestMemory: 4 << 20}})
			a.mayAll("jane")
			unreadList(t, a, http2)
			require.Eventually(t, func() bool { return a.held() > 3.5e6 }, patience, tick)
			a.as("jane").do(http.MethodPost, configMaps, fmt.Sprintf(`{"metadata":{"name":"new"},"data":{"a":"%s"}}`,
				strings.Repeat("y", 1e5))).ok(http.StatusCreated)
			require.Eventually(t, func() bool { return a.held() == 0 }, patience, tick)
		})
	}
}

// A connection whose client does not read is ended, even if no request waits for memory. With HTTP/2 the deadline of a
// request does not end it: the frame that would end the stream is stuck as well.
func TestMemory_AnUnreadAnswerEnds(t *testing.T) {
	t.Parallel()
	for name, http2 := range protocols {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := assemble(t, builtin.Kinds(), apiserver.Options{RequestTimeout: 6 * time.Second,
				Limits: apiserver.Limits{RequestMemory: 4 << 20}})
			unreadList(t, a, http2)
			require.Eventually(t, func() bool { return a.held() == 0 }, patience, tick)
		})
	}
}
