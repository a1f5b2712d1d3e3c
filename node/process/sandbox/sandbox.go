// Package sandbox runs containers as processes of the host. The kernel isolates them from each other without an image:
// by namespaces, a cgroup, and a view of the host's files for each container.
//
// Input: a Config for each pod and a Container for each run of a container, as plain data. Output: log files in CRI's
// format, exit records, and files for the streams of running commands. The package does not know the API.
//
//	agent ──starts──► shim (one per pod: network, UTS and IPC namespaces)
//	  ▲                 │ starts, waits, writes logs and exit records
//	  └──unix socket────┤
//	                    └──► init ──becomes──► the container's command (PID and mount namespaces, cgroup)
//
// The shim runs the agent's own binary and outlives the agent: the next agent finds its socket in the pod's folder. If
// the shim is killed, the kernel kills its containers.
//
//	sandbox.go   descriptions of pods and containers
//	pod.go       the agent's side: start, adopt, talk, remove
//	protocol.go  messages between agent and shim
//	program.go   the agent's binary, from which shims are started; finding containers' commands
//	shim.go      the shim; exec.go: commands beside a container's own
//	pids.go      containers that share a PID namespace
//	init.go      from a new process to the container's command
//	pause.go     the replacement of a missing command
//	seccomp.go   the system calls that a container may make
//	mounts.go    a container's files; masked.go: files that it must not see
//	network.go   pods on the router of this machine
//	cgroup.go    limits and usage, v1 and v2; owncgroup.go: a container's view of its cgroup
//	log.go       log files, written and read
package sandbox

import (
	"errors"
	"time"
)

// Config describes the sandbox that the containers of a pod share.
type Config struct {
	// Dir is the pod's folder, made by the caller. It has the socket, and folders for containers.
	Dir string `json:"dir"`
	// Memory is the folder of the pod's volumes in memory; it goes with Dir. It may be missing, and "" is none.
	Memory   string `json:"memory,omitempty"`
	Hostname string `json:"hostname"`
	// IP is the pod's address in its own network namespace; "" shares the host's network.
	IP      string `json:"ip,omitempty"`
	HostIPC bool   `json:"hostIPC,omitempty"`
	// SharePIDs makes the containers share one PID namespace, in which they see each other's processes.
	SharePIDs bool `json:"sharePIDs,omitempty"`
}

// Container is one run of a container.
type Container struct {
	Name string   `json:"name"`
	Run  int32    `json:"run"`
	Args []string `json:"args"` // without any the container pauses, until SIGTERM or StopSignal
	Env  []string `json:"env"`
	Dir  string   `json:"dir"` // the working directory; "" is /

	UID    uint32   `json:"uid"`
	GID    uint32   `json:"gid"`
	Groups []uint32 `json:"groups,omitempty"`
	// Capabilities are the numbers of the container's capabilities; Privileged containers have all.
	Capabilities    []int `json:"capabilities,omitempty"`
	Privileged      bool  `json:"privileged,omitempty"`
	NoNewPrivileges bool  `json:"noNewPrivileges,omitempty"`
	ReadOnlyRoot    bool  `json:"readOnlyRoot,omitempty"`
	// Seccomp applies the profile RuntimeDefault, unless the container is Privileged.
	Seccomp bool `json:"seccomp,omitempty"`
	// OOMScore is the oom_score_adj of the container's processes (proc_pid_oom_score_adj(5)): the higher, the sooner
	// the kernel kills them when the machine runs out of memory.
	OOMScore int32 `json:"oomScore,omitempty"`
	// StopSignal is a signal that ends a pause, besides SIGTERM; 0 is none.
	StopSignal int  `json:"stopSignal,omitempty"`
	HostPID    bool `json:"hostPID,omitempty"`
	// Target is the container whose PID namespace this one shares; "" for its own or the pod's.
	Target string `json:"target,omitempty"`

	TTY       bool `json:"tty,omitempty"`
	Stdin     bool `json:"stdin,omitempty"`
	StdinOnce bool `json:"stdinOnce,omitempty"`

	Mounts []Mount `json:"mounts,omitempty"`
	// Hide are files and folders of the host that the container must not see under any path, except in Own mounts.
	Hide []string `json:"hide,omitempty"`
	// Cgroup is the cgroup's name below the root of each hierarchy.
	Cgroup string `json:"cgroup"`
	Limits Limits `json:"limits"`
}

