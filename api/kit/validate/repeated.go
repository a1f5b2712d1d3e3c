package validate

// fewElements is the maximum length for a scan. Beyond it, a map is faster.
const fewElements = 32

// Seen has the keys of the elements that a loop over a long list has already visited.
type Seen struct {
	keys  map[any]bool
	count int
}

// Repeated reports whether v equals one of the elements before it. A loop calls it for each element in turn, with the
// same, initially empty Seen. The loop takes linear time for a list of any length.
func Repeated[T comparable](s *Seen, before []T, v T) bool {
	return RepeatedBy(s, before, v, func(v *T) T { return *v })
}

// RepeatedBy is Repeated for elements that are compared by a key.
func RepeatedBy[T any, K comparable](s *Seen, before []T, k K, key func(*T) K) bool {
	if len(before) < fewElements {
		return among(before, k, key)
	}
	if s.keys == nil {
		s.keys = map[any]bool{}
	}
	for ; s.count < len(before); s.count++ {
		s.keys[key(&before[s.count])] = true
	}
	return s.keys[k]
}

// Members returns a function that reports whether a list has an element with a key, in constant time.
func Members[T any, K comparable](list []T, key func(*T) K) func(K) bool {
	if len(list) < fewElements {
		return func(k K) bool { return among(list, k, key) }
	}
	keys := make(map[K]bool, len(list))
	for i := range list {
		keys[key(&list[i])] = true
	}
	return func(k K) bool { return keys[k] }
}

// StringKey returns the string itself as its key.
func StringKey(s *string) string { return *s }

func among[T any, K comparable](list []T, k K, key func(*T) K) bool {
	for i := range list {
		if key(&list[i]) == k {
			return true
		}
	}
	return false
}
