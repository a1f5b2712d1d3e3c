package apiserver

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/apiserver/transcode"
	"github.com/coxswain-dev/coxswain/storage"
)

// framer writes watch events in the form the client asked for: JSON documents one to a
// line, length-delimited protobuf, or a sequence of CBOR items.
type framer struct {
	r *request
	// columns is set until the first Table has been sent: later ones need not repeat them.
	columns bool
}

func newFramer(r *request) *framer {
	return &framer{r: r, columns: true}
}

func (f *framer) contentType() string {
	switch f.r.out.media {
	case mediaProtobuf:
		return mediaProtobuf + ";stream=watch"
	case mediaCBOR:
		return mediaCBORSequence
	}
	return mediaJSON
}

// begin sends the head of the response.
func (f *framer) begin(w http.ResponseWriter) {
	w.Header().Set("Content-Type", f.contentType())
	w.Header().Set("Cache-Control", "no-cache, private")
	w.WriteHeader(http.StatusOK)
}

// eventTypes are the API's words for storage.EventType.
var eventTypes = [...]string{storage.Added: "ADDED", storage.Modified: "MODIFIED", storage.Deleted: "DELETED", storage.Bookmark: "BOOKMARK"}

// append adds one event to buf.
func (f *framer) append(buf []byte, e *storage.Event) ([]byte, error) {
	doc, err := f.object(e)
	if err != nil {
		return buf, err
	}
	return f.frame(buf, eventTypes[e.Type], doc)
}

func (f *framer) object(e *storage.Event) ([]byte, error) {
	table, bookmark := f.r.out.view == viewTable, e.Type == storage.Bookmark
	switch {
	case table && bookmark:
		return tableOf(f.r, nil, metav1.ListMeta{ResourceVersion: strconv.FormatInt(e.Revision, 10)}, false)
	case table:
		columns := f.columns
		f.columns = false
		return tableOf(f.r, []*storage.Object{e.Object}, metav1.ListMeta{ResourceVersion: strconv.FormatInt(e.Revision, 10)}, columns)
	case bookmark:
		o, err := storage.NewObject(storage.Key{}, e.Revision, f.bookmark(e))
		if err != nil {
			return nil, err
		}
		return f.r.out.object(f.r, o)
	}
	return f.r.out.object(f.r, e.Object)
}

// bookmark is an object of the kind with nothing but a resourceVersion (KEP-956), and the
// annotation that ends a streaming list (KEP-3157).
func (f *framer) bookmark(e *storage.Event) []byte {
	annotations := ""
	if e.InitialEventsEnd {
		annotations = `,"annotations":{"` + metav1.InitialEventsAnnotationKey + `":"true"}`
	}
	return fmt.Appendf(nil, `{"kind":%q,"apiVersion":%q,"metadata":{"resourceVersion":"%d"%s}}`,
		f.r.res.Kind, f.r.res.GroupVersion(), e.Revision, annotations)
}

// appendError adds an ERROR event.
func (f *framer) appendError(buf []byte, err error) []byte {
	status := statusOf(err, f.r)
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	doc, _ := json.Marshal(&status)
	if f.r.out.media == mediaProtobuf {
		doc, _ = wrapProtobuf("v1", "Status", &status)
	}
	buf, _ = f.frame(buf, "ERROR", doc)
	return buf
}

func (f *framer) frame(buf []byte, event string, doc []byte) ([]byte, error) {
	switch f.r.out.media {
	case mediaProtobuf:
		return appendProtobufEvent(buf, event, doc), nil
	case mediaCBOR:
		return appendCBOREvent(buf, event, doc)
	}
	buf = append(buf, `{"type":"`...)
	buf = append(buf, event...)
	buf = append(buf, `","object":`...)
	buf = append(buf, doc...)
	return append(buf, "}\n"...), nil
}

// appendProtobufEvent adds a metav1.WatchEvent with its length in front: the type in field
// 1, and in field 2 a runtime.RawExtension, which has the document in its own field 1.
func appendProtobufEvent(buf []byte, event string, doc []byte) []byte {
	start := len(buf)
	buf = transcode.AppendSized(append(buf, 0, 0, 0, 0), transcode.SizedTag(1), event)
	buf, at := transcode.Open(buf, transcode.SizedTag(2))
	buf = transcode.Close(transcode.AppendSized(buf, transcode.SizedTag(1), doc), at)
	binary.BigEndian.PutUint32(buf[start:], uint32(len(buf)-start-4))
	return buf
}
