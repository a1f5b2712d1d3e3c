package etcd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	etcderrors "go.etcd.io/etcd/server/v3/etcdserver/errors"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/coxswain-dev/coxswain/storage"
)

// etcdLogger passes etcd's warnings and errors on to a logger. It drops lines at info level, which are for operators of
// etcd itself.
func etcdLogger(log *slog.Logger, hooks ...zap.Option) *zap.Logger {
	return zap.New(slogCore{to: log}, hooks...)
}

// giveUp is the hook for fatal errors of etcd, in etcd's own goroutines. While etcd starts, the start fails with the
// error, and the goroutine ends. Later the process exits, because it is unknown which writes etcd has completed.
type giveUp struct {
	started atomic.Bool
	reason  chan error // has a buffer for one error
}

func newGiveUp() *giveUp { return &giveUp{reason: make(chan error, 1)} }

// OnWrite handles a fatal entry after it was logged.
func (g *giveUp) OnWrite(e *zapcore.CheckedEntry, fields []zapcore.Field) {
	if g.started.Load() {
		if e.Level == zapcore.FatalLevel {
			os.Exit(1)
		}
		panic(e.Message)
	}
	err := errors.New(e.Message)
	for _, f := range fields {
		if cause, ok := f.Interface.(error); ok && f.Type == zapcore.ErrorType {
			err = fmt.Errorf("%w: %w", err, cause)
		}
	}
	select {
	case g.reason <- startError(err):
	default: // only the first reason counts
	}
	runtime.Goexit()
}

// startError adds advice to an error of etcd's start.
func startError(err error) error {
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("%w: the disk is full: %w", storage.ErrNoSpace, err)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return err
	}
	return fmt.Errorf("%w; if its files are damaged, restore a snapshot", err)
}

// slogCore is a zapcore.Core over a slog.Logger.
type slogCore struct {
	to     *slog.Logger
	fields []zapcore.Field
}

func (slogCore) Enabled(l zapcore.Level) bool { return l >= zapcore.WarnLevel }

func (c slogCore) With(fields []zapcore.Field) zapcore.Core {
	return slogCore{c.to, append(c.fields[:len(c.fields):len(c.fields)], fields...)}
}

func (c slogCore) Check(e zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) && !advice[e.Message] {
		return checked.AddCore(e, c)
	}
	return checked
}

// advice are the warnings that etcd logs at every start but that do not apply to an embedded one: it
// has no listeners and no users, and a new one learns its schema version with its first term.
var advice = map[string]bool{
	"Running http and grpc server on single port. This is not recommended for production.":             true,
	"simple token is not cryptographically signed":                                                     true,
	"Failed to detect schema version":                                                                  true,
	"failed to update storage version":                                                                 true,
	"Failed to detect storage schema version. Please wait till wal snapshot before upgrading cluster.": true,
	"failed to update cluster version":                                                                 true,
}

// passing are the warnings and errors that etcd logs when its machine is busy, when a request fails or
// when it stops. The client of the request gets the request's own error, and a user cannot act
// on the line, so it is logged at info level.
var passing = map[string]bool{
	"apply request took too long": true,
	"failed to apply request":     true,
	"request stats":               true,
	"waiting for ReadIndex response took too long, retrying":                         true,
	"timed out waiting for read index response (local node might have slow network)": true,
	"ignored out-of-date read index response; local node read indexes queueing up and waiting " +
		"to be in sync with leader": true,
	"timed out sending read state": true,
	"leader failed to send out heartbeat on time; took too long, leader is overloaded likely from slow disk": true,
	"failed to get read index from Raft":                         true,
	"failed to revoke lease":                                     true,
	"stopped publish because server is stopping":                 true,
	"server has stopped; skipping GoAttach":                      true,
	"retrying WAL snapshot scan after transient file removal":    true,
	"failed to send watch response to gRPC stream":               true,
	"failed to send watch control response to gRPC stream":       true,
	"failed to send pending watch response to gRPC stream":       true,
	"failed to receive watch request from gRPC stream":           true,
	"failed to send lease keepalive response to gRPC stream":     true,
	"failed to receive lease keepalive request from gRPC stream": true,
}

// etcd logs requests with their whole content. A line here is limited, so that it stays readable, and
// so that a client that sends large requests does not fill the log.
const (
	maxText   = 200 // bytes of the message, and of each attribute
	maxFields = 10
)

// publishing is logged by etcd when its own first proposal, the member's name, has failed. etcd repeats
// the proposal without a pause, and after many writes it rejects it until it has read its log: the
// proposal waits here as long as that takes.
const publishing = "failed to publish local member to cluster through raft"

func tooMany(fields []zapcore.Field) bool {
	for _, f := range fields {
		if err, ok := f.Interface.(error); ok && errors.Is(err, etcderrors.ErrTooManyRequests) {
			return true
		}
	}
	return false
}

func (c slogCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	if e.Message == publishing && tooMany(fields) {
		time.Sleep(time.Millisecond)
		return nil
	}
	level := slog.LevelWarn
	switch {
	case passing[e.Message]:
		level = slog.LevelInfo
	case e.Level >= zapcore.ErrorLevel:
		level = slog.LevelError
	}
	if ctx := context.Background(); c.to.Enabled(ctx, level) {
		c.to.LogAttrs(ctx, level, short(e.Message), attributes(slices.Concat(c.fields, fields))...)
	}
	return nil
}

// attributes returns the fields of a line in their order, cut to the number and length that a line may
// have.
func attributes(fields []zapcore.Field) []slog.Attr {
	attributes := []slog.Attr{slog.String("component", "etcd")}
	for _, f := range fields[:min(len(fields), maxFields)] {
		encoder := zapcore.NewMapObjectEncoder()
		f.AddTo(encoder)
		for _, k := range slices.Sorted(maps.Keys(encoder.Fields)) {
			value := slog.AnyValue(encoder.Fields[k])
			if value.Kind() == slog.KindAny || value.Kind() == slog.KindString {
				value = slog.StringValue(short(value.String()))
			}
			attributes = append(attributes, slog.Attr{Key: short(k), Value: value})
		}
	}
	return attributes
}

func short(text string) string {
	if len(text) <= maxText {
		return text
	}
	return strings.ToValidUTF8(text[:maxText], "") + "…"
}

func (slogCore) Sync() error { return nil }
