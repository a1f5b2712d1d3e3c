package api

import "slices"

// seen has the elements of a long list that a loop has left behind.
type seen struct {
	known map[any]bool
	count int
}

// fewElements is how many are looked through quicker than looked up.
const fewElements = 32

// repeated reports whether v is among the elements before it. A loop asks it for one element after the other, with one
// seen that is empty at first. It takes no time to speak of for any length of list that a client may choose.
func repeated[T comparable](s *seen, before []T, v T) bool {
	if len(before) < fewElements {
		return slices.Contains(before, v)
	}
	if s.known == nil {
		s.known = map[any]bool{}
	}
	for ; s.count < len(before); s.count++ {
		s.known[before[s.count]] = true
	}
	return s.known[v]
}
