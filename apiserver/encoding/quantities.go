package encoding

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"sync"

	"github.com/go-json-experiment/json/jsontext"
	"google.golang.org/protobuf/encoding/protowire"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/coxswain-dev/coxswain/internal/limits"
)

// A quantity with a huge exponent would block apimachinery's decoder practically forever. A quantity of 10^21 or
// more may lose its scale when it is encoded again. Therefore a document with a suspicious text is checked along
// its Go type before it is decoded. The text is an error only in the place of a quantity.

var quantityType = reflect.TypeFor[resource.Quantity]()

// CheckQuantities rejects JSON for the type that into points to if a quantity in it is too extreme to decode.
func CheckQuantities(doc []byte, into any) error { return checkQuantities(doc, into, checkQuantity) }

// CheckSentQuantities checks documents from clients. It also rejects quantities that could not be encoded again,
// with a *field.Error.
func CheckSentQuantities(doc []byte, into any) error {
	return checkQuantities(doc, into, checkSentQuantity)
}

// Invalid converts an error of CheckSentQuantities about a value to an API error. It returns nil for other errors:
// an object that cannot be decoded at all is a bad request.
func Invalid(err error, kind schema.GroupVersionKind, name string) error {
	var invalid *field.Error
	if !errors.As(err, &invalid) {
		return nil
	}
	return apierrors.NewInvalid(kind.GroupKind(), name, field.ErrorList{invalid})
}

func checkQuantities(doc []byte, into any, check func(text string, path *field.Path) error) error {
	if !limits.SuspectQuantity(doc) {
		return nil
	}
	w := quantityWalk{check, jsontext.NewDecoder(bytes.NewReader(doc), jsontext.AllowDuplicateNames(true),
		jsontext.AllowInvalidUTF8(true))}
	if err := w.value(reflect.TypeOf(into), nil); !errors.Is(err, errMalformed) {
		return err
	}
	return nil
}

type quantityWalk struct {
	check func(text string, path *field.Path) error
	from  *jsontext.Decoder
}

// errMalformed ends the check at malformed JSON, which the decoder reports later.
var errMalformed = errors.New("malformed JSON")

// value checks one value.
func (w quantityWalk) value(t reflect.Type, path *field.Path) error {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	kind := w.from.PeekKind()
	switch {
	case t == quantityType:
		text, err := w.from.ReadValue()
		if err != nil {
			return errMalformed
		}
		return w.check(strings.TrimSpace(strings.Trim(string(text), `"`)), path)
	case reflect.PointerTo(t).Implements(unmarshalerType):
	case kind == '{' && (t.Kind() == reflect.Struct || t.Kind() == reflect.Map):
		return w.object(t, path)
	case kind == '[' && t.Kind() == reflect.Slice:
		return w.list(t.Elem(), path)
	}
	return w.skip()
}

func (w quantityWalk) skip() error {
	if w.from.SkipValue() != nil {
		return errMalformed
	}
	return nil
}

// token reads the start or end of an object or list, or a name.
func (w quantityWalk) token() (jsontext.Token, error) {
	token, err := w.from.ReadToken()
	if err != nil {
		err = errMalformed
	}
	return token, err
}

func (w quantityWalk) object(t reflect.Type, path *field.Path) error {
	if _, err := w.token(); err != nil {
		return err
	}
	for w.from.PeekKind() == '"' {
		token, err := w.token()
		if err != nil {
			return err
		}
		name := token.String()
		switch {
		case t.Kind() == reflect.Map:
			err = w.value(t.Elem(), path.Key(name))
		case JSONFields(reflect.PointerTo(t))[name] != nil:
			index := JSONFields(reflect.PointerTo(t))[name]
			err = w.value(t.FieldByIndex(index).Type, path.Child(name))
		default:
			err = w.skip()
		}
		if err != nil {
			return err
		}
	}
	_, err := w.token()
	return err
}

func (w quantityWalk) list(t reflect.Type, path *field.Path) error {
	if _, err := w.token(); err != nil {
		return err
	}
	for i := 0; ; i++ {
		if kind := w.from.PeekKind(); kind == ']' || kind == 0 {
			break
		}
		if err := w.value(t, path.Index(i)); err != nil {
			return err
		}
	}
	_, err := w.token()
	return err
}

