package limits

import (
	"bytes"
	"errors"
	"fmt"
	"math"

	"go.yaml.in/yaml/v3"
)

// MaxRequest limits the size of a request's body, in bytes, as in kube-apiserver. It is also the limit of a YAML
// document with its aliases expanded, and of the document that a JSON patch makes by copying.
const MaxRequest = 3 << 20

// Limits of documents with aliases.
const (
	// maxNesting limits the depth of the expanded document.
	maxNesting = 500
	// maxIndicators limits the characters that can begin a node. A node takes about 200 bytes of memory to
	// parse, and may have only two bytes of text.
	maxIndicators = 1 << 18
	// nodeSize is the size that a node counts in addition to its text.
	nodeSize = 8
)

// ExpandYAML returns the first document of a YAML text without aliases and anchors: each alias is replaced by a
// copy of its target. It returns an error if the document would exceed MaxRequest, which it computes without
// expanding the document. A text without aliases, including JSON, is returned unchanged and unchecked.
//
// The expanded document is on one line, so the line numbers in errors about it are meaningless.
func ExpandYAML(text []byte) (expanded []byte, err error) {
	if !mayAlias(text) {
		return text, nil
	}
	if countIndicators(text) > maxIndicators {
		return nil, fmt.Errorf("a document with aliases may have at most %d nodes", maxIndicators)
	}
	defer func() {
		if fault := recover(); fault != nil { // the parser panics on its own internal errors
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

// mayAlias reports whether the text may contain an anchor and an alias of it.
func mayAlias(text []byte) bool {
	if len(text) > 1 && (text[0] == 0xfe && text[1] == 0xff || text[0] == 0xff && text[1] == 0xfe) {
		return true // UTF-16: its bytes are not characters
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

// named yields the text after each mark that may be the name of an anchor.
func named(text []byte, mark byte) func(yield func(name []byte) bool) {
	return func(yield func(name []byte) bool) {
		for {
			start := bytes.IndexByte(text, mark)
			if start < 0 {
				return
			}
			text = text[start+1:]
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

// countIndicators counts the characters that can begin or end a node.
func countIndicators(text []byte) (n int) {
	for _, indicator := range []string{",", "\n", "\r", ":", "-", "?", "[", "{"} {
		n += bytes.Count(text, []byte(indicator))
	}
	return n
}

// extent is the size and depth of a node with everything below it expanded.
type extent struct{ size, depth int }

// measure holds the extents of anchored nodes. A node that is being measured has a depth of -1.
type measure map[*yaml.Node]extent

var (
	errTooLarge = fmt.Errorf("the document exceeds the limit of %d bytes when its aliases are expanded", MaxRequest)
	errTooDeep  = fmt.Errorf("the document is nested more than %d levels deep when its aliases are expanded",
		maxNesting)
)

// of measures a node. It visits each node once, even if several aliases refer to it.
func (m measure) of(n *yaml.Node) (extent, error) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if measured, ok := m[n]; ok {
		if measured.depth < 0 {
			return extent{}, errors.New("anchor '" + n.Anchor + "' value contains itself")
		}
		return measured, nil
	}
	if n.Anchor != "" {
		m[n] = extent{depth: -1}
	}
	total := extent{size: len(n.Value) + len(n.Tag) + nodeSize}
	for _, child := range n.Content {
		below, err := m.of(child)
		if err != nil {
			return extent{}, err
		}
		total.size += min(below.size, math.MaxInt-total.size)
		total.depth = max(total.depth, below.depth+1)
		if total.size > MaxRequest {
			return extent{}, errTooLarge
		}
		if total.depth > maxNesting {
			return extent{}, errTooDeep
		}
	}
	if n.Anchor != "" {
		m[n] = total
	}
	return total, nil
}

// flatten replaces aliases with their targets, and gives all nodes a style without indentation, in which the size
// of a node is that of its text.
func flatten(n *yaml.Node) {
	n.Anchor, n.HeadComment, n.LineComment, n.FootComment = "", "", "", ""
	switch {
	case n.Kind == yaml.ScalarNode && n.Style == 0 && n.Value == "":
		n.Value = "null" // it cannot be left out between braces
	case n.Kind != yaml.ScalarNode:
		n.Style = n.Style&yaml.TaggedStyle | yaml.FlowStyle
	}
	if n.Style&yaml.TaggedStyle == 0 {
		n.Tag = ""
	}
	for i, child := range n.Content {
		if child.Kind == yaml.AliasNode {
			n.Content[i] = child.Alias
			continue // the target is flattened at its own place in the document
		}
		flatten(child)
	}
}
