package kubectllite

import (
	"context"
	"fmt"
	"io"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/cli-runtime/pkg/printers"
)

// follow runs get -w: it prints the objects, then every change, until the stream or ctx ends.
func (o *getOptions) follow(ctx context.Context, args []string) error {
	if o.inPlace && o.watch && !o.watchOnly && !o.watchEvents && o.serverPrint && o.format.human() &&
		!o.format.noHeaders && o.CanLive() {
		return o.followInPlace(ctx, args)
	}
	namespace, explicit, err := o.Namespace()
	if err != nil {
		return err
	}
	found := o.query(namespace, explicit, args).SingleResourceType().Do()
	if err := found.Err(); err != nil {
		return err
	}
	infos, err := found.Infos()
	if err != nil {
		if apierrors.IsNotFound(err) && o.ignoreNotFound {
			return nil
		}
		return err
	}
	obj, err := found.Object()
	if err != nil {
		return err
	}
	printer, err := o.streamPrinter(infos[0].ResourceMapping())
	if err != nil {
		return err
	}
	out := &liveTable{printer: printer, tabs: printers.GetNewTabWriter(o.OutFor(o.format.print)),
		asEvents: o.watchEvents}
	if err := o.printPresent(obj, out); err != nil {
		return err
	}
	// The revision of a list is the present. The revision of a single object may be older than the server's history.
	// A watch from any revision ("0") begins with an event for the object, which was just printed.
	named, from := infos[0].Name != "", "0"
	if !named {
		if from, err = meta.NewAccessor().ResourceVersion(obj); err != nil {
			return err
		}
	}
	changes, err := found.Watch(from)
	if err != nil {
		return err
	}
	defer changes.Stop()
	return out.drain(ctx, changes, named)
}

func (o *getOptions) streamPrinter(mapping *meta.RESTMapping) (printers.ResourcePrinter, error) {
	if !o.format.human() {
		return o.format.objects()
	}
	return o.format.table(mapping, o.allNamespaces, false), nil
}

// printPresent prints the objects that exist before the watch begins; with --watch-only, only the headings.
func (o *getOptions) printPresent(obj runtime.Object, out *liveTable) error {
	if o.watchOnly {
		table, err := decodeTable(obj)
		if err != nil || table == nil {
			return err
		}
		table.Rows = nil
		return out.print(watch.Added, table)
	}
	present := []runtime.Object{obj}
	if meta.IsListType(obj) {
		var err error
		if present, err = meta.ExtractList(obj); err != nil {
			return err
		}
	}
	for _, one := range present {
		if err := out.print(watch.Added, one); err != nil {
			return fmt.Errorf("unable to output the provided object: %v", err)
		}
	}
	return out.tabs.Flush()
}

// liveTable prints a stream of changes, one flushed line each.
type liveTable struct {
	printer  printers.ResourcePrinter
	tabs     flushWriter
	asEvents bool
}

func (t *liveTable) print(kind watch.EventType, obj runtime.Object) error {
	if t.asEvents {
		obj = &metav1.WatchEvent{Type: string(kind), Object: runtime.RawExtension{Object: obj}}
	}
	return t.printer.PrintObj(obj, t.tabs)
}

// drain prints the events of a watch, except the first one with skipFirst.
func (t *liveTable) drain(ctx context.Context, changes watch.Interface, skipFirst bool) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case event, open := <-changes.ResultChan():
			if !open {
				return nil
			}
			if event.Type == watch.Error {
				return apierrors.FromObject(event.Object)
			}
			if skipFirst {
				skipFirst = false
				continue
			}
			if err := t.print(event.Type, event.Object); err != nil {
				return err
			}
			if err := t.tabs.Flush(); err != nil {
				return err
			}
		}
	}
}

// flushWriter is a writer that aligns columns and therefore buffers text until it is flushed.
type flushWriter interface {
	io.Writer
	Flush() error
}
