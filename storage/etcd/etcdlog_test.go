package etcd

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
)

func TestEtcdLog_ShowsShortLinesThatAUserCanActOn(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	level := new(slog.LevelVar)
	level.Set(slog.LevelWarn)
	log := etcdLogger(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: level}))).With(
		zap.String("member", "m"))
	long := strings.Repeat("ä", 20_000)
	var many []zap.Field
	for range 1000 {
		many = append(many, zap.String("key", long))
	}

	log.Info("nothing to see")
	log.Warn("apply request took too long", zap.String("request", long))
	log.Warn("failed to apply request", zap.String("request", long), zap.Error(errors.New("conflict")))
	log.Warn("simple token is not cryptographically signed")
	require.Empty(t, out.String())

	log.Warn("slow fdatasync", zap.Int("took", 7), zap.String("request", long))
	log.Error(long, many...)
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.Len(t, lines, 2)
	require.Contains(t, lines[0], `level=WARN msg="slow fdatasync" component=etcd member=m took=7 request=ää`)
	require.Contains(t, lines[1], "level=ERROR msg=ää")
	for _, line := range lines {
		require.Less(t, len(line), 4<<10)
		require.Contains(t, line, "ä…")
	}

	out.Reset()
	level.Set(slog.LevelInfo)
	log.Warn("apply request took too long", zap.String("request", long))
	require.Contains(t, out.String(), `level=INFO msg="apply request took too long"`)
	require.Less(t, out.Len(), 1<<10)
}
