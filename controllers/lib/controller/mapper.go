package controller

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/restmapper"
	"k8s.io/utils/clock"
)

// rediscover is the least time between two discoveries, however many unknown kinds are looked up.
const rediscover = 10 * time.Second

// NewMapper returns a REST mapper that caches discovery. Reset drops the cache, at most every 10 s: objects may
// name any number of unknown kinds.
func NewMapper(d discovery.DiscoveryInterface, c clock.PassiveClock) meta.ResettableRESTMapper {
	return &mapper{ResettableRESTMapper: restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(d)),
		clock: c}
}

type mapper struct {
	meta.ResettableRESTMapper
	clock clock.PassiveClock
	mu    sync.Mutex
	last  time.Time
}

// Reset implements meta.ResettableRESTMapper.
func (m *mapper) Reset() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if now := m.clock.Now(); now.Sub(m.last) >= rediscover {
		m.last = now
		m.ResettableRESTMapper.Reset()
	}
}
