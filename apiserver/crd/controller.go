// Package crd serves the kinds that CustomResourceDefinitions define. It follows the definitions in the store and does
// the work of the controllers of apiextensions-apiserver:
//
//	controller.go     the kinds of established definitions are in the registry
//	sync.go           the loop that keeps up the status of definitions
//	naming.go         the naming controller: names that no other kind has are accepted
//	establishing.go   the establishing controller: whether the kind is served
//	apiapproval.go    the API approval controller: groups of Kubernetes' own
//	conditions.go     the conditions of a definition, which these set
//	finalizer.go      the finalizer: a definition's objects are deleted before it
//	conversion/       objects of one version as another one, by a webhook
//
// Every server does so. A write names the revision that it was made from: of several servers that see the same need one
// writes, and the others are refused and look again.
package crd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/customresource"
	"github.com/coxswain-dev/coxswain/apiserver/loopback"
	"github.com/coxswain-dev/coxswain/storage"
)

// Options assemble a Controller. All fields but Forget are required.
type Options struct {
	Store    *storage.Store
	Registry *api.Registry
	Objects  loopback.Client
	// Converter converts the objects of kinds with the conversion strategy Webhook.
	Converter customresource.Converter
	Clock     clock.PassiveClock
	Log       *slog.Logger
	// Forget is called when the registry has lost kinds, so that caches drop them.
	Forget func()
}

// Controller follows the definitions of a server. Its methods are safe for concurrent use.
type Controller struct {
	Options
	res     *api.Resource
	builtin map[string]*names // by group: the names of the kinds that need no definition

	// deleted holds a definition after its objects have been deleted, as far as finalizers permit. Only sync uses it.
	deleted map[types.UID]bool

	mu          sync.Mutex
	definitions map[string]*definition
	reserved    map[string]reservation
	reached     int64         // definitions has all changes up to this revision
	advanced    chan struct{} // closed when reached grows
	changed     chan struct{} // holds a token while sync has a change to look at
	synced      atomic.Int64  // sync has written every status up to this revision
}

// definition is one definition as the server knows it.
type definition struct {
	*customresource.Definition
	object *storage.Object
	state  *api.Definition // of the kinds that are registered; nil if none are
	served []*api.Resource // the registered kinds
	// registered is the definition that served was made from. Later ones differ from it in their status alone.
	registered *customresource.Definition
	broken     bool // it can't be read
}

// Kind is the kind of definitions.
var Kind = schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"}

// New reads the definitions and registers their kinds. It returns nil if definitions are not served.
func New(ctx context.Context, o Options) (*Controller, error) {
	kinds := o.Registry.Snapshot()
	res := kinds.Kind(Kind)
	if res == nil {
		return nil, nil
	}
	c := &Controller{Options: o, res: res, builtin: builtinNames(kinds), definitions: map[string]*definition{},
		reserved: map[string]reservation{}, deleted: map[types.UID]bool{},
		advanced: make(chan struct{}), changed: make(chan struct{}, 1)}
	if _, err := o.Store.Revision(ctx); err != nil {
		return nil, fmt.Errorf("reading the CustomResourceDefinitions: %w", err)
	}
	_, err := c.refresh(ctx)
	return c, err
}

// Run follows the definitions until ctx ends.
func (c *Controller) Run(ctx context.Context) {
	var syncing sync.WaitGroup
	defer syncing.Wait()
	syncing.Go(func() { c.sync(ctx) })
	for ctx.Err() == nil {
		revision, err := c.refresh(ctx)
		if err != nil {
			return // the store has closed
		}
		watcher, err := c.Objects.Collection(c.res).Watch(ctx, storage.WatchRequest{From: revision})
		for err == nil {
			if _, err = watcher.Next(ctx); err == nil {
				_, err = c.refresh(ctx)
			}
		}
		if watcher != nil {
			watcher.Close()
		}
		if errors.Is(err, storage.ErrUnavailable) {
			return
		}
	}
}

