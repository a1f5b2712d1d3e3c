package encoding

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/apiserver/transcode"
	"github.com/coxswain-dev/coxswain/storage"
)

// Framer encodes watch events in the form that the client asked for: one JSON document per line, length-delimited
// protobuf or a sequence of CBOR items.
type Framer struct {
	// Match selects events of objects that another server converts; nil selects all.
	Match func(*storage.Object) bool

	form Form
	// columns is set until the first Table has been sent, since later ones do not repeat the columns.
	columns bool
}

// NewFramer returns a Framer for a new stream.
func NewFramer(form Form) *Framer {
	form.converted = form.Resource.WebhookConverted // see Converted
	return &Framer{form: form, columns: true}
}

// ContentType returns the media type of the stream.
func (f *Framer) ContentType() string {
	switch f.form.Media {
	case MediaProtobuf:
		return MediaProtobuf + ";stream=watch"
	case MediaCBOR:
		return mediaCBORSequence
	}
	return MediaJSON
}

// Converted prepares events for Append. If another server converts the kind, the objects of all events are sent to
// it together.
func (f *Framer) Converted(ctx context.Context, events []storage.Event) ([]storage.Event, error) {
	if !f.form.converted {
		return events, nil
	}
	events = slices.Clone(events)
	objects := make([]**storage.Object, 0, len(events))
	for i := range events {
		for _, o := range []**storage.Object{&events[i].Object, &events[i].Previous} {
			if *o != nil {
				objects = append(objects, o)
			}
		}
	}
	items := make([]*storage.Object, len(objects))
	for i, o := range objects {
		items[i] = *o
	}
	items, err := ConvertDocuments(ctx, f.form.Resource, items)
	if err != nil {
		return nil, err
	}
	for i, o := range objects {
		*o = items[i]
	}
	return f.chosen(events), nil
}

// chosen filters the events by Match, and changes their types for a client that does not see other objects.
func (f *Framer) chosen(events []storage.Event) []storage.Event {
	if f.Match == nil {
		return events
	}
	chosen := events[:0]
	for _, e := range events {
		is := e.Type == storage.Bookmark || f.Match(e.Object)
		if was := e.Previous != nil && f.Match(e.Previous); e.Type == storage.Modified {
			switch {
			case is && !was:
				e.Type = storage.Added
			case was && !is:
				e.Type, e.Object, is = storage.Deleted, e.Previous, true
			}
		}
		if is {
			chosen = append(chosen, e)
		}
	}
	return chosen
}

// Append appends one event to buf.
func (f *Framer) Append(ctx context.Context, buf []byte, e *storage.Event) ([]byte, error) {
	doc, err := f.object(ctx, e)
	if err != nil {
		return buf, err
	}
	return f.frame(buf, e.Type.String(), doc)
}

func (f *Framer) object(ctx context.Context, e *storage.Event) ([]byte, error) {
	if f.form.View == ViewTable {
		return f.table(ctx, e)
	}
	if e.Type != storage.Bookmark {
		return f.form.Object(ctx, e.Object)
	}
	o, err := storage.NewObject(storage.Key{}, e.Revision, f.bookmark(e))
	if err != nil {
		return nil, err
	}
	if f.form.Resource.Schema != 0 {
		return f.form.encode(o) // the schema would add defaults
	}
	return f.form.Object(ctx, o)
}

// table returns a Table with one row. For a bookmark, the row represents the bookmark's object.
func (f *Framer) table(ctx context.Context, e *storage.Event) ([]byte, error) {
	meta, columns := metav1.ListMeta{ResourceVersion: strconv.FormatInt(e.Revision, 10)}, f.columns
	f.columns = false
	if e.Type != storage.Bookmark {
		return f.form.table(ctx, []*storage.Object{e.Object}, meta, columns)
	}
	o, err := storage.NewObject(storage.Key{}, e.Revision, f.bookmark(e))
	if err != nil {
		return nil, err
	}
	b, err := f.form.tableOf(1, meta, columns, func(context.Context, int) (metav1.TableRow, error) {
		return f.form.bookmarkRow(o, e.InitialEventsEnd), nil
	})
	if err != nil {
		return nil, err
	}
	return b.whole(ctx)
}

// bookmark returns an object of the kind with only a resourceVersion (KEP-956) and, at the end of the initial
// events of a streaming list, the annotation for it (KEP-3157).
func (f *Framer) bookmark(e *storage.Event) []byte {
	annotations := ""
	if e.InitialEventsEnd {
		annotations = `,"annotations":{"` + metav1.InitialEventsAnnotationKey + `":"true"}`
	}
	return fmt.Appendf(nil, `{"kind":%q,"apiVersion":%q,"metadata":{"resourceVersion":"%d"%s}}`,
		f.form.Resource.Kind, f.form.Resource.GroupVersion(), e.Revision, annotations)
}

// AppendError appends an ERROR event.
func (f *Framer) AppendError(buf []byte, status metav1.Status) []byte {
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	doc, _ := json.Marshal(&status)
	if f.form.Media == MediaProtobuf {
		doc, _ = wrapProtobuf("v1", "Status", &status)
	}
	buf, _ = f.frame(buf, "ERROR", doc)
	return buf
}

func (f *Framer) frame(buf []byte, event string, doc []byte) ([]byte, error) {
	switch f.form.Media {
	case MediaProtobuf:
		return appendProtobufEvent(buf, event, doc), nil
	case MediaCBOR:
		return appendCBOREvent(buf, event, doc)
	}
	buf = append(buf, `{"type":"`...)
	buf = append(buf, event...)
	buf = append(buf, `","object":`...)
	buf = append(buf, doc...)
	return append(buf, "}\n"...), nil
}

// appendProtobufEvent appends the length of a metav1.WatchEvent and the event. The type is in field 1. Field 2 is a
// runtime.RawExtension with the document in its field 1.
func appendProtobufEvent(buf []byte, event string, doc []byte) []byte {
	start := len(buf)
	buf = transcode.AppendSized(append(buf, 0, 0, 0, 0), transcode.SizedTag(1), event)
	buf, content := transcode.Open(buf, transcode.SizedTag(2))
	buf = transcode.Close(transcode.AppendSized(buf, transcode.SizedTag(1), doc), content)
	binary.BigEndian.PutUint32(buf[start:], uint32(len(buf)-start-4))
	return buf
}

// ObjectMemory returns roughly the memory that encoding an event takes, for a document of that many bytes.
func (f *Framer) ObjectMemory(document int) int64 { return f.form.ObjectMemory(document) }
