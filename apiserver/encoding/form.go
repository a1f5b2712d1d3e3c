package encoding

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/yaml"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/storage"
)

// Form determines how the objects of a kind are encoded for a client.
type Form struct {
	Output
	Resource *api.Resource
	// Clock is used to compute the ages in a Table.
	Clock clock.PassiveClock
	// IncludeObject determines the content of object in the rows of a Table.
	IncludeObject metav1.IncludeObjectPolicy
	// converted is set if the documents are converted already.
	converted bool
}

// Object encodes one document, as protobuf if the client asked for it and otherwise as JSON.
func (f *Form) Object(ctx context.Context, o *storage.Object) ([]byte, error) {
	if f.View == ViewTable {
		return f.table(ctx, []*storage.Object{o},
			metav1.ListMeta{ResourceVersion: strconv.FormatInt(o.Revision, 10)}, true)
	}
	if f.converts() {
		var err error
		if o, err = ConvertDocument(ctx, f.Resource, o); err != nil {
			return nil, err
		}
	}
	return f.encode(o)
}

// converts reports whether documents must be converted before they are encoded. Metadata is the same in all
// versions, except that another server may change labels and annotations.
func (f *Form) converts() bool {
	return !f.converted && (f.View != ViewPartial || f.Resource.WebhookConverted)
}

// encode encodes a document that is in the client's version, or its metadata.
func (f *Form) encode(o *storage.Object) ([]byte, error) {
	switch {
	case f.View == ViewPartial && f.Media == MediaProtobuf:
		return protobufPartialOf(o)
	case f.View == ViewPartial:
		return partialOf(o), nil
	}
	if f.Media == MediaProtobuf {
		return protobufOf(f.Resource, o)
	}
	return o.JSON, nil
}

// wanted returns an error if ctx has ended, because the client has left or the deadline has passed. It is called
// before encoding the nth of many documents, counted from 0.
func wanted(ctx context.Context, n int) error {
	if n%32 != 31 {
		return nil
	}
	return ctx.Err()
}

// Body converts encoded JSON to YAML or CBOR, indents it, or leaves it unchanged. A body of another media type is
// left unchanged. end is the newline to append to JSON that is not indented, as in kube-apiserver.
func (out Output) Body(body []byte) (converted []byte, end string, err error) {
	switch {
	case out.Media == MediaYAML:
		if body, err = yaml.JSONToYAML(body); err != nil {
			return nil, "", fmt.Errorf("converting to YAML: %w", err)
		}
	case out.Media == MediaCBOR:
		if body, err = cborOfJSON(body); err != nil {
			return nil, "", err
		}
	case out.Pretty && strings.HasPrefix(out.Media, MediaJSON):
		var b bytes.Buffer
		if err := json.Indent(&b, body, "", "  "); err != nil {
			return nil, "", fmt.Errorf("indenting JSON: %w", err)
		}
		body = b.Bytes()
	case strings.HasPrefix(out.Media, MediaJSON) && !out.Raw:
		end = "\n"
	}
	return body, end, nil
}

// Value encodes a value that is not a stored document as JSON or protobuf.
func (out Output) Value(apiVersion, kind string, value any) ([]byte, error) {
	if out.Media == MediaProtobuf {
		return wrapProtobuf(apiVersion, kind, value)
	}
	return json.Marshal(value)
}

// partialOf encodes the metadata of a document as PartialObjectMetadata.
func partialOf(o *storage.Object) []byte {
	const head = `{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":`
	m := o.Metadata()
	if o.Revision == 0 {
		m = metadataOf(o.JSON) // a dry run's document was not scanned
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
		panic("encoding: a document that was just encoded: " + err.Error())
	}
	return parts.Metadata
}
