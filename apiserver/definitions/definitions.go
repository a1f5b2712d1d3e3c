// Package definitions serves the kinds that CustomResourceDefinitions define. It follows the definitions in the store:
// names and conditions are kept up (names.go), the kinds of those that are established are in the registry, and the
// objects of one that is being deleted are deleted before it (cleanup.go).
//
// Every server does so. What it writes names the revision that it was made from: of several servers that see the same
// need one writes, and the others are refused and look again.
package definitions

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
	"github.com/coxswain-dev/coxswain/storage"
)

// Objects are the API objects as the server itself reads and writes them.
type Objects interface {
	// Collection opens the stored objects of a kind.
	Collection(res *api.Resource) *storage.Collection
	// Update is the write, if one is needed, by which a stored object becomes what change makes of it.
	Update(res *api.Resource, stored *storage.Object, subresource string, change func(api.Object)) (
		[]storage.Write, error)
	// DeleteAll deletes all objects of a kind, as far as their finalizers permit.
	DeleteAll(ctx context.Context, res *api.Resource) error
	// Commit makes writes durable in one transaction, as storage.Store does, and records them in the audit log.
	Commit(ctx context.Context, writes ...storage.Write) (*storage.CommitResult, error)
}

// Options assemble Definitions. All fields but Forget are required.
type Options struct {
	Store    *storage.Store
	Registry *api.Registry
	Objects  Objects
	// Converter converts the objects of kinds with the conversion strategy Webhook.
	Converter customresource.Converter
	Clock     clock.PassiveClock
	Log       *slog.Logger
	// Forget is called when the registry has lost kinds: nothing that was made of them should stay in memory.
	Forget func()
}

// Definitions are the definitions of a server. Its methods are safe for concurrent use.
type Definitions struct {
	Options
	res     *api.Resource
	builtin map[string]*names // by group: the names of the kinds that need no definition

	// emptied are the definitions whose objects have been deleted, as far as finalizers permit. It is keep's own.
	emptied map[types.UID]bool

	mu       sync.Mutex
	known    map[string]*defined
	claims   map[string]claim
	reached  int64         // the revision of the definitions that known has
	advanced chan struct{} // closed when reached grows
	changed  chan struct{} // holds a token when there is something to keep up
	kept     atomic.Int64  // the revision of the definitions of which all has been kept up
}

// defined is one definition as the server knows it.
type defined struct {
	*customresource.Definition
	object *storage.Object
	state  *api.Definition // of the kinds that are registered; nil if none are
	of     *customresource.Definition
	served []*api.Resource
	broken bool // it can't be read
}

// Kind is the kind of definitions.
var Kind = schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"}

// New reads the definitions and registers their kinds. It returns nil if definitions are not served.
func New(ctx context.Context, o Options) (*Definitions, error) {
	kinds := o.Registry.Snapshot()
	res := kinds.Kind(Kind)
	if res == nil {
		return nil, nil
	}
	d := &Definitions{Options: o, res: res, builtin: builtinNames(kinds), known: map[string]*defined{},
		claims: map[string]claim{}, emptied: map[types.UID]bool{},
		advanced: make(chan struct{}), changed: make(chan struct{}, 1)}
	if _, err := o.Store.Revision(ctx); err != nil {
		return nil, fmt.Errorf("reading the CustomResourceDefinitions: %w", err)
	}
	_, err := d.refresh(ctx)
	return d, err
}

