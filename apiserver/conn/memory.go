package conn

import (
	"log/slog"
	"net"
	"sync/atomic"
)

// LimitByMemory accepts connections as long as all open ones take at most together() bytes; each is the number of bytes
// that is counted for one. together is called for every connection; 0 is no limit. Connections above the limit are
// closed.
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
		open, limit := l.open.Add(1), l.together()
		if limit == 0 || open*l.each <= limit {
			var closed atomic.Bool
			return &fairConn{Conn: conn, leave: func() {
				if !closed.Swap(true) {
					l.open.Add(-1)
				}
			}}, nil
		}
		l.open.Add(-1)
		l.log.Debug("rejected a connection: no memory for it", "client", conn.RemoteAddr(), "open", open-1)
		_ = conn.Close()
	}
}
