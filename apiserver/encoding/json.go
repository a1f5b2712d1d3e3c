package encoding

import (
	"bytes"
	"fmt"
	"reflect"
	"strings"

	"github.com/go-json-experiment/json"
	jsonv1 "github.com/go-json-experiment/json/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	kjson "sigs.k8s.io/json"
)

// Kubernetes' decoder (sigs.k8s.io/json) defines the semantics of JSON here: the known names, duplicate names, the
// format of numbers and the error messages. The new encoding/json, part of the standard library since Go 1.27,
// takes a third of the time and is at least as strict. A document that it accepts has the same meaning to both; a
// document that it rejects is decoded again by Kubernetes' decoder. TestJSON_FastPathMatchesKubernetes compares the
// two.

// Unmarshal decodes JSON as Kubernetes does: names are case-sensitive and integers stay integers.
func Unmarshal(doc []byte, into any) error {
	return kjson.UnmarshalCaseSensitivePreserveInts(doc, into)
}

// Schemaed is implemented by objects whose schema is known only at run time.
type Schemaed interface {
	// DecodeStrict decodes a client's document. strict lists unknown and duplicate fields.
	DecodeStrict(doc []byte) (strict []error, err error)
	// DecodeStored decodes a stored document, which may be older than the schema.
	DecodeStored(doc []byte) error
}

// UnmarshalNew does the same as Unmarshal, but into must point to a zero struct.
func UnmarshalNew(doc []byte, into any) error {
	if s, ok := into.(Schemaed); ok {
		return s.DecodeStored(doc)
	}
	if err := CheckQuantities(doc, into); err != nil {
		return err
	}
	if json.Unmarshal(doc, into) == nil {
		return nil
	}
	empty(into)
	return Unmarshal(doc, into)
}

// UnmarshalStrict decodes JSON into a zero struct. strict lists unknown and duplicate fields, which are not errors.
// Use Invalid to convert err.
func UnmarshalStrict(doc []byte, into any) (strict []error, err error) {
	if s, ok := into.(Schemaed); ok {
		return s.DecodeStrict(doc)
	}
	if err := CheckSentQuantities(doc, into); err != nil {
		return nil, err
	}
	if UnmarshalKnown(doc, into) {
		return nil, nil
	}
	empty(into)
	return kjson.UnmarshalStrict(doc, into)
}

// UnmarshalKnown decodes JSON on top of a struct. It returns false if a field is unknown, duplicate or invalid; the
// struct is then partially decoded.
func UnmarshalKnown(doc []byte, into any) bool {
	return CheckSentQuantities(doc, into) == nil && json.Unmarshal(doc, into, rejectUnknown) == nil
}

var rejectUnknown = json.RejectUnknownMembers(true)

func empty(pointer any) { reflect.ValueOf(pointer).Elem().SetZero() }

// Marshal appends an object's JSON to a buffer, with the same bytes as encoding/json.
func Marshal(to *bytes.Buffer, obj any) error {
	return json.MarshalWrite(to, obj, jsonv1.DefaultOptionsV1())
}

// maxDepth limits the nesting of JSON in requests.
const maxDepth = 500

// CheckDepth rejects JSON that is nested too deeply for the decoders.
func CheckDepth(body []byte) error {
	depth, inString := 0, false
	for i := 0; i < len(body); i++ {
		switch c := body[i]; {
		case inString:
			if c == '\\' {
				i++
			} else if c == '"' {
				inString = false
			}
		case c == '"':
			inString = true
		case c == '{' || c == '[':
			if depth++; depth > maxDepth {
				return apierrors.NewBadRequest(fmt.Sprintf("the body is nested more than %d levels deep", maxDepth))
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return nil
}

// PlainString reports whether a string needs no escapes in JSON, even in HTML-safe JSON.
func PlainString(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case c < ' ', c >= 0x7f, c == '"', c == '\\', c == '<', c == '>', c == '&':
			return false
		}
	}
	return true
}

// JoinErrors joins the texts of several strict errors.
func JoinErrors(errs []error) string {
	var b strings.Builder
	for i, err := range errs {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(err.Error())
	}
	return b.String()
}
