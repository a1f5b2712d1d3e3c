package storage

import (
	"context"
	"log/slog"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// etcdLogger passes etcd's warnings and errors on to slog. What etcd tells at info level is
// for those who operate etcd itself.
func etcdLogger() *zap.Logger { return zap.New(slogCore{}) }

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

func (c slogCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
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
