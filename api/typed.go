package api

import (
	"github.com/coxswain-dev/coxswain/api/field"
)

// A registration's functions take Object; a kind's own functions take its Go type. The
// adapters below stand between the two. The server never hands a registration an object
// of another type, so the assertions cannot fail but by a programming error.

func with[T Object](f func(T)) func(Object) {
	return func(obj Object) { f(obj.(T)) }
}

func with2[T Object](f func(obj, old T)) func(obj, old Object) {
	return func(obj, old Object) { f(obj.(T), old.(T)) }
}

func checked[T Object](f func(T) field.ErrorList) func(Object) field.ErrorList {
	return func(obj Object) field.ErrorList { return f(obj.(T)) }
}

func checked2[T Object](f func(obj, old T) field.ErrorList) func(obj, old Object) field.ErrorList {
	return func(obj, old Object) field.ErrorList { return f(obj.(T), old.(T)) }
}

func row[T Object](f func(T) []any) func(Object) []any {
	return func(obj Object) []any { return f(obj.(T)) }
}

// warned2 hands f a nil old where the object is new.
func warned2[T Object](f func(obj, old T) []string) func(obj, old Object) []string {
	return func(obj, old Object) []string {
		was, _ := old.(T)
		return f(obj.(T), was)
	}
}

// statusOf describes a kind whose status is one struct field: at points to it.
func statusOf[T Object, S any](at func(T) *S, copied func(*S) *S) *Status {
	return &Status{
		Copy:  func(to, from Object) { *at(to.(T)) = *copied(at(from.(T))) },
		Reset: func(obj Object) { var zero S; *at(obj.(T)) = zero },
	}
}

// writtenBy has a write to /status take over what f says.
func (s *Status) writtenBy(f func(to, from Object)) *Status {
	s.Write = f
	return s
}

// checkedBy adds validation to a status.
func (s *Status) checkedBy(f func(obj, old Object) field.ErrorList) *Status {
	s.Validate = f
	return s
}

// permittedBy adds what hangs on who writes.
func (s *Status) permittedBy(p Permit) *Status {
	s.Permit = p
	return s
}

// withMetadata lets a status write change parts of the metadata.
func (s *Status) withMetadata(parts Metadata) *Status {
	s.Metadata = parts
	return s
}

// startingAs has a new object begin with the status that start sets.
func (s *Status) startingAs(start func(obj Object)) *Status {
	reset := s.Reset
	s.Reset = func(obj Object) { reset(obj); start(obj) }
	return s
}
