package audit

import "bytes"

// withoutManagedFields removes the managedFields from the metadata of an object, a list and its items, or the
// objects in the rows of a Table. doc must be valid JSON without whitespace, and is modified.
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

// cutter collects the ranges of a document to remove.
type cutter struct {
	doc  []byte
	cuts [][2]int // in ascending order
}

// item processes an element of a list.
func (c *cutter) item(at int) {
	c.members(at, func(key []byte, from int) {
		if string(key) == `"metadata"` {
			c.metadata(from)
		}
	})
}

// row processes a member of a row of a Table.
func (c *cutter) row(key []byte, from int) {
	if string(key) == `"object"` {
		c.item(from)
	}
}

// metadata cuts managedFields together with one adjacent comma: the preceding one, or the following one if no
// member before it remains.
func (c *cutter) metadata(at int) {
	others := 0
	c.members(at, func(key []byte, from int) {
		if string(key) != `"managedFields"` {
			others++
			return
		}
		start, end := from-len(key)-1, c.skip(from)
		if others > 0 {
			start--
		} else if c.doc[end] == ',' {
			end++
		}
		c.cuts = append(c.cuts, [2]int{start, end})
	})
}

// members calls f for each member of the object at offset at, with the quoted key and the offset of the value. It
// skips a value that is not an object.
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

// elements calls f with the offset of each element of the array at offset at. It skips a value that is not an
// array.
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

// skip returns the offset after the value at offset at.
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
			if depth == 0 { // a number, true, false or null
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

// rest returns the document without the cut ranges, by moving the rest together in place.
func (c *cutter) rest() []byte {
	if len(c.cuts) == 0 {
		return c.doc
	}
	result := c.doc[:c.cuts[0][0]]
	for i, cut := range c.cuts {
		end := len(c.doc)
		if i+1 < len(c.cuts) {
			end = c.cuts[i+1][0]
		}
		result = append(result, c.doc[cut[1]:end]...)
	}
	return result
}
