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

// Kubernetes' decoder (sigs.k8s.io/json) defines what a document means, and the words of its errors. Most documents
// have no error and are read in one pass by quick; the others are read again by that decoder.

// DecodeStrict reads a document that a client sent into a new object. Fields that the schema does not know are dropped.
// strict lists them, and repeated ones; they do not make it fail. Nothing is defaulted.
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

// DecodeStored reads a stored document into a new object, in the version in which it is stored. It may have been stored
// by an older schema: what the schema no longer knows and malformed metadata are dropped, and defaults are set.
func (o *Object) DecodeStored(doc []byte) error {
	if !o.quick(doc) {
		if _, err := o.slow(doc, true); err != nil {
			return err
		}
	}
	if from := o.version.kind.version(o.APIVersion); from != nil {
		o.version = from
	} else if !o.version.kind.remote() { // where only apiVersion differs
		o.APIVersion = o.version.APIVersion()
	}
	return o.settle()
}

// settle makes a stored object what its schema says.
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

// coerce drops what the schema does not know, and malformed metadata of embedded objects.
func (o *Object) coerce(schema *structural.Schema) {
	schema.Prune(o.Fields, false)
	schema.DropNulls(o.Fields)
	_, _ = schema.Coerce(o.Fields, true, false) // which has no error to return where it drops what is malformed
}

// reset empties the object.
func (o *Object) reset() {
	o.TypeMeta, o.ObjectMeta, o.Fields = metav1.TypeMeta{}, metav1.ObjectMeta{}, map[string]any{}
}

// slow reads the document as Kubernetes does. lenient drops malformed metadata, which otherwise is an error.
func (o *Object) slow(doc []byte, lenient bool) (strict []error, err error) {
	o.reset()
	if strict, err = kjson.UnmarshalStrict(doc, &o.Fields); err != nil {
		return nil, err
	}
	if o.Fields == nil { // the document is null
		o.Fields = map[string]any{}
	}
	for _, member := range []struct {
		name string
		to   *string
	}{{"apiVersion", &o.APIVersion}, {"kind", &o.Kind}} {
		value, found := o.Fields[member.name]
		text, ok := value.(string)
		if found && !ok {
			return nil, fmt.Errorf(".%s accessor error: %v is of the type %T, expected string", member.name, value,
				value)
		}
		*member.to = text
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

// errSlow ends a quick decoding of something that Kubernetes' decoder may see otherwise.
var errSlow = errors.New("not a plain document")

// quick reads a document in one pass. If it has anything unusual, quick returns false and leaves the object half read.
func (o *Object) quick(doc []byte) bool {
	o.reset()
	from := jsontext.NewDecoder(bytes.NewBuffer(doc))
	if o.members(from) != nil {
		return false
	}
	_, err := from.ReadToken()
	return errors.Is(err, io.EOF) // anything behind the document is Kubernetes' decoder's to refuse
}

func (o *Object) members(from *jsontext.Decoder) error {
	if from.PeekKind() != '{' {
		return errSlow
	}
	if _, err := from.ReadToken(); err != nil {
		return err
	}
	for from.PeekKind() != '}' {
		name, err := from.ReadToken()
		if err != nil {
			return err
		}
		switch name := name.String(); name {
		case "apiVersion":
			err = text(from, &o.APIVersion)
		case "kind":
			err = text(from, &o.Kind)
		case "metadata":
			if from.PeekKind() != '{' {
				return errSlow
			}
			err = json.UnmarshalDecode(from, &o.ObjectMeta, json.RejectUnknownMembers(true))
		default:
			o.Fields[name], err = value(from)
		}
		if err != nil {
			return err
		}
	}
	_, err := from.ReadToken()
	return err
}

func text(from *jsontext.Decoder, to *string) error {
	if from.PeekKind() != '"' {
		return errSlow
	}
	token, err := from.ReadToken()
	*to = token.String()
	return err
}

// value reads any value: integers that fit as int64, other numbers as float64.
func value(from *jsontext.Decoder) (any, error) {
	token, err := from.ReadToken()
	if err != nil {
		return nil, err
	}
	switch token.Kind() {
	case '{':
		return object(from)
	case '[':
		return list(from)
	case '"':
		return token.String(), nil
	case '0':
		return number(token.String())
	case 't', 'f':
		return token.Bool(), nil
	}
	return nil, nil
}

func object(from *jsontext.Decoder) (any, error) {
	members := map[string]any{}
	for from.PeekKind() != '}' {
		token, err := from.ReadToken()
		if err != nil {
			return nil, err
		}
		name := token.String() // before the next token, which takes its place
		if members[name], err = value(from); err != nil {
			return nil, err
		}
	}
	_, err := from.ReadToken()
	return members, err
}

func list(from *jsontext.Decoder) (any, error) {
	elements := []any{}
	for from.PeekKind() != ']' {
		element, err := value(from)
		if err != nil {
			return nil, err
		}
		elements = append(elements, element)
	}
	_, err := from.ReadToken()
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
