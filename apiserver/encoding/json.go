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

// Kubernetes' decoder (sigs.k8s.io/json) defines what JSON means here: the known names, those that may not be
// repeated, the form of numbers, and the words of errors. The next encoding/json, part of the standard library
// from Go 1.27 on, takes a third of the time and is at least as strict: a document that it accepts has the same
// meaning to both, and one that it rejects is decoded again by Kubernetes' decoder.
// TestJSON_WhatIsQuickIsTheSame compares the two.

// Unmarshal decodes JSON into any value as Kubernetes does: names are case-sensitive, integers stay integers.
func Unmarshal(doc []byte, into any) error {
	return kjson.UnmarshalCaseSensitivePreserveInts(doc, into)
}

// Schemaed is implemented by objects that are decoded by a schema which is known only at run time.
type Schemaed interface {
	// DecodeStrict decodes what a client sent. strict lists the fields that are unknown or repeated.
	DecodeStrict(doc []byte) (strict []error, err error)
	// DecodeStored decodes a stored document, which may be older than the schema.
	DecodeStored(doc []byte) error
}

// UnmarshalNew is Unmarshal into a zero struct.
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

// UnmarshalStrict decodes JSON into a zero struct. strict lists the fields that are unknown or repeated; they do not
// make it fail. An error may be one for Invalid.
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

// UnmarshalKnown decodes JSON on top of a struct. If a field is unknown, repeated or wrong it returns false and leaves
// the struct half decoded.
func UnmarshalKnown(doc []byte, into any) bool {
	return CheckSentQuantities(doc, into) == nil && json.Unmarshal(doc, into, known) == nil
}

var known = json.RejectUnknownMembers(true)

func empty(pointer any) { reflect.ValueOf(pointer).Elem().SetZero() }

// Marshal appends an object's JSON to a buffer, byte for byte as encoding/json writes it.
func Marshal(to *bytes.Buffer, obj any) error {
	return json.MarshalWrite(to, obj, jsonv1.DefaultOptionsV1())
}

// maxDepth is how deeply JSON in a request may be nested.
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

// PlainString reports whether a string stands in JSON as it is, even in JSON that is safe within HTML.
func PlainString(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case c < ' ', c >= 0x7f, c == '"', c == '\\', c == '<', c == '>', c == '&':
			return false
		}
	}
	return true
}

// JoinErrors is the text of several strict errors in one.
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
