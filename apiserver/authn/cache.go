package authn

import (
	"crypto/sha256"
	"sync"
	"time"
)

// cache holds the results of token authentication, by the tokens' digests, so that memory contains no credential.
// It is bounded: an entry that was not used while the last size entries were added is dropped.
type cache[V any] struct {
	size int

	mu         sync.Mutex
	young, old map[digest]cached[V]
}

type digest = [sha256.Size]byte

func digestOf(token string) digest { return sha256.Sum256([]byte(token)) }

type cached[V any] struct {
	value V
	until time.Time
}

func newCache[V any](size int) *cache[V] {
	return &cache[V]{size: size, young: map[digest]cached[V]{}}
}

// get returns the cached value of a token, unless it has expired.
func (c *cache[V]) get(key digest, now time.Time) (value V, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.young[key]
	if !ok {
		if e, ok = c.old[key]; ok {
			c.keep(key, e)
		}
	}
	if !ok || !now.Before(e.until) {
		return value, false
	}
	return e.value, true
}

func (c *cache[V]) put(key digest, value V, until time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keep(key, cached[V]{value, until})
}

func (c *cache[V]) keep(key digest, e cached[V]) {
	if len(c.young) >= c.size {
		c.old, c.young = c.young, make(map[digest]cached[V], c.size)
	}
	c.young[key] = e
}
