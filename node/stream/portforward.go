package stream

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/gorilla/websocket"
	corev1 "k8s.io/api/core/v1"
	portforwardconst "k8s.io/apimachinery/pkg/util/portforward"
	"k8s.io/apimachinery/pkg/util/remotecommand"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
	"k8s.io/streaming/pkg/httpstream/wsstream"
)

// Dial connects to a port of the pod.
type Dial func(ctx context.Context, port uint16) (net.Conn, error)

// ServePorts upgrades a request and connects the client's streams to ports until the client leaves.
func ServePorts(w http.ResponseWriter, r *http.Request, dial Dial) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	f := &forwarder{ctx: ctx, dial: dial, halves: map[string]*pair{}}
	defer f.running.Wait()
	defer cancel()
	var conn httpstream.Connection
	switch {
	case slices.Contains(websocket.Subprotocols(r), portforwardconst.WebsocketsSPDYTunnelingPortForwardV1):
		upgrader := websocket.Upgrader{
			Subprotocols: []string{portforwardconst.WebsocketsSPDYTunnelingPortForwardV1},
			CheckOrigin:  func(*http.Request) bool { return true }, // browsers have no credentials for this endpoint
		}
		ws, err := upgrader.Upgrade(w, r, nil)
		if err != nil {
			return
		}
		tunnel := portforward.NewTunnelingConnection("server", ws)
		if conn, err = spdy.NewServerConnection(tunnel, f.arrived); err != nil {
			_ = tunnel.Close()
			return
		}
	case wsstream.IsWebSocketRequest(r):
		f.channels(w, r)
		return
	default:
		if _, err := httpstream.Handshake(r, w, []string{portforwardconst.PortForwardV1Name}); err != nil {
			return
		}
		if conn = spdy.NewResponseUpgrader().UpgradeResponse(w, r, f.arrived); conn == nil {
			return
		}
	}
	defer func() { _ = conn.Close() }()
	conn.SetIdleTimeout(idleTimeout)
	f.serve(conn)
}

// forwarder joins the two streams of each forwarded connection: one for data, one for errors.
type forwarder struct {
	ctx     context.Context
	dial    Dial
	running sync.WaitGroup // the goroutines of all pairs

	mu     sync.Mutex       // guards the fields below
	ended  bool             // new streams are rejected
	halves map[string]*pair // incomplete pairs, by the client's request ID
}

// maxHalves limits the connections of a client that wait for their second stream.
const maxHalves = 1000

type pair struct{ data, failure httpstream.Stream }

func (f *forwarder) serve(conn httpstream.Connection) {
	select {
	case <-conn.CloseChan():
	case <-f.ctx.Done():
	}
	f.mu.Lock()
	f.ended = true
	f.mu.Unlock()
}

// arrived adds a new stream, and starts forwarding when it completes a pair.
func (f *forwarder) arrived(s httpstream.Stream, replySent <-chan struct{}) error {
	h := s.Headers()
	port, err := strconv.ParseUint(h.Get(corev1.PortHeader), 10, 16)
	if err != nil || port == 0 {
		return fmt.Errorf("%q header: unable to parse %q as a port", corev1.PortHeader, h.Get(corev1.PortHeader))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended {
		return errors.New("the connection is closing")
	}
	id := h.Get(corev1.PortForwardRequestIDHeader)
	p := f.halves[id]
	if p == nil {
		if len(f.halves) >= maxHalves {
			return errors.New("too many connections wait for their second stream")
		}
		p = &pair{}
		f.halves[id] = p
	}
	switch kind := h.Get(corev1.StreamType); {
	case kind == corev1.StreamTypeError && p.failure == nil:
		p.failure = s
	case kind == corev1.StreamTypeData && p.data == nil:
		p.data = s
	default:
		return fmt.Errorf("invalid or repeated stream type %q", kind)
	}
	if p.data == nil || p.failure == nil {
		return nil
	}
	delete(f.halves, id)
	f.running.Go(func() {
		<-replySent
		defer func() { _ = p.data.Reset() }()
		if err := f.forward(uint16(port), p.data); err != nil {
			_, _ = io.WriteString(p.failure, err.Error())
		}
		_ = p.failure.Close()
	})
	return nil
}

// forward copies between a port and a stream until the port's side ends.
func (f *forwarder) forward(port uint16, s io.ReadWriteCloser) error {
	conn, err := f.dial(f.ctx, port)
	if err != nil {
		return fmt.Errorf("error forwarding port %d: %w", port, err)
	}
	stop := context.AfterFunc(f.ctx, func() { _ = conn.Close() })
	defer stop()
	defer func() { _ = conn.Close() }()
	go func() { // ends with s or conn
		_, _ = io.Copy(conn, s)
		if half, ok := conn.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite()
		}
	}()
	_, err = io.Copy(s, conn)
	_ = s.Close()
	if f.ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// channels serves the older protocol over WebSocket: the query lists the ports, and each port has two channels.
func (f *forwarder) channels(w http.ResponseWriter, r *http.Request) {
	var ports []uint16
	var kinds []wsstream.ChannelType
	for _, text := range r.URL.Query()["port"] {
		for one := range strings.SplitSeq(text, ",") {
			port, err := strconv.ParseUint(one, 10, 16)
			if err != nil || port == 0 {
				http.Error(w, fmt.Sprintf("invalid port %q", one), http.StatusBadRequest)
				return
			}
			ports = append(ports, uint16(port))
			kinds = append(kinds, wsstream.ReadWriteChannel, wsstream.WriteChannel)
		}
	}
	if len(ports) == 0 {
		http.Error(w, "query parameter \"port\" is required", http.StatusBadRequest)
		return
	}
	conn := wsstream.NewConn(map[string]wsstream.ChannelProtocolConfig{
		"":                                 {Binary: true, Channels: kinds},
		remotecommand.StreamProtocolV4Name: {Binary: true, Channels: kinds},
		v4Base64:                           {Binary: false, Channels: kinds},
	})
	_, streams, err := conn.Open(w, quietly(r))
	if err != nil {
		return
	}
	defer func() { _ = conn.Close() }()
	conn.SetIdleTimeout(idleTimeout)
	var all sync.WaitGroup
	for i, port := range ports {
		data, failure := streams[2*i], streams[2*i+1]
		name := binary.LittleEndian.AppendUint16(nil, port)
		_, _ = data.Write(name)
		_, _ = failure.Write(name)
		all.Go(func() {
			if err := f.forward(port, data); err != nil {
				_, _ = io.WriteString(failure, err.Error())
			}
		})
	}
	all.Wait()
}
