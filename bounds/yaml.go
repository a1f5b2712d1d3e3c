package bounds

import (
	"bytes"
	"errors"
	"fmt"
	"math"

	"go.yaml.in/yaml/v3"
)

// MaxDocument is how large a YAML document may become when its aliases are expanded, in bytes: as much as a request's
// body may have.
const MaxDocument = 3 << 20

// Limits of documents with aliases.
const (
	// maxNesting is how deeply such a document may be nested when it is expanded.
	maxNesting = 500
	// maxIndicators is how many characters it may have that can begin a node. Each node takes about 200 bytes of
	// memory to look at, though two bytes of text may be all that there is of it.
	maxIndicators = 1 << 18
	// nodeSize is what a node counts besides its text.
	nodeSize = 8
)

// ExpandYAML returns the first document of a YAML text without aliases and anchors: each alias has given way to a copy
// of what it stands for. It is an error if that makes the document larger than MaxDocument; nothing is expanded to find
// out. A text without aliases, JSON too, is returned as it is and has not been checked in any way.
//
// The expanded document is on one line; numbers of lines in errors about it mean nothing.
func ExpandYAML(text []byte) (expanded []byte, err error) {
	if !mayAlias(text) {
		return text, nil
	}
	if countIndicators(text) > maxIndicators {
		return nil, fmt.Errorf("a document with aliases may have at most %d nodes", maxIndicators)
	}
	defer func() {
		if fault := recover(); fault != nil { // the parser panics where it finds itself in error
			expanded, err = nil, fmt.Errorf("parsing YAML: %v", fault)
		}
	}()
	var document yaml.Node
	if err := yaml.Unmarshal(text, &document); err != nil {
		return nil, err
	}
	if _, err := (measure{}).of(&document); err != nil {
		return nil, err
	}
	flatten(&document)
	return yaml.Marshal(&document)
}

// mayAlias reports whether there is something like an alias of something like an anchor in the text, wherever that is.
func mayAlias(text []byte) bool {
	if len(text) > 1 && (text[0] == 0xfe && text[1] == 0xff || text[0] == 0xff && text[1] == 0xfe) {
		return true // UTF-16, in which bytes are not characters
	}
	if bytes.IndexByte(text, '*') < 0 {
		return false
	}
	anchors := map[string]bool{}
	for name := range named(text, '&') {
		anchors[string(name)] = true
	}
	for name := range named(text, '*') {
		if anchors[string(name)] {
			return true
		}
	}
	return false
}

// named yields what follows each mark and may be the name of an anchor.
func named(text []byte, mark byte) func(yield func(name []byte) bool) {
	return func(yield func(name []byte) bool) {
		for {
			at := bytes.IndexByte(text, mark)
			if at < 0 {
				return
			}
			text = text[at+1:]
			end := 0
			for end < len(text) && nameByte(text[end]) {
				end++
			}
			if end > 0 && !yield(text[:end]) {
				return
			}
			text = text[end:]
		}
	}
}

func nameByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-'
}

// countIndicators counts the characters that can begin a node or end one.
func countIndicators(text []byte) (n int) {
	for _, indicator := range []string{",", "\n", "\r", ":", "-", "?", "[", "{"} {
		n += bytes.Count(text, []byte(indicator))
	}
	return n
}

// extent is what a node has become when all below it is expanded.
type extent struct{ size, depth int }

// measure has the extents of anchored nodes. A node that is being measured is there with a depth of -1.
type measure map[*yaml.Node]extent

var (
	errTooLarge = fmt.Errorf("the document exceeds the limit of %d bytes when its aliases are expanded", MaxDocument)
	errTooDeep  = fmt.Errorf("the document is nested more than %d levels deep when its aliases are expanded", maxNesting)
)

// of measures a node. Each node is visited once, however often it is an alias's target.
func (m measure) of(n *yaml.Node) (extent, error) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if known, ok := m[n]; ok {
		if known.depth < 0 {
			return extent{}, errors.New("anchor '" + n.Anchor + "' value contains itself")
		}
		return known, nil
	}
	if n.Anchor != "" {
		m[n] = extent{depth: -1}
	}
	is := extent{size: len(n.Value) + len(n.Tag) + nodeSize}
	for _, child := range n.Content {
		below, err := m.of(child)
		if err != nil {
			return extent{}, err
		}
		is.size += min(below.size, math.MaxInt-is.size)
		is.depth = max(is.depth, below.depth+1)
		if is.size > MaxDocument {
			return extent{}, errTooLarge
		}
		if is.depth > maxNesting {
			return extent{}, errTooDeep
		}
	}
	if n.Anchor != "" {
		m[n] = is
	}
	return is, nil
}

// flatten puts nodes in the place of their aliases, and everything into a form in which it is as large as its text:
// without indentation.
func flatten(n *yaml.Node) {
	n.Anchor, n.HeadComment, n.LineComment, n.FootComment = "", "", "", ""
	switch {
	case n.Kind == yaml.ScalarNode && n.Style == 0 && n.Value == "":
		n.Value = "null" // which cannot be left out between braces
	case n.Kind != yaml.ScalarNode:
		n.Style = n.Style&yaml.TaggedStyle | yaml.FlowStyle
	}
	if n.Style&yaml.TaggedStyle == 0 {
		n.Tag = ""
	}
	for i, child := range n.Content {
		if child.Kind == yaml.AliasNode {
			n.Content[i] = child.Alias
			continue // it stands, or stood, elsewhere in the document, where it is flattened
		}
		flatten(child)
	}
}
