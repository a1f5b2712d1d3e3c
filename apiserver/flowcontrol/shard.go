package flowcontrol

// maxHand is the largest hand that validation accepts: it may use 60 bits of the hash at most.
const maxHand = 16

// hand holds the queues that a flow has been dealt, by shuffle sharding: any k of the n are equally
// likely, so that two flows hardly ever share all of theirs, and a flow that fills its own leaves room
// for others.
// https://kubernetes.io/docs/concepts/cluster-administration/flow-control/#fairness-and-queuing
type hand struct {
	cards [maxHand]int
	size  int
}

// deal takes size different cards from a deck of n, by the hash alone. size is at most n and maxHand.
func deal(hash uint64, n, size int) hand {
	h := hand{size: min(size, n, maxHand)}
	for i := range h.size {
		left := uint64(n - i)
		card := int(hash % left)
		hash /= left
		// card counts only the cards that are left: step over the dealt ones, which are sorted.
		place := 0
		for place < i && h.cards[place] <= card {
			card++
			place++
		}
		copy(h.cards[place+1:i+1], h.cards[place:i])
		h.cards[place] = card
	}
	return h
}

// scramble makes every bit of the outcome depend on every bit of x (the finalizer of SplitMix64).
func scramble(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}
