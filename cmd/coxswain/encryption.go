package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"

	"github.com/spf13/pflag"

	"github.com/coxswain-dev/coxswain/apiserver"
	"github.com/coxswain-dev/coxswain/storage"
	"github.com/coxswain-dev/coxswain/storage/encryption"
)

// encryptionFlags configure which objects are encrypted in etcd.
type encryptionFlags struct {
	file   string
	reload bool
}

func (f *encryptionFlags) add(fs *pflag.FlagSet) {
	f.addFile(fs)
	fs.BoolVar(&f.reload, "encryption-provider-config-automatic-reload", false,
		"reload --encryption-provider-config when it changes")
}

func (f *encryptionFlags) addFile(fs *pflag.FlagSet) {
	fs.StringVar(&f.file, "encryption-provider-config", "",
		"EncryptionConfiguration: the objects that are encrypted in etcd, and the keys or KMS plugins")
}

func (f *encryptionFlags) check() error {
	if f.reload && f.file == "" {
		return errors.New("--encryption-provider-config-automatic-reload must be set with --encryption-provider-config")
	}
	return nil
}

// encrypt wraps the backend in one that encrypts objects. If the flags configure no encryption, it returns the backend
// unchanged, and nil keys. On an error it closes the backend.
func (f *serverFlags) encrypt(ctx context.Context, below storage.Backend) (b storage.Backend,
	keys *encryption.Backend, err error) {
	if f.encryption.file == "" {
		return below, nil, nil
	}
	host, _ := os.Hostname() // only labels metrics
	keys, err = encryption.New(ctx, below, encryption.Options{File: f.encryption.file, Reload: f.encryption.reload,
		Prefix: f.etcd.Prefix, Server: host})
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("--encryption-provider-config: %w", err), below.Close())
	}
	f.metrics = append(f.metrics, keys.Metrics)
	for _, c := range keys.Checks() {
		f.checks = append(f.checks, apiserver.ReadyCheck{Name: c.Name, Run: c.Run})
	}
	return keys, keys, nil
}

// followKeys keeps the keys up to date until stop is called.
func followKeys(keys *encryption.Backend, store *storage.Store) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var following sync.WaitGroup
	following.Go(func() {
		keys.Follow(ctx, func(ctx context.Context) {
			if n := store.Repair(ctx); n > 0 {
				slog.Info("rewrote objects that can be decrypted again", "objects", n)
			}
		})
	})
	return func() {
		cancel()
		following.Wait()
	}
}
