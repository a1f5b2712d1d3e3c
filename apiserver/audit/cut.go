package audit

import "bytes"

// withoutManagedFields returns an object, a list or a Table without the managedFields of its metadata, of its items'
// and of its rows' objects. doc is valid JSON without spaces, and its memory is used.
func withoutManagedFields(doc []byte) []byte {
	if !bytes.Contains(doc, []byte(`"managedFields"`)) {
		return doc
	}
	c := cutter{doc: doc}
	c.members(0, func(key []byte, from int) {
		switch string(key) {
		case `"metadata"`:
			c.metadata(from)
		case `"items"`:
			c.elements(from, c.item)
		case `"rows"`:
			c.elements(from, func(at int) { c.members(at, c.row) })
		}
	})
	return c.rest()
}

// cutter notes the parts of a document that are to be left out.
type cutter struct {
	doc  []byte
	cuts [][2]int // in their order
}

// item is an element of a list.
func (c *cutter) item(at int) {
	c.members(at, func(key []byte, from int) {
		if string(key) == `"metadata"` {
			c.metadata(from)
		}
	})
}

// row is a member of a row of a Table.
func (c *cutter) row(key []byte, from int) {
	if string(key) == `"object"` {
		c.item(from)
	}
}

// metadata cuts managedFields out, and one of the commas around it: the one before, unless it is the first member that
// is left.
func (c *cutter) metadata(at int) {
	kept := 0
	c.members(at, func(key []byte, from int) {
		if string(key) != `"managedFields"` {
			kept++
			return
		}
		start, end := from-len(key)-1, c.skip(from)
		if kept > 0 {
			start--
		} else if c.doc[end] == ',' {
			end++
		}
		c.cuts = append(c.cuts, [2]int{start, end})
	})
}

// members calls f for the members of the object at a place, with the key as it is written and the place of the value.
// There are none if it is no object.
func (c *cutter) members(at int, f func(key []byte, from int)) {
	if c.doc[at] != '{' {
		return
	}
	for at++; c.doc[at] != '}'; {
		colon := c.skip(at)
		f(c.doc[at:colon], colon+1)
		if at = c.skip(colon + 1); c.doc[at] == ',' {
			at++
		}
	}
}

// elements calls f for the elements of the array at a place. There are none if it is no array.
func (c *cutter) elements(at int, f func(at int)) {
	if c.doc[at] != '[' {
		return
	}
	for at++; c.doc[at] != ']'; {
		f(at)
		if at = c.skip(at); c.doc[at] == ',' {
			at++
		}
	}
}

// skip returns the place after the value at a place.
func (c *cutter) skip(at int) int {
	depth := 0
	for {
		switch c.doc[at] {
		case '"':
			at = c.skipString(at)
			if depth == 0 {
				return at
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return at + 1
			}
		default:
			if depth == 0 { // a number or a word
				for at < len(c.doc) && !bytes.ContainsRune([]byte(",]}"), rune(c.doc[at])) {
					at++
				}
				return at
			}
		}
		at++
	}
}

func (c *cutter) skipString(at int) int {
	for at++; c.doc[at] != '"'; at++ {
		if c.doc[at] == '\\' {
			at++
		}
	}
	return at + 1
}

// rest moves what is not cut together.
func (c *cutter) rest() []byte {
	if len(c.cuts) == 0 {
		return c.doc
	}
	kept := c.doc[:c.cuts[0][0]]
	for i, cut := range c.cuts {
		end := len(c.doc)
		if i+1 < len(c.cuts) {
			end = c.cuts[i+1][0]
		}
		kept = append(kept, c.doc[cut[1]:end]...)
	}
	return kept
}
