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

// Snapshot holds all objects of an environment at one moment. It is immutable, and remains valid when the
// environment ends. Any number of environments may start from it, also concurrently.
type Snapshot struct {
	image *memory.Image
	// ca and key sign certificates and tokens, so that the ones that were issued before remain valid in a fork.
	ca   *pki.CA
	key  crypto.Signer
	from options
}

// Snapshot keeps the present objects. It makes no copy, and may be taken while other parts write. A test that
// needs an idle control plane must wait for it first.
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

// presences is the prefix of the records of running servers. A snapshot contains the record of its environment's
// server, which is not the server of a fork and may have ended.
const presences = controlplane.Presences + "/"

// Reset restores the objects of a snapshot of this environment, or of one that it was forked from or with. It
// writes the differences: to clients it looks as if one transaction had reverted every change since, past all
// admission and finalizers. Open watches continue, resourceVersions grow as usual, and caches follow when the
// events have reached them. Reset returns when the API server shows the objects of the snapshot.
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

// FromSnapshot starts with the objects of a snapshot: a fork of its environment, which may have ended. Certificates
// and tokens that were valid there are valid here, at another address. The same parts run as there, unless options
// that follow this one change that. Webhooks have another address as well, and each environment has a clock of its
// own: a fork that needs webhooks or a manual clock needs WithWebhooks or WithFakeTime again.
func FromSnapshot(s *Snapshot) Option {
	return func(o *options) {
		o.controllers, o.scheduler, o.nodes = s.from.controllers, s.from.scheduler, s.from.nodes
		o.admission, o.authentication, o.pods = s.from.admission, s.from.authentication, s.from.pods
		o.fork = s
	}
}

// memory returns the backend of the environment's objects.
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
