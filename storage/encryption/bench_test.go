package encryption

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/storage"
	"github.com/coxswain-dev/coxswain/storage/etcd"
	"github.com/coxswain-dev/coxswain/storage/memory"
	"github.com/coxswain-dev/coxswain/testenv/kmstest"
)

// providers returns the measured providers; "" is no encryption.
func providers(b *testing.B) map[string]string {
	dir := socketDir(b)
	_, _ = startPlugin(b, dir)
	return map[string]string{
		"none":      "",
		"aesgcm":    gcmKeys("key1", key1),
		"aescbc":    strings.ReplaceAll(gcmKeys("key1", key1), "aesgcm", "aescbc"),
		"secretbox": strings.ReplaceAll(gcmKeys("key1", key1), "aesgcm", "secretbox"),
		"kms": fmt.Sprintf("- kms: {apiVersion: v2, name: plugin, endpoint: \"unix://%s\"}\n",
			filepath.Join(dir, kmstest.Socket)),
	}
}

func wrap(b *testing.B, below storage.Backend, provider string) storage.Backend {
	if provider == "" {
		return below
	}
	file := configFile(b)
	configure(b, file, provider)
	e := open(b, below, Options{File: file})
	require.Eventually(b, func() bool {
		for _, k := range e.table.Load().kms {
			if k.ask(context.Background()) != nil {
				return false
			}
		}
		return true
	}, patience, 1e6)
	return e
}

// BenchmarkCreate creates Secrets of 1 kB through a store. On an embedded etcd each is on disk when the create returns.
// In memory, encryption is almost the only cost.
func BenchmarkCreate(b *testing.B) {
	for _, backend := range []string{"etcd", "memory"} {
		for name, provider := range providers(b) {
			b.Run(backend+"/"+name, func(b *testing.B) {
				var below storage.Backend = memory.New(memory.Options{})
				if backend == "etcd" {
					var err error
					below, err = etcd.StartEmbedded(b.Context(), etcd.EmbeddedOptions{Dir: b.TempDir()})
					require.NoError(b, err)
				}
				b.Cleanup(func() { require.NoError(b, below.Close()) })
				s, err := storage.Open(b.Context(), wrap(b, below, provider), storage.Options{Log: quiet})
				require.NoError(b, err)
				b.Cleanup(func() { require.NoError(b, s.Close()) })
				document := fmt.Appendf(nil, `{"metadata":{"name":"a","namespace":"default"},"data":{"a":%q}}`,
					strings.Repeat("x", 1000))
				b.ReportAllocs()
				began := cpu(b)
				for i := 0; b.Loop(); i++ {
					_, err := s.Commit(b.Context(), storage.Write{Op: storage.Create, Key: secretKey(fmt.Sprint(i)),
						Value: document})
					require.NoError(b, err)
				}
				b.ReportMetric(float64(cpu(b)-began)/float64(b.N), "cpu-ns/op")
			})
		}
	}
}

// cpu returns the processor time of the process in nanoseconds. On a busy machine it is more accurate than the clock.
func cpu(b *testing.B) int64 {
	var used syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	return used.Utime.Nano() + used.Stime.Nano()
}

// BenchmarkGet reads a Secret from memory, where it is in plain text.
func BenchmarkGet(b *testing.B) {
	for name, provider := range providers(b) {
		b.Run(name, func(b *testing.B) {
			s, secrets := openStore(b, wrap(b, startBelow(b), provider))
			_, err := s.Commit(b.Context(), storage.Write{Op: storage.Create, Key: secretKey("a"), Value: secret("a")})
			require.NoError(b, err)
			for b.Loop() {
				if _, err := secrets.Get(b.Context(), "default", "a", storage.At{Any: true}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
