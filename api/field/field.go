// Package field is a variant of apimachinery's package of the same name, for checks that hardly ever find an error: a
// Path is rendered only if there is an error to report. A Path refers to its parent instead of copying it, and its
// methods are so small that they are inlined and the path stays in the caller's stack frame. A valid object is thus
// checked without allocating.
//
// A path stays on the stack while it is passed to functions that are called by name. If it is stored in a variable
// with a longer lifetime, or passed to a function value, it escapes to the heap with all its parents. That is correct,
// but has no advantage (see Checked).
package field

import (
	"strconv"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

type (
	Error     = field.Error
	ErrorList = field.ErrorList
	// Plain is apimachinery's path.
	Plain = field.Path
)

// OmitValueType is a value that errors omit.
type OmitValueType = field.OmitValueType

// The kind of a Path's last step, unless it is the index of an element.
const (
	name = -1
	key  = -2
)

// MaxErrors limits the errors that are reported for one object. An object of some megabytes can have a million.
const MaxErrors = 100

// Enough reports whether there are MaxErrors errors. A loop over a client's input stops then.
func Enough(errs ErrorList) bool { return len(errs) >= MaxErrors }

// maxText limits the text of the errors in one response, in bytes: each error may contain a value of megabytes.
const maxText = 1 << 20

// Few returns the first errors that fit into a response: at most MaxErrors, with at most maxText bytes in total, but
// always the first one.
func Few(errs ErrorList) ErrorList {
	errs = errs[:min(len(errs), MaxErrors)]
	size := 0
	for i, err := range errs {
		if size += len(err.Field) + len(err.ErrorBody()); size > maxText {
			return errs[:max(i, 1)]
		}
	}
	return errs
}

// Path leads from the root of an object to a field. A nil Path is above the root.
type Path struct {
	parent *Path
	text   string
	more   []string // the names below text
	index  int      // of an element, or name or key
}

// NewPath returns a path from a root.
func NewPath(root string, more ...string) *Path { return &Path{text: root, more: more, index: name} }

// In returns a path that continues one of apimachinery's paths.
func In(p *Plain) *Path { return NewPath(p.String()) }

// Child returns the path of a field, or of a field below it.
func (p *Path) Child(field string, more ...string) *Path {
	return &Path{parent: p, text: field, more: more, index: name}
}

// Index returns the path of an element of a list.
func (p *Path) Index(i int) *Path { return &Path{parent: p, index: i} }

// Key returns the path of an element of a map.
func (p *Path) Key(k string) *Path { return &Path{parent: p, text: k, index: key} }

func (p *Path) String() string { return p.Plain().String() }

// Plain returns the path in apimachinery's type.
func (p *Path) Plain() *Plain {
	if p == nil {
		return nil
	}
	return field.NewPath(string(p.appendTo(nil)))
}

// appendTo copies the bytes. If the strings of a path escaped, the path itself would have to be on the heap.
func (p *Path) appendTo(b []byte) []byte {
	if p.parent != nil {
		b = p.parent.appendTo(b)
	}
	switch {
	case p.index >= 0:
		b = append(b, '[')
		return append(strconv.AppendInt(b, int64(p.index), 10), ']')
	case p.index == key || p.text == "":
		b = append(b, '[')
		b = append(b, p.text...)
		b = append(b, ']')
	default:
		if p.parent != nil {
			b = append(b, '.')
		}
		b = append(b, p.text...)
	}
	for _, text := range p.more {
		b = append(b, '.')
		b = append(b, text...)
	}
	return b
}

// Checked calls a check that is a function value. It passes a path only after the check has found an error without
// one.
func Checked[T any](check func(value T, path *Path) ErrorList, value T, path *Path) ErrorList {
	if len(check(value, nil)) == 0 {
		return nil
	}
	return check(value, NewPath(path.String()))
}

// Invalid and the functions below it return apimachinery's errors for a Path.
func Invalid(path *Path, value any, detail string) *Error {
	return field.Invalid(path.Plain(), value, detail)
}
func TypeInvalid(path *Path, value any, detail string) *Error {
	return field.TypeInvalid(path.Plain(), value, detail)
}
func Required(path *Path, detail string) *Error    { return field.Required(path.Plain(), detail) }
func Forbidden(path *Path, detail string) *Error   { return field.Forbidden(path.Plain(), detail) }
func Duplicate(path *Path, value any) *Error       { return field.Duplicate(path.Plain(), value) }
func NotFound(path *Path, value any) *Error        { return field.NotFound(path.Plain(), value) }
func InternalError(path *Path, err error) *Error   { return field.InternalError(path.Plain(), err) }
func TooMany(path *Path, actual, limit int) *Error { return field.TooMany(path.Plain(), actual, limit) }
func TooLong(path *Path, value any, limit int) *Error {
	return field.TooLong(path.Plain(), value, limit)
}

func NotSupported[T ~string](path *Path, value any, valid []T) *Error {
	return field.NotSupported(path.Plain(), value, valid)
}
