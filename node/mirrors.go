package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coxswain-dev/coxswain/node/runtime"
	"github.com/coxswain-dev/coxswain/node/simulated"
)

// mirrors is the record of the mirror pods that the agent has made from its folder. A pod is static if it is
// in this record; the annotation alone proves nothing, because anybody who may create pods can write it. The
// record is kept on disk, one file for each node, so that the next agent takes its static pods up. It is safe
// for concurrent use.
type mirrors struct {
	dir string // "" keeps the record in memory alone

	mu     sync.Mutex
	made   map[string]map[string]mirror // by the names of nodes and of pods: "namespace/name"
	making map[types.NamespacedName]bool
}

// mirror is a pod as the agent made it.
type mirror struct {
	UID types.UID `json:"uid"`
	// Manifest is the digest of the file that it is made from.
	Manifest string `json:"manifest"`
	// Simulation is the digest of what its annotations say of its simulation. Users may change annotations later.
	Simulation string `json:"simulation"`
}

// isMirror reports that a pod claims to be static.
func isMirror(pod *corev1.Pod) bool {
	_, claims := pod.Annotations[corev1.MirrorPodAnnotationKey]
	return claims
}

func newMirrors(dataDir string, nodes []string) (*mirrors, error) {
	m := &mirrors{made: map[string]map[string]mirror{}, making: map[types.NamespacedName]bool{}}
	if dataDir == "" {
		return m, nil
	}
	m.dir = filepath.Join(dataDir, "static-pods")
	for _, node := range nodes {
		text, err := os.ReadFile(m.path(node))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		of := map[string]mirror{}
		if err == nil {
			err = json.Unmarshal(text, &of)
		}
		if err != nil {
			return m, fmt.Errorf("record of static pods: %w", err)
		}
		m.made[node] = of
	}
	return m, nil
}

func (m *mirrors) path(node string) string { return filepath.Join(m.dir, node+".json") }

// of returns the record of a pod, if the agent made it.
func (m *mirrors) of(pod *corev1.Pod) (mirror, bool) {
	if !isMirror(pod) {
		return mirror{}, false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	made, ok := m.made[pod.Spec.NodeName][pod.Namespace+"/"+pod.Name]
	return made, ok && made.UID == pod.UID
}

// knows reports whether there is a pod of that name in the record, whatever its UID.
func (m *mirrors) knows(node, key string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, ok := m.made[node][key]
	return ok
}

// make creates a mirror pod and records it. While the creation is under way, pending holds for pods of its name.
func (m *mirrors) make(pod *corev1.Pod, create func() (*corev1.Pod, error)) error {
	name := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
	m.mu.Lock()
	m.making[name] = true
	m.mu.Unlock()
	made, err := create()
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.making, name)
	if err != nil {
		return err
	}
	node := pod.Spec.NodeName
	if m.made[node] == nil {
		m.made[node] = map[string]mirror{}
	}
	m.made[node][pod.Namespace+"/"+pod.Name] = mirror{made.UID, pod.Annotations[annotationHash], simulation(made)}
	return m.save(node)
}

// pending reports that a pod of this name is being created, so that it is not yet known whether it is the agent's.
func (m *mirrors) pending(pod *corev1.Pod) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.making[types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}]
}

// keep drops what is recorded of a node's other pods.
func (m *mirrors) keep(node string, keys map[string]bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	before := len(m.made[node])
	maps.DeleteFunc(m.made[node], func(key string, _ mirror) bool { return !keys[key] })
	if len(m.made[node]) == before {
		return nil
	}
	return m.save(node)
}

// save writes the record of a node. m is locked.
func (m *mirrors) save(node string) error {
	if m.dir == "" {
		return nil
	}
	text, err := json.Marshal(m.made[node])
	if err != nil {
		return err
	}
	if err := os.MkdirAll(m.dir, 0o700); err != nil {
		return fmt.Errorf("record of static pods: %w", err)
	}
	fresh := m.path(node) + ".new"
	if err := os.WriteFile(fresh, text, 0o600); err != nil {
		return fmt.Errorf("record of static pods: %w", err)
	}
	return os.Rename(fresh, m.path(node))
}

// simulation is the digest of what a pod's annotations say of its simulation.
func simulation(pod *corev1.Pod) string {
	var all []string
	for key, value := range pod.Annotations {
		if strings.HasPrefix(key, simulated.AnnotationPrefix) {
			all = append(all, key, value)
		}
	}
	if len(all) == 0 {
		return ""
	}
	slices.Sort(all)
	return runtime.Digest(all...)[:32]
}

// isStatic reports that a pod is what this agent made of its folder, and as it made it.
func (a *agent) isStatic(pod *corev1.Pod) bool {
	made, ok := a.mirrors.of(pod)
	return ok && made.Simulation == simulation(pod)
}

// isForged reports that a pod claims to be static, and that the agent has not made it. Such a pod does not run.
func (a *agent) isForged(pod *corev1.Pod) bool {
	if !isMirror(pod) {
		return false
	}
	_, made := a.mirrors.of(pod)
	return !made
}
