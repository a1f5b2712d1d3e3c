// Package limits protects against short texts that expand to large ones, or cause a panic: YAML with aliases that
// multiply, quantities with exponents for a billion digits, regular expressions that repeat repetitions, and
// schedules. The API server and all of its clients check such a text here before they pass it to a library. The
// package contains only pure functions, and imports no other package of this project. yaml.go also has MaxRequest, the
// limit of a request's body.
package limits
