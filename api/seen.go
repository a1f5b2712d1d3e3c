package api

// fewElements is how many are looked through quicker than looked up.
const fewElements = 32

// seen has the keys of the elements of a long list that a loop has left behind.
type seen struct {
	known map[any]bool
	count int
}

// repeated reports whether v is among the elements before it. A loop asks it for one element after the other, with one
// seen that is empty at first. It takes no time to speak of for any length of list that a client may choose.
func repeated[T comparable](s *seen, before []T, v T) bool {
	return repeatedBy(s, before, v, func(v *T) T { return *v })
}

// repeatedBy is repeated for elements that are the same if their keys are.
func repeatedBy[T any, K comparable](s *seen, before []T, k K, key func(*T) K) bool {
	if len(before) < fewElements {
		return among(before, k, key)
	}
	if s.known == nil {
		s.known = map[any]bool{}
	}
	for ; s.count < len(before); s.count++ {
		s.known[key(&before[s.count])] = true
	}
	return s.known[k]
}

// members returns a function that reports whether a list has an element of a key. It takes no time to speak of either.
func members[T any, K comparable](list []T, key func(*T) K) func(K) bool {
	if len(list) < fewElements {
		return func(k K) bool { return among(list, k, key) }
	}
	known := make(map[K]bool, len(list))
	for i := range list {
		known[key(&list[i])] = true
	}
	return func(k K) bool { return known[k] }
}

// stringKey is the key of a string.
func stringKey(s *string) string { return *s }

func among[T any, K comparable](list []T, k K, key func(*T) K) bool {
	for i := range list {
		if key(&list[i]) == k {
			return true
		}
	}
	return false
}
