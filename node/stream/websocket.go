package stream

import (
	"net/http"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/remotecommand"
	"k8s.io/klog/v2"
	"k8s.io/streaming/pkg/httpstream/wsstream"
)

// Base64 variants of the WebSocket protocols, for clients that can only read text. From version 4 on, the result of a
// command is a Status.
const (
	v4Base64 = "v4." + wsstream.Base64ChannelWebSocketProtocol
	v1Base64 = wsstream.Base64ChannelWebSocketProtocol
)

// quietly returns the request with a context that keeps the library from logging an error for each closed connection.
func quietly(r *http.Request) *http.Request {
	return r.WithContext(klog.NewContext(r.Context(), logr.Discard()))
}

// openWebSocket upgrades a request to the channels of a WebSocket.
func openWebSocket(w http.ResponseWriter, r *http.Request, o Options) (*client, error) {
	channel := func(requested bool, kind wsstream.ChannelType) wsstream.ChannelType {
		if requested {
			return kind
		}
		return wsstream.IgnoreChannel
	}
	channels := []wsstream.ChannelType{
		remotecommand.StreamStdIn:  channel(o.Stdin, wsstream.ReadChannel),
		remotecommand.StreamStdOut: channel(o.Stdout, wsstream.WriteChannel),
		remotecommand.StreamStdErr: channel(o.Stderr, wsstream.WriteChannel),
		remotecommand.StreamErr:    wsstream.WriteChannel,
		remotecommand.StreamResize: wsstream.ReadChannel,
	}
	conn := wsstream.NewConn(map[string]wsstream.ChannelProtocolConfig{
		"":                                 {Binary: true, Channels: channels},
		remotecommand.StreamProtocolV1Name: {Binary: true, Channels: channels},
		remotecommand.StreamProtocolV4Name: {Binary: true, Channels: channels},
		remotecommand.StreamProtocolV5Name: {Binary: true, Channels: channels},
		v1Base64:                           {Binary: false, Channels: channels},
		v4Base64:                           {Binary: false, Channels: channels},
	})
	protocol, streams, err := conn.Open(w, quietly(r))
	if err != nil {
		return nil, err
	}
	c := &client{
		resize: streams[remotecommand.StreamResize],
		gone:   func(func()) func() { return func() {} }, // ServeCommand cancels when the resize channel ends
		close:  func() { _ = conn.Close() },
	}
	structured := protocol == remotecommand.StreamProtocolV4Name || protocol == remotecommand.StreamProtocolV5Name ||
		protocol == v4Base64
	c.status = func(s *metav1.Status) error { return writeStatus(streams[remotecommand.StreamErr], structured, s) }
	if o.Stdin {
		c.Stdin = streams[remotecommand.StreamStdIn]
	}
	if o.Stdout {
		c.Stdout = streams[remotecommand.StreamStdOut]
		_, _ = c.Stdout.Write(nil) // signals to a browser that the streams are there
	}
	if o.Stderr {
		c.Stderr = streams[remotecommand.StreamStdErr]
	}
	return c, nil
}
