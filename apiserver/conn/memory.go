package conn

import (
	"log/slog"
	"net"
	"sync/atomic"
)

// LimitByMemory accepts so many open connections that they fit into memory, which is asked for each: together bytes of
// them, at each each, or any number if it is 0. More are hung up on.
func LimitByMemory(ln net.Listener, together func() int64, each int64, log *slog.Logger) net.Listener {
	return &memoryListener{Listener: ln, together: together, each: each, log: log}
}

type memoryListener struct {
	net.Listener
	together func() int64
	each     int64
	log      *slog.Logger
	open     atomic.Int64
}

func (l *memoryListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		open, most := l.open.Add(1), l.together()
		if most == 0 || open*l.each <= most {
			var closed atomic.Bool
			return &fairConn{Conn: conn, leave: func() {
				if !closed.Swap(true) {
					l.open.Add(-1)
				}
			}}, nil
		}
		l.open.Add(-1)
		l.log.Debug("no memory for another connection", "client", conn.RemoteAddr(), "open", open-1)
		_ = conn.Close()
	}
}
