package testenv

import (
	"context"
	"errors"
	"os"

	"github.com/coxswain-dev/coxswain/storage"
	"github.com/coxswain-dev/coxswain/storage/etcd"
	"github.com/coxswain-dev/coxswain/storage/memory"
)

// WithEtcd keeps the objects in an embedded etcd, as coxswain up does. The default is a store in memory with the
// same behavior. etcd takes longer to start; tests about etcd need it.
func WithEtcd() Option { return func(o *options) { o.etcd = true } }

// openBackend opens the backend of the control plane's objects. Closing it deletes them.
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
	backend, err := etcd.StartEmbedded(ctx, etcd.EmbeddedOptions{Dir: dir, Unsafe: true, Log: o.log})
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return temporary{backend, dir}, nil
}

// temporary is an etcd whose files are deleted when it is closed.
type temporary struct {
	storage.Backend
	dir string
}

func (t temporary) Close() error { return errors.Join(t.Backend.Close(), os.RemoveAll(t.dir)) }

// memoryDisk returns a folder in memory, or "" if the system has none.
func memoryDisk() string {
	const shm = "/dev/shm"
	if info, err := os.Stat(shm); err == nil && info.IsDir() {
		return shm
	}
	return ""
}
