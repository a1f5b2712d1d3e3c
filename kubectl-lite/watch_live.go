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

// rowTable is the table of get -w on a terminal, with the latest row of each object.
type rowTable struct {
	mu       sync.Mutex // guards all fields: the watch writes them, the view reads them
	columns  []metav1.TableColumnDefinition
	rows     []metav1.TableRow
	revision string // where the watch goes on; "" if everything must be listed again
	trouble  string // the reason for which the table may be out of date
}

// followInPlace runs get -w on a terminal. It resumes a broken watch where it ended.
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

// resuming calls follow again and again until ctx ends. Pauses between the calls grow, unless follow has lasted for
// some time. failed is called with each error. An error that will not go away ends resuming: the user lacks a right, or
// the resource does not exist or cannot be watched.
func resuming(ctx context.Context, failed func(error), follow func() error) error {
	const shortest, longest = 200 * time.Millisecond, 5 * time.Second
	pause := backoff.Doubling(shortest, longest)
	for ctx.Err() == nil {
		began := time.Now()
		err := follow()
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

// follow reads one watch to its end. If the revision has expired, the next call lists everything again.
func (t *rowTable) follow(ctx context.Context, look func() *resource.Result, changed func()) error {
	found := look()
	if t.resumeFrom() == "" {
		if err := t.replace(found); err != nil {
			return err
		}
		changed()
	}
	changes, err := found.Watch(t.resumeFrom())
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

// resumeFrom returns the revision where the watch goes on.
func (t *rowTable) resumeFrom() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.revision
}

// forget makes the next call of follow list everything.
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

// replace sets the rows and the revision to the result of a list. The revision of a single object may be older than the
// server's history, so that its watch begins at any revision ("0").
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

// put adds, updates or removes the rows of a server's table. t.mu must be held.
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
		i := slices.IndexFunc(t.rows, func(r metav1.TableRow) bool { return rowUID(r) == accessor.GetUID() })
		switch {
		case gone && i >= 0:
			t.rows = slices.Delete(t.rows, i, i+1)
		case gone:
		case i >= 0:
			t.rows[i] = row
		default:
			t.rows = append(t.rows, row)
		}
	}
	return nil
}

// later returns the greater of two revisions. They are decimal numbers by the API's contract since 1.35 (KEP-5504).
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

// lines returns the table as get prints it, with present ages.
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