// Run follows the definitions until ctx ends.
func (d *Definitions) Run(ctx context.Context) {
	var keeping sync.WaitGroup
	defer keeping.Wait()
	keeping.Go(func() { d.keep(ctx) })
	for ctx.Err() == nil {
		revision, err := d.refresh(ctx)
		if err != nil {
			return // the store has closed
		}
		watcher, err := d.Objects.Collection(d.res).Watch(ctx, storage.WatchRequest{From: revision})
		for err == nil {
			if _, err = watcher.Next(ctx); err == nil {
				_, err = d.refresh(ctx)
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
func (d *Definitions) refresh(ctx context.Context) (int64, error) {
	if revision := d.upToDate(); revision > 0 {
		return revision, nil
	}
	list, err := d.Objects.Collection(d.res).List(ctx, storage.ListRequest{At: storage.At{Any: true}, Readable: true})
	if err != nil {
		return 0, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if list.Revision < d.reached {
		return d.reached, nil
	}
	var remove, add []*api.Resource
	var ended []*api.Definition
	anything := false
	for _, o := range list.Items {
		e := d.known[o.Key.Name]
		if e != nil && e.object.Revision == o.Revision {
			continue
		}
		anything = true
		now := d.next(e, o)
		if e != nil && e.state != nil && e.state != now.state {
			remove, ended = append(remove, e.served...), append(ended, e.state)
		}
		if now.state != nil && (e == nil || e.state != now.state) {
			add = append(add, now.served...)
		}
		d.known[o.Key.Name] = now
	}
	for _, e := range d.absent(list.Items) {
		anything = true
		if e.state != nil {
			remove, ended = append(remove, e.served...), append(ended, e.state)
		}
		delete(d.known, e.object.Key.Name)
	}
	d.register(remove, add)
	for _, state := range ended {
		state.End()
	}
	d.advance(list.Revision, anything)
	return list.Revision, nil
}

// upToDate is the revision of the definitions in memory if known has them already, else 0: an earlier refresh may have
// dealt with several changes.
func (d *Definitions) upToDate() int64 {
	changed, _ := d.Objects.Collection(d.res).Changed()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.reached < changed {
		return 0
	}
	return d.reached
}

// absent are the known definitions that are not among the objects, all of which are known. d.mu is held.
func (d *Definitions) absent(objects []*storage.Object) (absent []*defined) {
	if len(d.known) == len(objects) {
		return nil
	}
	present := make(map[string]bool, len(objects))
	for _, o := range objects {
		present[o.Key.Name] = true
	}
	for name, e := range d.known {
		if !present[name] {
			absent = append(absent, e)
		}
	}
	return absent
}

// register changes the registry in one step. A kind that another one hides is left out.
func (d *Definitions) register(remove, add []*api.Resource) {
	if len(remove)+len(add) == 0 {
		return
	}
	if len(remove) > 0 && d.Forget != nil {
		defer d.Forget()
	}
	if d.Registry.Replace(remove, add) == nil {
		return
	}
	_ = d.Registry.Replace(remove, nil) // which cannot fail
	for _, res := range add {
		if err := d.Registry.Add(res); err != nil {
			d.Log.Error("a kind cannot be served", "kind", res.GVK().String(), "error", err)
		}
	}
}

// next is a definition as it is stored now. e is what was known of it, nil if nothing was.
func (d *Definitions) next(e *defined, o *storage.Object) *defined {
	definition, err := customresource.Read(o.JSON)
	if err != nil {
		d.Log.Error("a CustomResourceDefinition cannot be served", "name", o.Key.Name, "error", err)
		return &defined{Definition: &customresource.Definition{Name: o.Key.Name}, object: o, broken: true}
	}
	definition.Converter = d.Converter
	now := &defined{Definition: definition, object: o}
	switch {
	case !definition.Served():
	case e != nil && e.state != nil && definition.SameKind(e.of):
		now.state, now.of, now.served = e.state, e.of, e.served
	default:
		now.state, now.of = api.NewDefinition(d.res, definition.Name), definition
		served, _ := definition.Kinds(now.state)
		now.served = d.besideBuiltin(served)
	}
	if now.state != nil {
		now.state.Seen(o.Revision, definition.Terminating())
	}
	return now
}

// advance notes that the definitions of a revision are registered.
func (d *Definitions) advance(revision int64, anything bool) {
	if revision > d.reached {
		d.reached = revision
		close(d.advanced)
		d.advanced = make(chan struct{})
	}
	if anything {
		select {
		case d.changed <- struct{}{}:
		default:
		}
	}
}

// CatchUp waits until the registry has the kinds of all definitions that etcd has now: another server may have told a
// client of one a moment ago.
func (d *Definitions) CatchUp(ctx context.Context) error {
	if _, err := d.Store.Revision(ctx); err != nil {
		return err
	}
	return d.Settle(ctx)
}

// Settle waits until the registry has the kinds of all definitions in memory.
func (d *Definitions) Settle(ctx context.Context) error {
	changed, _ := d.Objects.Collection(d.res).Changed()
	return d.Await(ctx, changed)
}

// Await waits until the registry has the kinds of all definitions at a revision.
func (d *Definitions) Await(ctx context.Context, revision int64) error {
	for {
		d.mu.Lock()
		reached, advanced := d.reached, d.advanced
		d.mu.Unlock()
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
