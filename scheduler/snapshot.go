package scheduler

import (
	"maps"

	corev1 "k8s.io/api/core/v1"

	"github.com/coxswain-dev/coxswain/scheduler/framework"
)

// snapshot is the copy of the cache that one scheduling cycle reads, so that informers can update the
// cache meanwhile. update copies only the nodes that have changed since the last cycle. It belongs to
// the scheduling loop.
type snapshot struct {
	nodes        map[string]*framework.NodeInfo
	order        []*framework.NodeInfo
	affinity     []*framework.NodeInfo
	antiAffinity []*framework.NodeInfo
	images       map[string]int
	copied       int // by the last update, for tests
}

func newSnapshot() *snapshot { return &snapshot{nodes: map[string]*framework.NodeInfo{}} }

// Nodes implements framework.Snapshot.
func (s *snapshot) Nodes() []*framework.NodeInfo { return s.order }

// Node implements framework.Snapshot.
func (s *snapshot) Node(name string) *framework.NodeInfo { return s.nodes[name] }

// NodesWithAffinity implements framework.Snapshot.
func (s *snapshot) NodesWithAffinity() []*framework.NodeInfo { return s.affinity }

// NodesWithRequiredAntiAffinity implements framework.Snapshot.
func (s *snapshot) NodesWithRequiredAntiAffinity() []*framework.NodeInfo { return s.antiAffinity }

// ImageNodes implements framework.Snapshot.
func (s *snapshot) ImageNodes(name string) int { return s.images[name] }

// update makes the snapshot equal to the cache. The caller holds the cache's lock.
func (s *snapshot) update(c *cache) {
	var reorder, relist bool
	s.copied = len(c.changed)
	for _, n := range c.changed {
		n.dirty = false
		old := s.nodes[n.name]
		if n.position < 0 {
			// Otherwise a node of the same name was added after it.
			if c.nodes[n.name] == nil || c.nodes[n.name].position < 0 {
				reorder = reorder || old != nil
				delete(s.nodes, n.name)
			}
			continue
		}
		if old == nil {
			s.nodes[n.name] = n.info.Clone()
			reorder = true
			continue
		}
		reorder = reorder || zone(old.Node) != zone(n.info.Node)
		relist = relist || len(old.PodsWithAffinity) == 0 != (len(n.info.PodsWithAffinity) == 0) ||
			len(old.PodsWithRequiredAntiAffinity) == 0 != (len(n.info.PodsWithRequiredAntiAffinity) == 0)
		old.CopyFrom(n.info)
	}
	clear(c.changed)
	c.changed = c.changed[:0]
	if c.imagesChanged {
		c.imagesChanged = false
		s.images = maps.Clone(c.images)
	}
	if reorder {
		s.arrange(c)
	}
	if reorder || relist {
		s.listAffinity()
	}
}

// arrange orders the nodes so that neighbours are in different zones: a search that ends early has then seen nodes
// of all zones.
func (s *snapshot) arrange(c *cache) {
	var zones [][2]string
	byZone := map[[2]string][]*framework.NodeInfo{}
	for _, n := range c.order {
		z := zone(n.info.Node)
		if byZone[z] == nil {
			zones = append(zones, z)
		}
		byZone[z] = append(byZone[z], s.nodes[n.name])
	}
	s.order = make([]*framework.NodeInfo, 0, len(c.order))
	for i := 0; len(s.order) < len(c.order); i++ {
		for _, z := range zones {
			if i < len(byZone[z]) {
				s.order = append(s.order, byZone[z][i])
			}
		}
	}
}

func (s *snapshot) listAffinity() {
	s.affinity, s.antiAffinity = nil, nil
	for _, n := range s.order {
		if len(n.PodsWithAffinity) > 0 {
			s.affinity = append(s.affinity, n)
		}
		if len(n.PodsWithRequiredAntiAffinity) > 0 {
			s.antiAffinity = append(s.antiAffinity, n)
		}
	}
}

// zone returns the region and zone of a node.
func zone(node *corev1.Node) [2]string {
	return [2]string{node.Labels[corev1.LabelTopologyRegion], node.Labels[corev1.LabelTopologyZone]}
}
