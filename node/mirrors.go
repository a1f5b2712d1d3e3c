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

// mirrors is the record of the mirror pods that the agent has created from its folder. A pod is static if it is in this
// record. The annotation alone is no proof, because any user who may create pods can set it. The record is on disk, one
// file for each node, so that the next agent adopts its static pods. It is safe for concurrent use.
type mirrors struct {
	dir string // "" keeps the record in memory only

	mu     sync.Mutex                    // guards the fields below
	made   map[string]map[string]mirror  // by node, then by pod: "namespace/name"
	making map[types.NamespacedName]bool // pods that are being created
}

// mirror describes a pod as the agent has created it.
type mirror struct {
	UID types.UID `json:"uid"`
	// Manifest is the digest of the pod's manifest.
	Manifest string `json:"manifest"`
	// Simulation is the digest of the pod's simulation annotations, which users may change later.
	Simulation string `json:"simulation"`
}

// isMirror reports whether a pod claims to be static.
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
		record := map[string]mirror{}
		if err == nil {
			err = json.Unmarshal(text, &record)
		}
		if err != nil {
			return m, fmt.Errorf("read record of static pods: %w", err)
		}
		m.made[node] = record
	}
	return m, nil
}

func (m *mirrors) path(node string) string { return filepath.Join(m.dir, node+".json") }

// record returns the record of a pod, if the agent has created it.
func (m *mirrors) record(pod *corev1.Pod) (mirror, bool) {
	if !isMirror(pod) {
		return mirror{}, false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	made, ok := m.made[pod.Spec.NodeName][pod.Namespace+"/"+pod.Name]
	return made, ok && made.UID == pod.UID
}

// knows reports whether the record has a pod of that name, with any UID.
func (m *mirrors) knows(node, key string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, ok := m.made[node][key]
	return ok
}

// make creates a mirror pod and records it. During the creation, pending is true for pods of its name.
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

// pending reports whether a pod of this name is being created. Until then it is unknown whether the pod is the agent's.
func (m *mirrors) pending(pod *corev1.Pod) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.making[types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}]
}

// keep drops the records of a node's pods that are not in keys.
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

// save writes the record of a node. The caller holds mu.
func (m *mirrors) save(node string) error {
	if m.dir == "" {
		return nil
	}
	text, err := json.Marshal(m.made[node])
	if err != nil {
		return err
	}
	if err := os.MkdirAll(m.dir, 0o700); err != nil {
		return fmt.Errorf("write record of static pods: %w", err)
	}
	fresh := m.path(node) + ".new"
	if err := os.WriteFile(fresh, text, 0o600); err != nil {
		return fmt.Errorf("write record of static pods: %w", err)
	}
	return os.Rename(fresh, m.path(node))
}

// simulation returns the digest of a pod's simulation annotations; "" if it has none.
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

// isStatic reports whether this agent has created the pod from its folder, with the present simulation annotations.
func (a *agent) isStatic(pod *corev1.Pod) bool {
	made, ok := a.mirrors.record(pod)
	return ok && made.Simulation == simulation(pod)
}

// isForged reports whether a pod claims to be static although the agent has not created it. Such a pod does not run.
func (a *agent) isForged(pod *corev1.Pod) bool {
	if !isMirror(pod) {
		return false
	}
	_, made := a.mirrors.record(pod)
	return !made
}