// checkQuantity checks a quantity. Its error quotes a long one only in part.
func checkQuantity(text string, path *field.Path) error {
	err := limits.CheckQuantity(text)
	if err == nil {
		return nil
	}
	if len(text) > 64 {
		text = text[:64] + "…"
	}
	return fmt.Errorf("%s: Invalid value: %q: %w", path, text, err)
}

func checkSentQuantity(text string, path *field.Path) error {
	if err := checkQuantity(text, path); err != nil {
		return err
	}
	if err := limits.CheckWritable(text); err != nil {
		return field.Invalid(path, text, err.Error())
	}
	return nil
}

// checkProtobufQuantities does the same as CheckSentQuantities for a protobuf message.
func checkProtobufQuantities(message []byte, into any) error {
	if !limits.SuspectQuantityIn(message) {
		return nil
	}
	return protobufQuantities(message, reflect.TypeOf(into).Elem(), nil)
}

func protobufQuantities(message []byte, t reflect.Type, path *field.Path) error {
	fields := protobufFields(t)
	seen := map[protowire.Number]int{}
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return nil
		}
		message = message[n:]
		if n = protowire.ConsumeFieldValue(number, kind, message); n < 0 {
			return nil
		}
		value := message[:n]
		message = message[n:]
		if kind != protowire.BytesType {
			continue
		}
		value, _ = protowire.ConsumeBytes(value)
		if t == quantityType {
			if number == 1 {
				if err := checkSentQuantity(string(value), path); err != nil {
					return err
				}
			}
			continue
		}
		f, ok := fields[number]
		if !ok {
			continue
		}
		child := path
		if f.name != "" {
			child = path.Child(f.name)
		}
		if f.list {
			child = child.Index(seen[number])
			seen[number]++
		}
		if f.entry {
			var key []byte
			if key, value = protobufEntry(value); value == nil {
				continue
			}
			child = child.Key(string(key))
		}
		if err := protobufQuantities(value, f.target, child); err != nil {
			return err
		}
	}
	return nil
}

// protobufEntry splits a map's entry. If the entry has several values, the last one counts, but all are decoded.
// Therefore it returns all of them, concatenated.
func protobufEntry(entry []byte) (key, values []byte) {
	for len(entry) > 0 {
		number, kind, n := protowire.ConsumeTag(entry)
		if n < 0 {
			return key, values
		}
		entry = entry[n:]
		if n = protowire.ConsumeFieldValue(number, kind, entry); n < 0 {
			return key, values
		}
		if value, m := protowire.ConsumeBytes(entry[:n]); kind == protowire.BytesType && m > 0 {
			if number == 1 {
				key = value
			} else if number == 2 {
				values = append(values, value...)
			}
		}
		entry = entry[n:]
	}
	return key, values
}

// protobufField is a field with a message, a list of messages or a map to messages.
type protobufField struct {
	name        string // in JSON; empty for an inline field
	target      reflect.Type
	list, entry bool
}

// knownProtobuf caches protobufFields by type.
var knownProtobuf sync.Map // of reflect.Type to map[protowire.Number]protobufField

// protobufFields returns the fields of a message that contain messages, by field number.
func protobufFields(t reflect.Type) map[protowire.Number]protobufField {
	if cached, ok := knownProtobuf.Load(t); ok {
		return cached.(map[protowire.Number]protobufField)
	}
	fields := map[protowire.Number]protobufField{}
	for i := 0; t.Kind() == reflect.Struct && i < t.NumField(); i++ {
		parts := strings.Split(t.Field(i).Tag.Get("protobuf"), ",")
		if len(parts) < 2 {
			continue
		}
		number, err := strconv.Atoi(parts[1])
		if err != nil {
			continue
		}
		f := protobufField{target: t.Field(i).Type}
		f.name, _, _ = strings.Cut(t.Field(i).Tag.Get("json"), ",")
		switch f.target.Kind() {
		case reflect.Slice:
			f.target, f.list = f.target.Elem(), true
		case reflect.Map:
			f.target, f.entry = f.target.Elem(), true
		}
		if f.target.Kind() == reflect.Pointer {
			f.target = f.target.Elem()
		}
		if f.target.Kind() == reflect.Struct {
			fields[protowire.Number(number)] = f
		}
	}
	knownProtobuf.Store(t, fields)
	return fields
}
