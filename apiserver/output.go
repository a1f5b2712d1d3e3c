package apiserver

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"sigs.k8s.io/yaml"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/storage"
)

// writeObject answers with one document in the agreed form. For JSON the bytes go out as
// they are.
func (s *Server) writeObject(w http.ResponseWriter, r *request, code int, o *storage.Object) error {
	addWarnings(w.Header(), r.warnings)
	body, err := r.out.object(r, o)
	if err != nil {
		return err
	}
	return s.writeBody(w, r.out, code, body)
}

// Limits to what a client is warned of in one response, in runes, as in kube-apiserver.
const (
	maxWarning  = 256
	maxWarnings = 4096
)

// addWarnings adds RFC 7234 headers. What a client sent may be quoted in them, at any length.
func addWarnings(h http.Header, warnings []string) {
	total := 0
	for _, text := range warnings {
		text = strings.Map(printable, text)
		if runes := []rune(text); len(runes) > maxWarning {
			text = string(runes[:maxWarning])
		}
		if total += utf8.RuneCountInString(text); total > maxWarnings {
			return
		}
		if header, err := utilnet.NewWarningHeader(299, "-", text); err == nil {
			h.Add("Warning", header)
		}
	}
}

// printable replaces what a header cannot carry.
func printable(r rune) rune {
	if unicode.IsControl(r) {
		return ' '
	}
	return r
}

// object makes what was asked for of one document. The result still is JSON, unless
// protobuf was asked for.
func (f output) object(r *request, o *storage.Object) ([]byte, error) {
	switch {
	case f.view == viewTable:
		return tableOf(r, []*storage.Object{o}, metav1.ListMeta{ResourceVersion: strconv.FormatInt(o.Revision, 10)}, true)
	case f.view == viewPartial && f.media == mediaProtobuf:
		return protobufPartialOf(o)
	case f.view == viewPartial:
		return partialOf(o), nil
	}
	o, err := shown(r.res, o)
	if err != nil {
		return nil, err
	}
	if f.media == mediaProtobuf {
		return protobufOf(r, o)
	}
	return o.JSON, nil
}

// wanted is asked before the nth of many documents, from 0, is made into something else: it is an error that nobody waits for it,
// because the client has left or the request's deadline has passed.
func (r *request) wanted(n int) error {
	if n%32 != 31 {
		return nil
	}
	return r.Context().Err()
}

// writeBody sends JSON as JSON, YAML or CBOR, and anything else as it is. JSON ends with a newline unless it is indented, as
// kube-apiserver writes it.
func (s *Server) writeBody(w http.ResponseWriter, out output, code int, body []byte) error {
	end := ""
	switch {
	case out.media == mediaYAML:
		converted, err := yaml.JSONToYAML(body)
		if err != nil {
			return fmt.Errorf("making YAML: %w", err)
		}
		body = converted
	case out.media == mediaCBOR:
		converted, err := cborOfJSON(body)
		if err != nil {
			return err
		}
		body = converted
	case out.pretty && strings.HasPrefix(out.media, mediaJSON):
		var b bytes.Buffer
		if err := json.Indent(&b, body, "", "  "); err != nil {
			return fmt.Errorf("indenting JSON: %w", err)
		}
		body = b.Bytes()
	case strings.HasPrefix(out.media, mediaJSON) && !out.raw:
		end = "\n"
	}
	h := w.Header()
	h.Set("Content-Type", out.media)
	h.Set("Content-Length", strconv.Itoa(len(body)+len(end)))
	h.Set("Cache-Control", "no-cache, private")
	to, done := compressed(w, out, len(body))
	defer done()
	w.WriteHeader(code)
	_, _ = to.Write(body) // the client has gone; there is nobody to tell
	if end != "" {
		_, _ = io.WriteString(to, end)
	}
	return nil
}

// writeJSON answers with a value that is not a stored document.
func (s *Server) writeJSON(w http.ResponseWriter, r *request, code int, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encoding the response: %w", err)
	}
	return s.writeBody(w, output{media: mediaJSON, pretty: r.out.pretty || wantsPretty(r), gzip: acceptsGzip(r.Request)}, code, body)
}

