package node

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/coxswain-dev/coxswain/internal/limits"
)

// EvictionOptions define when a Node is under pressure and pods are evicted. Signals, thresholds and rules are the
// kubelet's: https://kubernetes.io/docs/concepts/scheduling-eviction/node-pressure-eviction/
type EvictionOptions struct {
	// Hard and Soft are thresholds, "memory.available<100Mi" or "nodefs.available<10%". Below a hard one pods are
	// evicted at once, below a soft one after its grace period. A nil Hard is DefaultEvictionHard of the runtime; an
	// empty one has no thresholds.
	Hard, Soft []string
	// SoftGracePeriod is how long a soft threshold must be crossed, "memory.available=1m30s". Each soft
	// threshold needs one.
	SoftGracePeriod []string
	// MinimumReclaim is the amount above a threshold that must be free before the threshold is no longer crossed,
	// "memory.available=500Mi".
	MinimumReclaim []string
	// MaxPodGracePeriod limits the grace period of pods that a soft threshold evicts.
	MaxPodGracePeriod time.Duration
	// PressureTransitionPeriod is how long a Node's condition stays True after the last sign of pressure; 0 is 5
	// minutes.
	PressureTransitionPeriod time.Duration
	// StorageEvery is the interval of comparisons of pods' disk usage with their own limits; 0 is 10 seconds.
	StorageEvery time.Duration
}

// DefaultEvictionHard returns the kubelet's hard thresholds. For the process runtime they do not include the disk: it
// is a developer's disk, and the agent cannot free any space by removing images.
func DefaultEvictionHard(runtime string) []string {
	if runtime == Process {
		return []string{"memory.available<100Mi"}
	}
	return []string{"memory.available<100Mi", "nodefs.available<10%", "nodefs.inodesFree<5%", "imagefs.available<15%"}
}

// signal is the name of an observed resource of a node.
type signal string

const (
	memoryAvailable  signal = "memory.available"
	nodefsAvailable  signal = "nodefs.available"
	nodefsInodesFree signal = "nodefs.inodesFree"
	pidAvailable     signal = "pid.available"
)

const (
	resourceInodes corev1.ResourceName = "inodes"
	resourcePIDs   corev1.ResourceName = "pids"
)

// signals are all signals of the kubelet, with the resource of pods that they concern. The signals of image file
// systems are accepted but never observed, because there are no images.
var signals = map[signal]corev1.ResourceName{
	memoryAvailable:          corev1.ResourceMemory,
	nodefsAvailable:          corev1.ResourceEphemeralStorage,
	nodefsInodesFree:         resourceInodes,
	pidAvailable:             resourcePIDs,
	"imagefs.available":      corev1.ResourceEphemeralStorage,
	"imagefs.inodesFree":     resourceInodes,
	"containerfs.available":  corev1.ResourceEphemeralStorage,
	"containerfs.inodesFree": resourceInodes,
}

// level is a quantity, or a fraction of the capacity.
type level struct {
	quantity int64
	part     float64 // between 0 and 1; 0 means that quantity applies
}

func (a level) value(capacity int64) int64 {
	if a.part > 0 {
		return int64(float64(capacity) * a.part)
	}
	return a.quantity
}

// threshold is the minimum of a signal.
type threshold struct {
	signal  signal
	least   level
	hard    bool
	grace   time.Duration // of a soft threshold
	reclaim level
}

// thresholds parses the options.
func (o *EvictionOptions) thresholds() ([]threshold, error) {
	grace, err := pairs("--eviction-soft-grace-period", "=", o.SoftGracePeriod, time.ParseDuration)
	if err != nil {
		return nil, err
	}
	reclaim, err := pairs("--eviction-minimum-reclaim", "=", o.MinimumReclaim, parseAmount)
	if err != nil {
		return nil, err
	}
	var all []threshold
	for _, kind := range []struct {
		flag string
		hard bool
		list []string
	}{{"--eviction-hard", true, o.Hard}, {"--eviction-soft", false, o.Soft}} {
		least, err := pairs(kind.flag, "<", kind.list, parseAmount)
		if err != nil {
			return nil, err
		}
		for _, s := range kind.list {
			name := signal(strings.TrimSpace(before(s, "<")))
			t := threshold{signal: name, least: least[name], hard: kind.hard, reclaim: reclaim[name]}
			if least[name] == (level{}) {
				continue // 0 and 0% disable the threshold
			}
			if period, ok := grace[name]; !kind.hard && !ok {
				return nil, fmt.Errorf("--eviction-soft-grace-period: grace period must be specified for the soft "+
					"eviction threshold %s", name)
			} else if !kind.hard {
				t.grace = period
			}
			all = append(all, t)
		}
	}
	return all, nil
}

func before(s, separator string) string {
	s, _, _ = strings.Cut(s, separator)
	return s
}

// pairs parses a list of signals with values.
func pairs[T any](flag, separator string, statements []string, parse func(string) (T, error)) (map[signal]T, error) {
	all := map[signal]T{}
	for _, s := range statements {
		name, value, separated := strings.Cut(s, separator)
		key := signal(strings.TrimSpace(name))
		if _, ok := signals[key]; !separated || !ok {
			return nil, fmt.Errorf("%s: %q is not SIGNAL%sVALUE with a signal such as memory.available, "+
				"nodefs.available or pid.available", flag, s, separator)
		}
		if _, twice := all[key]; twice {
			return nil, fmt.Errorf("%s: %s is there twice", flag, key)
		}
		v, err := parse(strings.TrimSpace(value))
		if err != nil {
			return nil, fmt.Errorf("%s: %q: %w", flag, s, err)
		}
		all[key] = v
	}
	return all, nil
}

func parseAmount(s string) (level, error) {
	if number, ok := strings.CutSuffix(s, "%"); ok {
		percent, err := strconv.ParseFloat(number, 64)
		if err != nil || percent < 0 || percent >= 100 {
			return level{}, fmt.Errorf("must be a percentage of 0 or more and less than 100")
		}
		return level{part: percent / 100}, nil
	}
	q, err := limits.ParseQuantity(s)
	if err == nil && q.Sign() < 0 {
		err = fmt.Errorf("must not be negative")
	}
	return level{quantity: q.Value()}, err
}
