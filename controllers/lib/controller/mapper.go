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

// rediscover is how long a Mapper keeps what it has learned, however often it is asked for what it does not know.
const rediscover = 10 * time.Second

// NewMapper returns a mapper of kinds that remembers discovery. Reset makes it ask again, at most every 10 s:
// objects can name unknown kinds without end.
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
