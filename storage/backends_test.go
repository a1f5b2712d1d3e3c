package storage_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/storage"
	"github.com/coxswain-dev/coxswain/storage/encryption"
	"github.com/coxswain-dev/coxswain/storage/etcd"
	"github.com/coxswain-dev/coxswain/storage/memory"
)

func init() {
	storage.StartEtcd = func(t testing.TB, quota int64) storage.Backend {
		t.Helper()
		b, err := etcd.StartEmbedded(t.Context(),
			etcd.EmbeddedOptions{Dir: t.TempDir(), Unsafe: true, QuotaBytes: quota})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, b.Close()) })
		return b
	}
	storage.StartMemory = func() storage.Backend { return memory.New(memory.Options{}) }
	storage.Encrypt = func(t testing.TB, below storage.Backend) storage.Backend {
		t.Helper()
		file := filepath.Join(t.TempDir(), "encryption.yaml")
		require.NoError(t, os.WriteFile(file, []byte(encryptPods), 0o600))
		b, err := encryption.New(t.Context(), below, encryption.Options{File: file})
		require.NoError(t, err)
		return b
	}
}

const encryptPods = `
apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [pods]
  providers:
  - aesgcm: {keys: [{name: one, secret: c2VjcmV0IGlzIHNlY3VyZQ==}]}
`
