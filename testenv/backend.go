package testenv

import (
	"context"
	"errors"
	"os"

	"github.com/coxswain-dev/coxswain/storage"
	"github.com/coxswain-dev/coxswain/storage/memory"
)

// WithEtcd keeps the objects in an embedded etcd, as coxswain up does, where the default is a store in memory that
// behaves alike. It takes longer to start, and is for tests that are about etcd.
func WithEtcd() Option { return func(o *options) { o.etcd = true } }

// openBackend opens what the control plane's objects are kept in. They are gone when it is closed.
func (o *options) openBackend(ctx context.Context) (storage.Backend, error) {
	if o.etcd && o.fork != nil {
		return nil, errors.New("a fork of a snapshot is in memory: WithEtcd does not go with FromSnapshot")
	}
	if !o.etcd {
		begin := memory.Options{Clock: o.clock}
		if o.fork != nil {
			begin.Image = o.fork.image.Without(presences)
		}
		return memory.New(begin), nil
	}
	dir, err := os.MkdirTemp(memoryDisk(), "coxswain-test-")
	if err != nil {
		return nil, err
	}
	etcd, err := storage.StartEmbedded(ctx, storage.EmbeddedOptions{Dir: dir, Unsafe: true, Log: o.log})
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return temporary{etcd, dir}, nil
}

// temporary is an etcd whose files go with it.
type temporary struct {
	storage.Backend
	dir string
}

func (t temporary) Close() error { return errors.Join(t.Backend.Close(), os.RemoveAll(t.dir)) }

// memoryDisk is a folder in memory where the system has one.
func memoryDisk() string {
	const shm = "/dev/shm"
	if info, err := os.Stat(shm); err == nil && info.IsDir() {
		return shm
	}
	return ""
}
