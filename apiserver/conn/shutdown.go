package conn

import (
	"context"
	"net"
	"net/http"
	"time"
)

// quietPeriod is how long no request must have been served before Shutdown closes connections from this machine.
const quietPeriod = 3 * time.Millisecond

// Shutdown stops a server that serves clients, when its requests are done or after grace. A client whose HTTP/2
// connection is idle has a second to read GOAWAY before net/http closes the connection. A client on this machine reads
// it at once, and is not given that second.
func Shutdown(srv *http.Server, clients *Listener, grace time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	ended := make(chan error, 1) // buffered: Shutdown may return before the goroutine does
	go func() { ended <- srv.Shutdown(ctx) }()
	if address, ok := clients.Addr().(*net.TCPAddr); ok && address.IP.IsLoopback() {
		look := time.NewTicker(time.Millisecond)
		defer look.Stop()
		for since := time.Now(); time.Since(since) < quietPeriod && ctx.Err() == nil; {
			select {
			case err := <-ended: // there was no connection
				return closeAfter(err, srv)
			case <-look.C:
			}
			if clients.Busy() {
				since = time.Now()
			}
		}
		cancel()
	}
	return closeAfter(<-ended, srv)
}

// closeAfter closes the remaining connections of a server whose Shutdown has returned err.
func closeAfter(err error, srv *http.Server) error {
	if err == nil {
		return nil
	}
	return srv.Close()
}
