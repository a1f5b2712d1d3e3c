package ingress

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"time"

	"k8s.io/utils/clock"
)

// maxLogged limits each client text in a line of the access log.
const maxLogged = 512

// accessLog writes a JSON object for each request. It is safe for concurrent use.
type accessLog struct {
	handler slog.Handler
	clock   clock.PassiveClock
}

func newAccessLog(w io.Writer, c clock.PassiveClock) *accessLog {
	if w == nil {
		return nil
	}
	return &accessLog{clock: c, handler: slog.NewJSONHandler(w, &slog.HandlerOptions{
		ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
			if len(groups) == 0 && (a.Key == slog.LevelKey || a.Key == slog.MessageKey) {
				return slog.Attr{}
			}
			return a
		},
	})}
}

func (l *accessLog) write(r *http.Request, x *exchange, status int, size int64, took time.Duration) {
	if l == nil {
		return
	}
	record := slog.NewRecord(l.clock.Now(), slog.LevelInfo, "", 0)
	record.AddAttrs(slog.String("remote_addr", r.RemoteAddr), slog.String("method", cut(r.Method)),
		slog.String("host", cut(r.Host)), slog.String("uri", cut(r.RequestURI)), slog.String("protocol", r.Proto),
		slog.Int("status", status), slog.Int64("bytes_sent", size), slog.Float64("request_time", took.Seconds()),
		slog.String("user_agent", cut(r.UserAgent())), slog.String("referer", cut(r.Referer())),
		slog.Bool("tls", r.TLS != nil))
	if x.route != nil {
		record.AddAttrs(slog.String("namespace", x.route.ingress.Namespace),
			slog.String("ingress", x.route.ingress.Name), slog.String("service", x.route.service))
	}
	if x.endpoint != nil {
		record.AddAttrs(slog.String("upstream", x.endpoint.address), slog.String("request_id", cut(x.requestID)))
	}
	_ = l.handler.Handle(context.Background(), record) // a full disk must not fail requests
}

func cut(s string) string { return s[:min(len(s), maxLogged)] }