// refresh brings the registry in line with the definitions in memory, and returns their revision.
func (c *Controller) refresh(ctx context.Context) (int64, error) {
	if revision := c.upToDate(); revision > 0 {
		return revision, nil
	}
	list, err := c.Objects.Collection(c.res).List(ctx, storage.ListRequest{At: storage.At{Any: true}, Readable: true})
	if err != nil {
		return 0, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if list.Revision < c.reached {
		return c.reached, nil
	}
	var remove, add []*api.Resource
	var ended []*api.Definition
	changed := false
	for _, o := range list.Items {
		old := c.definitions[o.Key.Name]
		if old != nil && old.object.Revision == o.Revision {
			continue
		}
		changed = true
		d := c.next(old, o)
		if old != nil && old.state != nil && old.state != d.state {
			remove, ended = append(remove, old.served...), append(ended, old.state)
		}
		if d.state != nil && (old == nil || old.state != d.state) {
			add = append(add, d.served...)
		}
		c.definitions[o.Key.Name] = d
	}
	for _, d := range c.absent(list.Items) {
		changed = true
		if d.state != nil {
			remove, ended = append(remove, d.served...), append(ended, d.state)
		}
		delete(c.definitions, d.object.Key.Name)
	}
	c.register(remove, add)
	for _, state := range ended {
		state.End()
	}
	c.advance(list.Revision, changed)
	return list.Revision, nil
}

// upToDate returns the revision of the definitions in memory if c has read them already, else 0: an earlier refresh may
// have dealt with several changes.
func (c *Controller) upToDate() int64 {
	changed, _ := c.Objects.Collection(c.res).Changed()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reached < changed {
		return 0
	}
	return c.reached
}

// absent returns the definitions without an object. c.mu is held, and c.definitions has all objects.
func (c *Controller) absent(objects []*storage.Object) (absent []*definition) {
	if len(c.definitions) == len(objects) {
		return nil
	}
	present := make(map[string]bool, len(objects))
	for _, o := range objects {
		present[o.Key.Name] = true
	}
	for name, d := range c.definitions {
		if !present[name] {
			absent = append(absent, d)
		}
	}
	return absent
}

// register changes the registry in one step. A kind that another one hides is left out.
func (c *Controller) register(remove, add []*api.Resource) {
	if len(remove)+len(add) == 0 {
		return
	}
	if len(remove) > 0 && c.Forget != nil {
		defer c.Forget()
	}
	if c.Registry.Replace(remove, add) == nil {
		return
	}
	_ = c.Registry.Replace(remove, nil) // which cannot fail
	for _, res := range add {
		if err := c.Registry.Add(res); err != nil {
			c.Log.Error("a kind cannot be served", "kind", res.GVK().String(), "error", err)
		}
	}
}

// next returns a definition as it is stored now. old is its earlier state, nil for a new one.
func (c *Controller) next(old *definition, o *storage.Object) *definition {
	read, err := customresource.Read(o.JSON)
	if err != nil {
		c.Log.Error("a CustomResourceDefinition cannot be served", "name", o.Key.Name, "error", err)
		return &definition{Definition: &customresource.Definition{Name: o.Key.Name}, object: o, broken: true}
	}
	read.Converter = c.Converter
	d := &definition{Definition: read, object: o}
	switch {
	case !read.Served():
	case old != nil && old.state != nil && read.SameKind(old.registered):
		d.state, d.registered, d.served = old.state, old.registered, old.served
	default:
		d.state, d.registered = api.NewDefinition(c.res, read.Name), read
		served, _ := read.Kinds(d.state)
		d.served = c.withoutBuiltin(served)
	}
	if d.state != nil {
		d.state.Seen(o.Revision, read.Terminating())
	}
	return d
}

// advance records that the definitions of a revision are registered. It wakes sync if any of them has changed.
func (c *Controller) advance(revision int64, changed bool) {
	if revision > c.reached {
		c.reached = revision
		close(c.advanced)
		c.advanced = make(chan struct{})
	}
	if changed {
		select {
		case c.changed <- struct{}{}:
		default:
		}
	}
}

// CatchUp waits until the registry has the kinds of all definitions that etcd has now: a client may have learned of one
// from another server a moment ago.
func (c *Controller) CatchUp(ctx context.Context) error {
	if _, err := c.Store.Revision(ctx); err != nil {
		return err
	}
	return c.Settle(ctx)
}

// Settle waits until the registry has the kinds of all definitions in memory.
func (c *Controller) Settle(ctx context.Context) error {
	changed, _ := c.Objects.Collection(c.res).Changed()
	return c.Await(ctx, changed)
}

// Await waits until the registry has the kinds of all definitions at a revision.
func (c *Controller) Await(ctx context.Context, revision int64) error {
	for {
		c.mu.Lock()
		reached, advanced := c.reached, c.advanced
		c.mu.Unlock()
		if reached >= revision {
			return nil
		}
		select {
		case <-advanced:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
