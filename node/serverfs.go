package node

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/node/runtime"
)

// The parts of the kubelet's Summary about disks, networks and processes.
type (
	fsStats struct {
		Time           metav1.Time `json:"time"`
		AvailableBytes *uint64     `json:"availableBytes,omitempty"`
		CapacityBytes  *uint64     `json:"capacityBytes,omitempty"`
		UsedBytes      *uint64     `json:"usedBytes,omitempty"`
		InodesFree     *uint64     `json:"inodesFree,omitempty"`
		Inodes         *uint64     `json:"inodes,omitempty"`
		InodesUsed     *uint64     `json:"inodesUsed,omitempty"`
	}
	networkStats struct {
		Time metav1.Time `json:"time"`
		interfaceStats
		Interfaces []interfaceStats `json:"interfaces,omitempty"`
	}
	interfaceStats struct {
		Name     string  `json:"name"`
		RxBytes  *uint64 `json:"rxBytes,omitempty"`
		RxErrors *uint64 `json:"rxErrors,omitempty"`
		TxBytes  *uint64 `json:"txBytes,omitempty"`
		TxErrors *uint64 `json:"txErrors,omitempty"`
	}
	runtimeStats struct {
		ImageFs     *fsStats `json:"imageFs,omitempty"`
		ContainerFs *fsStats `json:"containerFs,omitempty"`
	}
	rlimitStats struct {
		Time                  metav1.Time `json:"time"`
		MaxPID                *int64      `json:"maxpid,omitempty"`
		NumOfRunningProcesses *int64      `json:"curproc,omitempty"`
	}
	processStats struct {
		ProcessCount *uint64 `json:"process_count,omitempty"`
	}
)

// count returns a number of bytes, or of other things, for a field that may be absent.
func count(n int64) *uint64 { return new(uint64(max(0, n))) }

// fsOf returns the state of a disk.
func fsOf(disk, inodes runtime.Supply, now time.Time) *fsStats {
	s := &fsStats{Time: metav1.NewTime(now)}
	if disk.Capacity > 0 {
		s.CapacityBytes, s.AvailableBytes = count(disk.Capacity), count(disk.Available)
		s.UsedBytes = count(disk.Capacity - disk.Available)
	}
	if inodes.Capacity > 0 {
		s.Inodes, s.InodesFree = count(inodes.Capacity), count(inodes.Available)
		s.InodesUsed = count(inodes.Capacity - inodes.Available)
	}
	return s
}

// taken returns the same disk with another usage, of a pod or a container.
func (s fsStats) taken(bytes int64) *fsStats {
	s.UsedBytes, s.InodesUsed = count(bytes), nil
	return &s
}

// addMachine adds disk, network and processes to the statistics of a node.
func (a *agent) addMachine(s *nodeStats, n *hostedNode, now time.Time) {
	supplies := a.observe(n)
	s.Fs = fsOf(supplies[nodefsAvailable], supplies[nodefsInodesFree], now)
	images := s.Fs.taken(0) // no runtime has images
	s.Runtime = &runtimeStats{ImageFs: images, ContainerFs: s.Fs}
	s.Network = a.networkOf(now)
	if pids := supplies[pidAvailable]; pids.Capacity > 0 {
		s.Rlimit = &rlimitStats{Time: metav1.NewTime(now), MaxPID: new(pids.Capacity),
			NumOfRunningProcesses: new(pids.Capacity - pids.Available)}
	}
}

// networkOf returns the traffic of a simulated node or pod, which has none; nil if the runtime runs programs, whose
// traffic is not counted.
func (a *agent) networkOf(now time.Time) *networkStats {
	if _, ok := a.runtime.(runtime.Machine); ok {
		return nil
	}
	eth0 := interfaceStats{Name: "eth0", RxBytes: count(0), RxErrors: count(0), TxBytes: count(0), TxErrors: count(0)}
	return &networkStats{Time: metav1.NewTime(now), interfaceStats: eth0, Interfaces: []interfaceStats{eth0}}
}

// addStorage adds the disk usage of a pod and its containers, on a node with the disk fs.
func (a *agent) addStorage(ctx context.Context, s *podStats, pod *corev1.Pod, fs *fsStats, now time.Time) {
	processes, disk := int64(0), int64(0)
	for i := range s.Containers {
		c := &s.Containers[i]
		c.Rootfs, c.Logs = fs.taken(c.usage.Disk), fs.taken(0)
		processes += c.usage.PIDs
		disk += c.usage.Disk
	}
	if _, ok := a.runtime.(runtime.Machine); ok {
		disk = a.podUse(ctx, pod, corev1.ResourceEphemeralStorage, now).taken
	}
	s.EphemeralStorage = fs.taken(disk)
	s.ProcessStats = &processStats{ProcessCount: count(processes)}
	s.Network = a.networkOf(now)
}
