package storage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	etcderrors "go.etcd.io/etcd/server/v3/etcdserver/errors"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// etcdLogger passes etcd's warnings and errors on to slog. What etcd tells at info level is
// for those who operate etcd itself.
func etcdLogger(hooks ...zap.Option) *zap.Logger { return zap.New(slogCore{}, hooks...) }

// giveUp is where etcd, in a goroutine of its own, gives up. While it starts that is an error of the start, and the
// goroutine ends there. Later the process ends: nobody knows what etcd has written then.
type giveUp struct {
	started atomic.Bool
	reason  chan error // has room for one
}

func newGiveUp() *giveUp { return &giveUp{reason: make(chan error, 1)} }

// OnWrite is called for an entry that has been logged.
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
	default: // the first reason is the one
	}
	runtime.Goexit()
}

// startError says what is to be done about an error of etcd's start.
func startError(err error) error {
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("%w: the disk is full: %w", ErrNoSpace, err)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return err
	}
	return fmt.Errorf("%w; if its files are damaged, restore a snapshot", err)
}

// slogCore is a zapcore.Core over slog's default logger.
type slogCore struct{ fields []zapcore.Field }

func (slogCore) Enabled(l zapcore.Level) bool { return l >= zapcore.WarnLevel }

func (c slogCore) With(fields []zapcore.Field) zapcore.Core {
	return slogCore{append(c.fields[:len(c.fields):len(c.fields)], fields...)}
}

func (c slogCore) Check(e zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) && !advice[e.Message] {
		return checked.AddCore(e, c)
	}
	return checked
}

// advice is what etcd warns of at every start and what does not apply to an embedded one: it
// has no listeners and no users, and a new one learns its schema version with its first term.
var advice = map[string]bool{
	"Running http and grpc server on single port. This is not recommended for production.":             true,
	"simple token is not cryptographically signed":                                                     true,
	"Failed to detect schema version":                                                                  true,
	"failed to update storage version":                                                                 true,
	"Failed to detect storage schema version. Please wait till wal snapshot before upgrading cluster.": true,
	"failed to update cluster version":                                                                 true,
}

// publishing is what etcd logs when its own first proposal, the member's name, has failed. It makes it again without a
// pause, and after many writes it refuses it until it has looked at its log: as long as that takes the proposal waits here.
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
	encoder := zapcore.NewMapObjectEncoder()
	for _, f := range c.fields {
		f.AddTo(encoder)
	}
	for _, f := range fields {
		f.AddTo(encoder)
	}
	attributes := []slog.Attr{slog.String("component", "etcd")}
	for k, v := range encoder.Fields {
		attributes = append(attributes, slog.Any(k, v))
	}
	level := slog.LevelWarn
	if e.Level >= zapcore.ErrorLevel {
		level = slog.LevelError
	}
	slog.LogAttrs(context.Background(), level, e.Message, attributes...)
	return nil
}

func (slogCore) Sync() error { return nil }
