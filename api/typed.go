package api

import (
	"github.com/coxswain-dev/coxswain/api/field"
)

// A registration's functions take Object; a kind's own functions take its Go type. The functions below adapt one to
// the other. The server passes a registration only objects of its own type, so the type assertions fail only after a
// programming error.

func Typed[T Object](f func(T)) func(Object) {
	return func(obj Object) { f(obj.(T)) }
}

func Typed2[T Object](f func(obj, old T)) func(obj, old Object) {
	return func(obj, old Object) { f(obj.(T), old.(T)) }
}

func Check[T Object](f func(T) field.ErrorList) func(Object) field.ErrorList {
	return func(obj Object) field.ErrorList { return f(obj.(T)) }
}

func CheckUpdate[T Object](f func(obj, old T) field.ErrorList) func(obj, old Object) field.ErrorList {
	return func(obj, old Object) field.ErrorList { return f(obj.(T), old.(T)) }
}

func Row[T Object](f func(T) []any) func(Object) []any {
	return func(obj Object) []any { return f(obj.(T)) }
}

// Warn adapts f, which gets a nil old if the object is new.
func Warn[T Object](f func(obj, old T) []string) func(obj, old Object) []string {
	return func(obj, old Object) []string {
		was, _ := old.(T)
		return f(obj.(T), was)
	}
}

// StatusOf describes a status that is one struct field. field returns a pointer to it, copied a deep copy.
func StatusOf[T Object, S any](field func(T) *S, copied func(*S) *S) *Status {
	return &Status{
		Copy:  func(dst, src Object) { *field(dst.(T)) = *copied(field(src.(T))) },
		Reset: func(obj Object) { var zero S; *field(obj.(T)) = zero },
	}
}

// WrittenBy sets the function that copies the parts of a status that a write to /status may change.
func (s *Status) WrittenBy(f func(dst, src Object)) *Status {
	s.Write = f
	return s
}

// CheckedBy adds validation to a status.
func (s *Status) CheckedBy(f func(obj, old Object) field.ErrorList) *Status {
	s.Validate = f
	return s
}

// PermittedBy adds checks of the caller.
func (s *Status) PermittedBy(p Permit) *Status {
	s.Permit = p
	return s
}

// WithMetadata lets a write to /status change these parts of the metadata.
func (s *Status) WithMetadata(parts Metadata) *Status {
	s.Metadata = parts
	return s
}

// StartingAs sets the initial status of a new object.
func (s *Status) StartingAs(start func(obj Object)) *Status {
	reset := s.Reset
	s.Reset = func(obj Object) { reset(obj); start(obj) }
	return s
}
