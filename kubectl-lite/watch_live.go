package kubectllite

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/cli-runtime/pkg/resource"

	"github.com/coxswain-dev/coxswain/internal/backoff"
	"github.com/coxswain-dev/coxswain/kubectl-lite/terminal"
)

// rowTable is the table of get -w on a terminal: one row per object, each the latest.
type rowTable struct {
	mu       sync.Mutex
	columns  []metav1.TableColumnDefinition
	rows     []metav1.TableRow
	revision string
	trouble  string // why it may be out of date
}

// followInPlace is get -w on a terminal. A watch that breaks is taken up again where it ended.
func (o *getOptions) followInPlace(ctx context.Context, args []string) error {
	namespace, explicit, err := o.Namespace()
	if err != nil {
		return err
	}
	look := func() *resource.Result { return o.query(namespace, explicit, args).SingleResourceType().Do() }
	found := look()
	infos, err := found.Infos()
	if err != nil {
		if apierrors.IsNotFound(err) && o.ignoreNotFound {
			return nil
		}
		return err
	}
	mapping := infos[0].ResourceMapping()
	t := &rowTable{}
	if err := t.replace(found); err != nil {
		return err
	}
	render := func() []string { return t.lines(&o.format, mapping, o.allNamespaces) }
	return o.Live(ctx, render, func(ctx context.Context, changed func()) error {
		return resuming(ctx, func(err error) { t.setTrouble(err); changed() }, func() error {
			return t.follow(ctx, look, changed)
		})
	})
}

// resuming does something that lasts again and again until ctx ends, after ever longer pauses while it fails
// at once. failed is told the reason of each failure, and nil once it has lasted.
func resuming(ctx context.Context, failed func(error), last func() error) error {
	const shortest, longest = 200 * time.Millisecond, 5 * time.Second
	pause := backoff.Doubling(shortest, longest)
	for ctx.Err() == nil {
		began := time.Now()
		err := last()
		if ctx.Err() != nil {
			break
		}
		if time.Since(began) > longest {
			pause = backoff.Doubling(shortest, longest)
		}
		if err != nil {
			if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) || apierrors.IsNotFound(err) ||
				apierrors.IsMethodNotSupported(err) {
				return err
			}
			failed(err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause.Step()):
		}
	}
	return nil
}

// follow reads one watch to its end. Where the revision is too old to go on from, everything is read again.
func (t *rowTable) follow(ctx context.Context, look func() *resource.Result, changed func()) error {
	found := look()
	if t.at() == "" {
		if err := t.replace(found); err != nil {
			return err
		}
		changed()
	}
	changes, err := found.Watch(t.at())
	if err != nil {
		if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
			t.forget()
			return nil
		}
		return err
	}
	defer changes.Stop()
	t.setTrouble(nil)
	changed()
	for {
		select {
		case <-ctx.Done():
			return nil
		case event, open := <-changes.ResultChan():
			if !open {
				return nil
			}
			if event.Type == watch.Error {
				err := apierrors.FromObject(event.Object)
				if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
					t.forget()
					return nil
				}
				return err
			}
			if err := t.apply(event); err != nil {
				return err
			}
			changed()
		}
	}
}

func (t *rowTable) at() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.revision
}

func (t *rowTable) forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.revision = ""
}

func (t *rowTable) setTrouble(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.trouble = ""
	if err != nil {
		t.trouble = fmt.Sprintf("connection lost, trying again: %v", err)
	}
}

// replace takes what a list found, and its revision to watch from. A single object may have been written long
// ago, before what the server still remembers: it is watched from now.
func (t *rowTable) replace(found *resource.Result) error {
	infos, err := found.Infos()
	if err != nil {
		return err
	}
	obj, err := found.Object()
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rows, t.revision = nil, "0"
	if infos[0].Name == "" {
		if t.revision, err = meta.NewAccessor().ResourceVersion(obj); err != nil {
			return err
		}
	}
	present := []runtime.Object{obj}
	if meta.IsListType(obj) {
		if present, err = meta.ExtractList(obj); err != nil {
			return err
		}
	}
	for _, one := range present {
		if err := t.put(one, false); err != nil {
			return err
		}
	}
	return nil
}

func (t *rowTable) apply(event watch.Event) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.put(event.Object, event.Type == watch.Deleted)
}

// put takes the rows of a table that the server made.
func (t *rowTable) put(obj runtime.Object, gone bool) error {
	table, err := decodeTable(obj)
	if err != nil {
		return err
	}
	if table == nil {
		return fmt.Errorf("the server makes no table of %T", obj)
	}
	if len(table.ColumnDefinitions) > 0 {
		t.columns = table.ColumnDefinitions
	}
	for _, row := range table.Rows {
		accessor, err := meta.Accessor(row.Object.Object)
		if err != nil {
			return err
		}
		if version := accessor.GetResourceVersion(); version != "" && t.revision != "" {
			t.revision = later(t.revision, version)
		}
		at := slices.IndexFunc(t.rows, func(r metav1.TableRow) bool { return rowUID(r) == accessor.GetUID() })
		switch {
		case gone && at >= 0:
			t.rows = slices.Delete(t.rows, at, at+1)
		case gone:
		case at >= 0:
			t.rows[at] = row
		default:
			t.rows = append(t.rows, row)
		}
	}
	return nil
}

// later is the greater of two revisions. They are whole numbers, by the API's contract since 1.35.
func later(a, b string) string {
	if len(a) > len(b) || len(a) == len(b) && a > b {
		return a
	}
	return b
}

func rowUID(row metav1.TableRow) types.UID {
	if accessor, err := meta.Accessor(row.Object.Object); err == nil {
		return accessor.GetUID()
	}
	return ""
}

// lines is the table as get prints it, with ages as of now.
func (t *rowTable) lines(format *readFormat, mapping *meta.RESTMapping, withNamespace bool) []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	table := &metav1.Table{ColumnDefinitions: t.columns, Rows: slices.Clone(t.rows)}
	age := slices.IndexFunc(t.columns, func(c metav1.TableColumnDefinition) bool { return c.Name == "Age" })
	for i := range table.Rows {
		accessor, err := meta.Accessor(table.Rows[i].Object.Object)
		if age < 0 || age >= len(table.Rows[i].Cells) || err != nil {
			continue
		}
		table.Rows[i].Cells = slices.Clone(table.Rows[i].Cells)
		table.Rows[i].Cells[age] = terminal.Age(accessor.GetCreationTimestamp().Time)
	}
	var b bytes.Buffer
	tabs := printers.GetNewTabWriter(&b)
	if err := format.table(mapping, withNamespace, false).PrintObj(table, tabs); err != nil {
		return []string{err.Error()}
	}
	_ = tabs.Flush() // to memory
	lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
	if t.trouble != "" {
		lines = append(lines, "", t.trouble)
	}
	return lines
}
