// Package defaults fills fields that a client left out.
package defaults

// Set sets *field to the value if it is zero.
func Set[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// SetPtr points *field to the value if it is nil.
func SetPtr[T any](field **T, value T) {
	if *field == nil {
		*field = &value
	}
}
