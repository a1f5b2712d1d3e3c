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
			c.elements(from, func(offset int) { c.members(offset, c.row) })
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
func (c *cutter) item(offset int) {
	c.members(offset, func(key []byte, from int) {
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
func (c *cutter) metadata(offset int) {
	others := 0
	c.members(offset, func(key []byte, from int) {
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

// members calls f for each member of the object at the given offset, with the quoted key and the offset of the
// value. It skips a value that is not an object.
func (c *cutter) members(offset int, f func(key []byte, from int)) {
	if c.doc[offset] != '{' {
		return
	}
	for offset++; c.doc[offset] != '}'; {
		colon := c.skip(offset)
		f(c.doc[offset:colon], colon+1)
		if offset = c.skip(colon + 1); c.doc[offset] == ',' {
			offset++
		}
	}
}

// elements calls f with the offset of each element of the array at the given offset. It skips a value that is not an
// array.
func (c *cutter) elements(offset int, f func(offset int)) {
	if c.doc[offset] != '[' {
		return
	}
	for offset++; c.doc[offset] != ']'; {
		f(offset)
		if offset = c.skip(offset); c.doc[offset] == ',' {
			offset++
		}
	}
}

// skip returns the offset after the value at the given offset.
func (c *cutter) skip(offset int) int {
	depth := 0
	for {
		switch c.doc[offset] {
		case '"':
			offset = c.skipString(offset)
			if depth == 0 {
				return offset
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return offset + 1
			}
		default:
			if depth == 0 { // a number, true, false or null
				for offset < len(c.doc) && !bytes.ContainsRune([]byte(",]}"), rune(c.doc[offset])) {
					offset++
				}
				return offset
			}
		}
		offset++
	}
}

func (c *cutter) skipString(offset int) int {
	for offset++; c.doc[offset] != '"'; offset++ {
		if c.doc[offset] == '\\' {
			offset++
		}
	}
	return offset + 1
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
