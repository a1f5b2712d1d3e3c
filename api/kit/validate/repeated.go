package validate

// fewElements is the length up to which a scan is faster than a map.
const fewElements = 32

// Seen has the keys of the elements that a loop over a long list has passed.
type Seen struct {
	known map[any]bool
	count int
}

// Repeated reports whether v is among the elements before it. A loop calls it for each element in turn,
// with one Seen that is empty at first. The loop takes linear time, whatever length a client chooses.
func Repeated[T comparable](s *Seen, before []T, v T) bool {
	return RepeatedBy(s, before, v, func(v *T) T { return *v })
}

// RepeatedBy is Repeated for elements that are compared by a key.
func RepeatedBy[T any, K comparable](s *Seen, before []T, k K, key func(*T) K) bool {
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

// Members returns a function that reports whether a list has an element with a key, in constant time.
func Members[T any, K comparable](list []T, key func(*T) K) func(K) bool {
	if len(list) < fewElements {
		return func(k K) bool { return among(list, k, key) }
	}
	known := make(map[K]bool, len(list))
	for i := range list {
		known[key(&list[i])] = true
	}
	return func(k K) bool { return known[k] }
}

// StringKey is a string's own key.
func StringKey(s *string) string { return *s }

func among[T any, K comparable](list []T, k K, key func(*T) K) bool {
	for i := range list {
		if key(&list[i]) == k {
			return true
		}
	}
	return false
}
