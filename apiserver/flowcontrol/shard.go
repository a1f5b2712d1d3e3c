package flowcontrol

// maxHand is the largest hand that validation lets pass: 60 bits of hash are all that it may use.
const maxHand = 16

// hand is the queues that a flow has been dealt, by shuffle sharding: each k of the n are as likely as any
// other, so that two flows hardly ever have all of theirs in common, and a flow that fills its own
// leaves others room.
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
		// card counts among those that are left: step over the ones that are dealt, which are sorted.
		at := 0
		for at < i && h.cards[at] <= card {
			card++
			at++
		}
		copy(h.cards[at+1:i+1], h.cards[at:i])
		h.cards[at] = card
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