// writeList answers with a list. In JSON the items' bytes are sent one after the other;
// nothing is decoded, nothing is copied into one piece.
func (s *Server) writeList(w http.ResponseWriter, r *request, l *storage.List) error {
	m := metav1.ListMeta{ResourceVersion: strconv.FormatInt(l.Revision, 10), Continue: l.Continue, RemainingItemCount: l.Remaining}
	if r.out.view == viewTable {
		body, err := tableOf(r, l.Items, m, true)
		if err != nil {
			return err
		}
		return s.writeBody(w, r.out, http.StatusOK, body)
	}
	kind, version, docs, err := r.out.documents(r, l.Items)
	if err != nil {
		return err
	}
	if r.out.media == mediaProtobuf {
		body, err := protobufListOf(r, docs, m)
		if err != nil {
			return err
		}
		return s.writeBody(w, r.out, http.StatusOK, body)
	}
	head, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("encoding list metadata: %w", err)
	}
	head = fmt.Appendf(nil, `{"kind":%q,"apiVersion":%q,"metadata":%s,"items":[`, kind, version, head)
	if r.out.media != mediaJSON || r.out.pretty {
		return s.writeBody(w, r.out, http.StatusOK, joinList(head, docs))
	}
	return s.sendList(w, r, head, docs)
}

// documents are the items of a list as the view has them, and the list's kind and version.
func (f output) documents(r *request, items []*storage.Object) (kind, version string, docs [][]byte, err error) {
	docs = make([][]byte, len(items))
	if f.view == viewPartial {
		for i, o := range items {
			docs[i] = partialOf(o)
		}
		return "PartialObjectMetadataList", "meta.k8s.io/v1", docs, nil
	}
	for i, o := range items {
		if err = r.wanted(i); err != nil {
			return "", "", nil, err
		}
		if o, err = shown(r.res, o); err != nil {
			return "", "", nil, err
		}
		docs[i] = o.JSON
	}
	return r.res.Kind + "List", r.res.GroupVersion().String(), docs, nil
}

// sendList writes the list's parts without putting them together first. A long one leaves in
// few system calls: TLS by itself makes one of each of its records of 16 KiB.
func (s *Server) sendList(w http.ResponseWriter, r *request, head []byte, docs [][]byte) error {
	const tail = "]}\n"
	size := len(head) + len(tail) + max(len(docs)-1, 0)
	for _, d := range docs {
		size += len(d)
	}
	h := w.Header()
	h.Set("Content-Type", mediaJSON)
	h.Set("Content-Length", strconv.Itoa(size))
	h.Set("Cache-Control", "no-cache, private")
	to, done := compressed(w, r.out, size)
	defer done()
	w.WriteHeader(http.StatusOK)
	const chunk = 64 << 10
	if size > chunk {
		connection := corkOf(r.Request)
		connection.cork()
		defer connection.uncork()
	}
	buf := append(make([]byte, 0, min(size, chunk+4<<10)), head...)
	for i, d := range docs {
		if i > 0 {
			buf = append(buf, ',')
		}
		if len(buf)+len(d) > chunk {
			if _, err := to.Write(buf); err != nil {
				return nil // the client has gone
			}
			buf = buf[:0]
		}
		buf = append(buf, d...)
	}
	_, _ = to.Write(append(buf, tail...))
	return nil
}

func joinList(head []byte, docs [][]byte) []byte {
	body := append(head, bytes.Join(docs, []byte{','})...)
	return append(body, "]}"...)
}

// partialOf makes a PartialObjectMetadata: the document's metadata and nothing else.
func partialOf(o *storage.Object) []byte {
	const head = `{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":`
	m := o.Metadata()
	if o.Revision == 0 {
		m = metadataOf(o.JSON) // a dry run's, which was not scanned
	}
	body := make([]byte, 0, len(head)+len(m)+1)
	body = append(append(body, head...), m...)
	return append(body, '}')
}

func metadataOf(doc []byte) []byte {
	var parts struct {
		Metadata json.RawMessage `json:"metadata"`
	}
	if err := json.Unmarshal(doc, &parts); err != nil {
		panic("apiserver: a document that was just encoded: " + err.Error())
	}
	return parts.Metadata
}

// decode reads a stored document into the Go type of the version that is stored.
func decode(res *api.Resource, o *storage.Object) (api.Object, error) {
	obj := res.Stored().New()
	if err := unmarshalObject(o.JSON, obj); err != nil {
		return nil, fmt.Errorf("decoding a stored %s: %w", res.Kind, err)
	}
	return obj, nil
}
