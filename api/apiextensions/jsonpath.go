package apiextensions

import (
	"errors"
	"fmt"
	"strings"

	"github.com/coxswain-dev/coxswain/api/field"
)

var errNoField = errors.New("does not refer to a valid field")

// find follows a JSON path of fields and map entries, such as ".spec.port" or "['a.b'].c", in a schema. brackets
// reports whether names may be quoted in brackets.
func (n *node) find(source string, brackets bool) (path *field.Path, found *node, err error) {
	rest := source
	next := func() (string, error) {
		if rest == "" {
			return "", errors.New("unexpected end of JSON path")
		}
		var token string
		token, rest = firstToken(rest)
		return token, nil
	}
	for rest != "" {
		token, _ := next()
		name := ""
		switch token {
		case "[":
			if !brackets {
				return nil, nil, errors.New("array notation is not allowed")
			}
			if token, err = next(); err != nil {
				return nil, nil, err
			}
			if name, err = unquoted(token); err != nil {
				return nil, nil, err
			}
		case ".":
			if name, err = next(); err != nil {
				return nil, nil, err
			}
		default:
			return nil, nil, fmt.Errorf("expected [ or . but got: %s", token)
		}
		if path, n, err = n.step(path, name); err != nil {
			return nil, nil, err
		}
		if token == "." {
			continue
		}
		if end, err := next(); err != nil {
			return nil, nil, err
		} else if end != "]" {
			return nil, nil, fmt.Errorf("expected ] but got %s", end)
		}
	}
	return path, n, nil
}

// step descends to a property or, in a map, to an entry. The node of a value without a schema is nil.
func (n *node) step(path *field.Path, name string) (*field.Path, *node, error) {
	switch {
	case n == nil:
	case len(n.properties) > 0:
		if p := n.property(name); p != nil {
			return path.Child(name), p, nil
		}
	case n.AdditionalProperties != nil:
		return path.Key(name), n.additional, nil
	}
	return nil, nil, errNoField
}

// firstToken splits the first token off a path: a dot, a bracket, a quoted string, or the text before the next of
// these.
func firstToken(path string) (token, rest string) {
	end := len(path)
	switch {
	case path[0] == '\'':
		for i := 1; i < len(path); i++ {
			if path[i] == '\'' && path[i-1] != '\\' {
				end = i + 1
				break
			}
		}
	case strings.ContainsRune(".[]", rune(path[0])):
		end = 1
	default:
		if i := strings.IndexAny(path, ".[]"); i >= 0 {
			end = i
		}
	}
	return path[:end], path[end:]
}

var escapes = map[byte]string{'a': "\a", 'b': "\b", 'f': "\f", 'n': "\n", 'r': "\r", 't': "\t", 'v': "\v", '\'': "'",
	'\\': "\\"}

func unquoted(token string) (string, error) {
	if len(token) < 2 || token[0] != '\'' || token[len(token)-1] != '\'' {
		return "", fmt.Errorf("expected single quoted string but got %s", token)
	}
	text := token[1 : len(token)-1]
	var plain strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] != '\\' || i+1 == len(text) || text[i+1] == '\n' {
			plain.WriteByte(text[i])
			continue
		}
		i++
		char, ok := escapes[text[i]]
		if !ok {
			return "", fmt.Errorf("invalid string literal: invalid escape char \\%c", text[i])
		}
		plain.WriteString(char)
	}
	return plain.String(), nil
}
