package testenv

import (
	"context"
	"crypto"
	"errors"
	"fmt"

	"github.com/coxswain-dev/coxswain/apiserver/controlplane"
	"github.com/coxswain-dev/coxswain/apiserver/pki"
	"github.com/coxswain-dev/coxswain/storage/memory"
)

// Snapshot is all objects of an environment at one moment. It is immutable, and stays when the environment ends; any
// number of environments may begin with it, at the same time too.
type Snapshot struct {
	image *memory.Image
	// ca and key sign certificates and tokens, so that those that were issued before are valid in a fork.
	ca   *pki.CA
	key  crypto.Signer
	from options
}

// Snapshot keeps the present objects. It copies nothing, and may be taken while other parts write: a test that wants
// them to have come to rest waits for that first.
func (e *Environment) Snapshot(ctx context.Context) (*Snapshot, error) {
	memory, err := e.memory("Snapshot")
	if err != nil {
		return nil, err
	}
	image, err := memory.Save(ctx)
	if err != nil {
		return nil, fmt.Errorf("testenv: Snapshot: %w", err)
	}
	return &Snapshot{image: image, ca: e.server.ca, key: e.server.authentication.ServiceAccounts.SigningKey,
		from: e.options}, nil
}

// presences is where the servers that run are recorded. A snapshot of an environment records its server, which is not
// that of another environment, and may have ended.
const presences = controlplane.Presences + "/"

// Reset brings back the objects of a snapshot of this environment, or of one that it was forked from or with. What
// differs is written: to all clients it looks as if somebody had undone every change since, in one moment and past all
// admission and finalizers. Open watches go on, resourceVersions grow as ever, and caches follow when the events have
// reached them. Reset returns when the API server shows the objects of the snapshot.
func (e *Environment) Reset(ctx context.Context, s *Snapshot) error {
	memory, err := e.memory("Reset")
	if err != nil {
		return err
	}
	if s.ca != e.server.ca {
		return errors.New("testenv: Reset: the snapshot is of another environment")
	}
	if _, err := memory.Restore(ctx, s.image, presences); err != nil {
		return fmt.Errorf("testenv: Reset: %w", err)
	}
	if err := e.server.catchUp(ctx); err != nil {
		return fmt.Errorf("testenv: Reset: %w", err)
	}
	return nil
}

// FromSnapshot begins with the objects of a snapshot: a fork of the environment that it is of, which may have ended.
// Certificates and tokens that were valid there are valid here, at another address. The same parts run as there;
// options that follow this one change that. Webhooks have another address as well, and each environment has a clock of
// its own: a fork that needs webhooks or a clock is given WithWebhooks or WithFakeTime again.
func FromSnapshot(s *Snapshot) Option {
	return func(o *options) {
		o.controllers, o.scheduler, o.nodes = s.from.controllers, s.from.scheduler, s.from.nodes
		o.admission, o.authentication, o.pods = s.from.admission, s.from.authentication, s.from.pods
		o.fork = s
	}
}

// memory is where the environment's objects are.
func (e *Environment) memory(method string) (*memory.Backend, error) {
	if err := e.own(method); err != nil {
		return nil, err
	}
	if e.server.memory == nil {
		return nil, fmt.Errorf("testenv: %s: the objects are in etcd", method)
	}
	return e.server.memory, nil
}

// catchUp waits until the API server shows all that is stored, if it runs.
func (s *server) catchUp(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.store == nil {
		return nil
	}
	_, err := s.store.Revision(ctx)
	return err
}
