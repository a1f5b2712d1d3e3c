package structural

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ruleFieldPath parses the fieldPath of a rule, a JSON path of fields and entries below the value: ".spec.port" or
// "['a.b'].c". It returns an error if the schema has no such field.
func (s *Schema) ruleFieldPath(source string) (path *field.Path, err error) {
	schema := s
	for rest := source; rest != ""; {
		var name string
		if name, rest, err = firstStep(rest); err != nil {
			return nil, err
		}
		below, ok := schema.field(name)
		if !ok || below == nil {
			return nil, errors.New("does not refer to a valid field")
		}
		if schema.properties != nil {
			path = path.Child(name)
		} else {
			path = path.Key(name)
		}
		schema = below
	}
	return path, nil
}

// quoted matches a step in brackets. A quote in it is escaped.
var quoted = regexp.MustCompile(`^\['((?:[^'\\]|\\.)*)'\]`)

var escapeSequences = map[byte]string{'a': "\a", 'b': "\b", 'f': "\f", 'n': "\n", 'r': "\r", 't': "\t", 'v': "\v",
	'\'': "'", '\\': "\\"}

// firstStep splits the first step off a path.
func firstStep(path string) (name, rest string, err error) {
	switch path[0] {
	case '.':
		end := strings.IndexAny(path[1:], ".[]") + 1
		if end == 0 {
			end = len(path)
		}
		if end == 1 {
			return "", "", errors.New("unexpected end of JSON path")
		}
		return path[1:end], path[end:], nil
	case '[':
		match := quoted.FindStringSubmatch(path)
		if match == nil {
			return "", "", fmt.Errorf("expected single quoted string but got %s", path[1:])
		}
		name, err := unescaped(match[1])
		return name, path[len(match[0]):], err
	}
	return "", "", fmt.Errorf("expected [ or . but got: %s", path)
}

func unescaped(text string) (string, error) {
	var plain strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] != '\\' {
			plain.WriteByte(text[i])
			continue
		}
		i++ // quoted ensures that a character follows each backslash
		char, ok := escapeSequences[text[i]]
		if !ok {
			return "", fmt.Errorf("invalid string literal: invalid escape char \\%c", text[i])
		}
		plain.WriteString(char)
	}
	return plain.String(), nil
}
