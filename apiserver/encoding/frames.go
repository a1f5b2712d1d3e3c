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

// Framer encodes watch events in the form that the client asked for: JSON documents one to a line, length-delimited
// protobuf, or a sequence of CBOR items.
type Framer struct {
	// Match chooses among the events of objects that another server converts; nil chooses all.
	Match func(*storage.Object) bool

	form Form
	// columns is set until the first Table has been sent: later ones do not repeat them.
	columns bool
}

// NewFramer returns a Framer for a new stream.
func NewFramer(form Form) *Framer {
	form.converted = form.Resource.WebhookConverted // see Converted
	return &Framer{form: form, columns: true}
}

// ContentType is the media type of the stream.
func (f *Framer) ContentType() string {
	switch f.form.Media {
	case MediaProtobuf:
		return MediaProtobuf + ";stream=watch"
	case MediaCBOR:
		return mediaCBORSequence
	}
	return MediaJSON
}

// Converted returns events as Append needs them. If another server converts the kind's objects it is asked about all
// of them together.
func (f *Framer) Converted(ctx context.Context, events []storage.Event) ([]storage.Event, error) {
	if !f.form.converted {
		return events, nil
	}
	events = slices.Clone(events)
	at := make([]**storage.Object, 0, len(events))
	for i := range events {
		for _, o := range []**storage.Object{&events[i].Object, &events[i].Previous} {
			if *o != nil {
				at = append(at, o)
			}
		}
	}
	items := make([]*storage.Object, len(at))
	for i, o := range at {
		items[i] = *o
	}
	items, err := ConvertDocuments(ctx, f.form.Resource, items)
	if err != nil {
		return nil, err
	}
	for i, o := range at {
		*o = items[i]
	}
	return f.chosen(events), nil
}

// chosen are the events about objects that Match chooses, as they are for a client that sees no others.
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
		return f.form.encode(o) // a schema would add defaults
	}
	return f.form.Object(ctx, o)
}

// table returns a Table with one row. That of a bookmark has what the bookmark has.
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

// bookmark returns an object of the kind with only a resourceVersion (KEP-956), and the annotation that ends a
// streaming list (KEP-3157).
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

// appendProtobufEvent appends a metav1.WatchEvent after its length: the type is in field 1, and field 2 is a
// runtime.RawExtension with the document in its field 1.
func appendProtobufEvent(buf []byte, event string, doc []byte) []byte {
	start := len(buf)
	buf = transcode.AppendSized(append(buf, 0, 0, 0, 0), transcode.SizedTag(1), event)
	buf, at := transcode.Open(buf, transcode.SizedTag(2))
	buf = transcode.Close(transcode.AppendSized(buf, transcode.SizedTag(1), doc), at)
	binary.BigEndian.PutUint32(buf[start:], uint32(len(buf)-start-4))
	return buf
}

// ObjectMemory is about how many bytes encoding an event about a document of so many bytes takes.
func (f *Framer) ObjectMemory(document int) int64 { return f.form.ObjectMemory(document) }
