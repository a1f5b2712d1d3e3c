package customresource

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"

	"github.com/coxswain-dev/coxswain/api/structural"
)

// Kubernetes' decoder (sigs.k8s.io/json) defines the meaning of a document and the texts of its errors. Most documents
// have no error and are decoded in one pass by quick. The others are decoded again by that decoder.

// DecodeStrict decodes a client's document into a new object. It drops fields that the schema does not declare. strict
// lists these fields, and repeated ones; they do not make it fail. It sets no defaults.
func (o *Object) DecodeStrict(doc []byte) (strict []error, err error) {
	if !o.quick(doc) {
		if strict, err = o.slow(doc, false); err != nil {
			return strict, err
		}
	}
	schema, err := o.version.Schema()
	if err != nil {
		return nil, err
	}
	unknown := schema.Prune(o.Fields, true)
	schema.DropNulls(o.Fields)
	more, fault := schema.Coerce(o.Fields, false, true)
	if fault != nil {
		return nil, fault
	}
	for _, path := range append(unknown, more...) {
		strict = append(strict, fmt.Errorf("unknown field %q", path))
	}
	return strict, nil
}

// DecodeStored decodes a stored document into a new object, in the version that it is stored in. An older schema may
// have been in force then: fields that the schema no longer declares and malformed metadata are dropped, and defaults
// are set.
func (o *Object) DecodeStored(doc []byte) error {
	if !o.quick(doc) {
		if _, err := o.slow(doc, true); err != nil {
			return err
		}
	}
	if source := o.version.kind.version(o.APIVersion); source != nil {
		o.version = source
	} else if !o.version.kind.remote() { // only apiVersion differs between versions
		o.APIVersion = o.version.APIVersion()
	}
	return o.settle()
}

// settle adapts a stored object to the schema.
func (o *Object) settle() error {
	schema, err := o.version.Schema()
	if err != nil {
		return err
	}
	o.coerce(schema)
	schema.Default(o.Fields)
	o.Generation = max(o.Generation, 1)
	return nil
}

// coerce drops fields that the schema does not declare, and malformed metadata of embedded objects.
func (o *Object) coerce(schema *structural.Schema) {
	schema.Prune(o.Fields, false)
	schema.DropNulls(o.Fields)
	_, _ = schema.Coerce(o.Fields, true, false) // it returns no error if it drops malformed metadata
}

// reset empties the object.
func (o *Object) reset() {
	o.TypeMeta, o.ObjectMeta, o.Fields = metav1.TypeMeta{}, metav1.ObjectMeta{}, map[string]any{}
}

// slow decodes the document with Kubernetes' decoder. lenient drops malformed metadata, which is an error otherwise.
func (o *Object) slow(doc []byte, lenient bool) (strict []error, err error) {
	o.reset()
	if strict, err = kjson.UnmarshalStrict(doc, &o.Fields); err != nil {
		return nil, err
	}
	if o.Fields == nil { // the document is null
		o.Fields = map[string]any{}
	}
	for _, member := range []struct {
		name   string
		target *string
	}{{"apiVersion", &o.APIVersion}, {"kind", &o.Kind}} {
		value, found := o.Fields[member.name]
		text, ok := value.(string)
		if found && !ok {
			return nil, fmt.Errorf(".%s accessor error: %v is of the type %T, expected string", member.name, value,
				value)
		}
		*member.target = text
		delete(o.Fields, member.name)
	}
	metadata, found := o.Fields["metadata"]
	if !found {
		return strict, nil
	}
	delete(o.Fields, "metadata")
	meta, unknown, err := structural.ObjectMeta(metadata, lenient)
	if err != nil {
		return nil, err
	}
	o.ObjectMeta = *meta
	for _, name := range unknown {
		strict = append(strict, fmt.Errorf("unknown field %q", "metadata."+name))
	}
	return strict, nil
}

// errSlow stops a quick decoding at a document that Kubernetes' decoder might read differently.
var errSlow = errors.New("not a plain document")

// quick decodes a document in one pass. If it finds anything unusual, it returns false, and the object is incomplete.
func (o *Object) quick(doc []byte) bool {
	o.reset()
	decoder := jsontext.NewDecoder(bytes.NewBuffer(doc))
	if o.members(decoder) != nil {
		return false
	}
	_, err := decoder.ReadToken()
	return errors.Is(err, io.EOF) // slow rejects data after the document
}

func (o *Object) members(decoder *jsontext.Decoder) error {
	if decoder.PeekKind() != '{' {
		return errSlow
	}
	if _, err := decoder.ReadToken(); err != nil {
		return err
	}
	for decoder.PeekKind() != '}' {
		name, err := decoder.ReadToken()
		if err != nil {
			return err
		}
		switch name := name.String(); name {
		case "apiVersion":
			err = text(decoder, &o.APIVersion)
		case "kind":
			err = text(decoder, &o.Kind)
		case "metadata":
			if decoder.PeekKind() != '{' {
				return errSlow
			}
			err = json.UnmarshalDecode(decoder, &o.ObjectMeta, json.RejectUnknownMembers(true))
		default:
			o.Fields[name], err = value(decoder)
		}
		if err != nil {
			return err
		}
	}
	_, err := decoder.ReadToken()
	return err
}

func text(decoder *jsontext.Decoder, target *string) error {
	if decoder.PeekKind() != '"' {
		return errSlow
	}
	token, err := decoder.ReadToken()
	*target = token.String()
	return err
}

// value decodes any value: integers that fit as int64, other numbers as float64.
func value(decoder *jsontext.Decoder) (any, error) {
	token, err := decoder.ReadToken()
	if err != nil {
		return nil, err
	}
	switch token.Kind() {
	case '{':
		return object(decoder)
	case '[':
		return list(decoder)
	case '"':
		return token.String(), nil
	case '0':
		return number(token.String())
	case 't', 'f':
		return token.Bool(), nil
	}
	return nil, nil
}

func object(decoder *jsontext.Decoder) (any, error) {
	members := map[string]any{}
	for decoder.PeekKind() != '}' {
		token, err := decoder.ReadToken()
		if err != nil {
			return nil, err
		}
		name := token.String() // token is valid only until the next one is read
		if members[name], err = value(decoder); err != nil {
			return nil, err
		}
	}
	_, err := decoder.ReadToken()
	return members, err
}

func list(decoder *jsontext.Decoder) (any, error) {
	elements := []any{}
	for decoder.PeekKind() != ']' {
		element, err := value(decoder)
		if err != nil {
			return nil, err
		}
		elements = append(elements, element)
	}
	_, err := decoder.ReadToken()
	return elements, err
}

func number(literal string) (any, error) {
	if !strings.ContainsAny(literal, ".eE") {
		if n, err := strconv.ParseInt(literal, 10, 64); err == nil {
			return n, nil
		}
	}
	return strconv.ParseFloat(literal, 64)
}
