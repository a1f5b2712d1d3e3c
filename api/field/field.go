// Package field is apimachinery's package of the same name, for checks that nearly always find nothing: a Path is only
// written out where there is an error to tell. It holds where it came from in place of copies, and its methods are so small that
// the compiler puts a path into the stack frame of who asks for it. So a valid object is walked through without garbage.
//
// A path stays on the stack while it is handed down to functions known by name. Where it is kept in a variable of longer
// life, or handed to a function that is a value, it goes to the heap with all that is above it; nothing breaks, but nothing is
// won (see Checked).
package field

import (
	"strconv"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

type (
	Error     = field.Error
	ErrorList = field.ErrorList
	// Plain is apimachinery's own path.
	Plain = field.Path
)

// OmitValueType is a value that errors do not show.
type OmitValueType = field.OmitValueType

// What a Path's last step is, unless it is the number of an element.
const (
	name = -1
	key  = -2
)

// MaxErrors is how many errors are told of one object. One of megabytes can have a million.
const MaxErrors = 100

// Enough reports whether there are as many errors as are told. A loop over what a client has sent ends there.
func Enough(errs ErrorList) bool { return len(errs) >= MaxErrors }

// Path leads from the root of an object to a field. A nil Path is above the root.
type Path struct {
	parent *Path
	text   string
	more   []string // the names below text
	index  int      // of an element, or name or key
}

// NewPath is a path from a root.
func NewPath(root string, more ...string) *Path { return &Path{text: root, more: more, index: name} }

// In is a path from where one of apimachinery's has come to.
func In(p *Plain) *Path { return NewPath(p.String()) }

// Child leads to a field, and through it to more.
func (p *Path) Child(field string, more ...string) *Path {
	return &Path{parent: p, text: field, more: more, index: name}
}

// Index leads to an element of a list.
func (p *Path) Index(i int) *Path { return &Path{parent: p, index: i} }

// Key leads to an element of a map.
func (p *Path) Key(k string) *Path { return &Path{parent: p, text: k, index: key} }

func (p *Path) String() string { return p.Plain().String() }

// Plain is the path as apimachinery has it.
func (p *Path) Plain() *Plain {
	if p == nil {
		return nil
	}
	return field.NewPath(string(p.appendTo(nil)))
}

// appendTo copies the bytes: a path that gave its strings away would have to be on the heap.
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

// Checked runs a check that is a value, not a function known by name. It gets a path only where something is wrong.
func Checked[T any](check func(value T, path *Path) ErrorList, value T, path *Path) ErrorList {
	if len(check(value, nil)) == 0 {
		return nil
	}
	return check(value, NewPath(path.String()))
}

// Invalid and those below it are apimachinery's errors, told of a Path.
func Invalid(path *Path, value any, detail string) *Error {
	return field.Invalid(path.Plain(), value, detail)
}
func Required(path *Path, detail string) *Error   { return field.Required(path.Plain(), detail) }
func Forbidden(path *Path, detail string) *Error  { return field.Forbidden(path.Plain(), detail) }
func Duplicate(path *Path, value any) *Error      { return field.Duplicate(path.Plain(), value) }
func NotFound(path *Path, value any) *Error       { return field.NotFound(path.Plain(), value) }
func InternalError(path *Path, err error) *Error  { return field.InternalError(path.Plain(), err) }
func TooMany(path *Path, actual, most int) *Error { return field.TooMany(path.Plain(), actual, most) }
func TooLong(path *Path, value any, most int) *Error {
	return field.TooLong(path.Plain(), value, most)
}

func NotSupported[T ~string](path *Path, value any, valid []T) *Error {
	return field.NotSupported(path.Plain(), value, valid)
}