// Mount binds a file or folder of the host into a container.
type Mount struct {
	Source   string `json:"source"`
	SubPath  string `json:"subPath,omitempty"` // within Source; it cannot lead out of Source
	Target   string `json:"target"`
	ReadOnly bool   `json:"readOnly,omitempty"`
	// Recursive extends ReadOnly to nested mounts.
	Recursive bool `json:"recursive,omitempty"`
	// Flags are further attributes of the mount and of nested mounts: MOUNT_ATTR_… of mount_setattr(2).
	Flags uint64 `json:"flags,omitempty"`
	// Own marks a Source that the agent provides and that may be below a hidden path. Otherwise users chose the path.
	Own bool `json:"own,omitempty"`
}

// Limits are the limits of a container or a group of them. Zero is no limit.
type Limits struct {
	CPUShares   int64 `json:"cpuShares,omitempty"` // in units of v1: 1024 for each requested core
	CPUQuota    int64 `json:"cpuQuota,omitempty"`  // microseconds in each 100 ms
	MemoryBytes int64 `json:"memoryBytes,omitempty"`
	MemoryMin   int64 `json:"memoryMin,omitempty"` // v2: memory that is not reclaimed while other cgroups exceed theirs
	PodPIDs     int64 `json:"podPIDs,omitempty"`   // processes and threads of all containers of the pod
}

// bind reports whether any limit must not be exceeded. A container without such limits also runs on a machine without
// cgroups.
func (l Limits) bind() bool { return l.CPUQuota > 0 || l.MemoryBytes > 0 || l.PodPIDs > 0 }

// Loosest returns the looser of two limits for each resource. If only one of the two limits a resource, it returns that
// limit.
func (l Limits) Loosest(other Limits) Limits {
	return Limits{CPUShares: max(l.CPUShares, other.CPUShares), CPUQuota: max(l.CPUQuota, other.CPUQuota),
		MemoryBytes: max(l.MemoryBytes, other.MemoryBytes), MemoryMin: max(l.MemoryMin, other.MemoryMin)}
}

// Exit describes how a run ended.
type Exit struct {
	Code      int32     `json:"code"` // 128 plus the signal's number if a signal ended the run
	Signal    int32     `json:"signal,omitempty"`
	OOMKilled bool      `json:"oomKilled,omitempty"`
	Started   time.Time `json:"started"`
	At        time.Time `json:"at"`
}

// DefaultCapabilities are the capabilities of a container that adds and drops none. They are those of other container
// runtimes except MKNOD: here no device cgroup protects the host's disks.
var DefaultCapabilities = []string{
	"CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP", "NET_BIND_SERVICE", "NET_RAW",
	"SYS_CHROOT", "AUDIT_WRITE", "SETFCAP",
}

// CapabilityNumbers maps capabilities to Linux's numbers (capability.h).
var CapabilityNumbers = map[string]int{
	"CHOWN": 0, "DAC_OVERRIDE": 1, "DAC_READ_SEARCH": 2, "FOWNER": 3, "FSETID": 4, "KILL": 5, "SETGID": 6, "SETUID": 7,
	"SETPCAP": 8, "LINUX_IMMUTABLE": 9, "NET_BIND_SERVICE": 10, "NET_BROADCAST": 11, "NET_ADMIN": 12, "NET_RAW": 13,
	"IPC_LOCK": 14, "IPC_OWNER": 15, "SYS_MODULE": 16, "SYS_RAWIO": 17, "SYS_CHROOT": 18, "SYS_PTRACE": 19,
	"SYS_PACCT": 20,
	"SYS_ADMIN": 21, "SYS_BOOT": 22, "SYS_NICE": 23, "SYS_RESOURCE": 24, "SYS_TIME": 25, "SYS_TTY_CONFIG": 26,
	"MKNOD": 27,
	"LEASE": 28, "AUDIT_WRITE": 29, "AUDIT_CONTROL": 30, "SETFCAP": 31, "MAC_OVERRIDE": 32,
	"MAC_ADMIN": 33, "SYSLOG": 34,
	"WAKE_ALARM": 35, "BLOCK_SUSPEND": 36, "AUDIT_READ": 37, "PERFMON": 38, "BPF": 39, "CHECKPOINT_RESTORE": 40,
}

// ErrGone is returned for requests to a shim that has ended.
var ErrGone = errors.New("the pod's shim has ended")

// StartError reports that a container's command could not be run, through the container's own fault.
type StartError struct{ Message string }

func (e *StartError) Error() string { return e.Message }
