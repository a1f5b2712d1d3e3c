// Package limits keeps short texts from becoming large ones, or a panic: YAML whose aliases multiply, quantities whose
// exponents stand for a billion digits, regular expressions that repeat repetitions, and schedules. The API server and
// all of its clients check such a text here before they pass it to a library. The package has pure functions alone and
// imports nothing of this project.
package limits
