// Package sandbox runs containers as processes of the host, each apart from the others by what the kernel
// gives without an image: namespaces, a cgroup, an own view of the host's files.
//
// What comes in: a Sandbox for each pod and a Container for each run of a container, as plain data. What goes out:
// log files in CRI's format, exit records, files to talk to what runs. Nothing here knows the API.
//
//	agent ──starts──► shim (one per pod: network, UTS and IPC namespaces)
//	  ▲                 │ starts, waits, writes logs and exit records
//	  └──unix socket────┤
//	                    └──► init ──becomes──► the container's command (PID and mount namespaces, cgroup)
//
// The shim is our own binary again, and outlives the agent: an agent that was killed finds the socket in the
// pod's folder and goes on. If the shim is killed, the kernel kills its containers.
//
//	sandbox.go   what a pod and a container are told to be
//	pod.go       the agent's side: start, adopt, talk, remove
//	protocol.go  what agent and shim say to each other
//	program.go   our binary, as shims are started from it; containers' commands are found
//	shim.go      the shim; exec.go: commands beside a container's own
//	pids.go      containers that see each other's processes
//	init.go      from a new process to the container's command
//	pause.go     what stands for a command that is not there
//	seccomp.go   the calls of the kernel that it may make
//	mounts.go    its files; places.go: those that it must not see
//	network.go   pods on the router of this machine
//	cgroup.go    limits and usage, v1 and v2; owncgroup.go: what a container sees of them
//	log.go       log files, written and read
package sandbox

import (
	"errors"
	"time"
)

// Config is what the containers of a pod share.
type Config struct {
	// Dir is the pod's folder, made by the caller. It has the socket, and folders for containers.
	Dir      string `json:"dir"`
	Hostname string `json:"hostname"`
	// IP is the pod's address in its own network namespace; "" shares the host's network.
	IP      string `json:"ip,omitempty"`
	HostIPC bool   `json:"hostIPC,omitempty"`
	// SharePIDs has the containers share one PID namespace, in which they see each other's processes.
	SharePIDs bool `json:"sharePIDs,omitempty"`
}

// Container is one run of a container.
type Container struct {
	Name string   `json:"name"`
	Run  int32    `json:"run"`
	Args []string `json:"args"` // none is a pause, which ends on SIGTERM and StopSignal
	Env  []string `json:"env"`
	Dir  string   `json:"dir"` // its working directory; "" is /

	UID    uint32   `json:"uid"`
	GID    uint32   `json:"gid"`
	Groups []uint32 `json:"groups,omitempty"`
	// Capabilities are the numbers of those it may have; all with Privileged.
	Capabilities    []int `json:"capabilities,omitempty"`
	Privileged      bool  `json:"privileged,omitempty"`
	NoNewPrivileges bool  `json:"noNewPrivileges,omitempty"`
	ReadOnlyRoot    bool  `json:"readOnlyRoot,omitempty"`
	// Seccomp gives it the profile RuntimeDefault, unless it is Privileged.
	Seccomp bool `json:"seccomp,omitempty"`
	// OOMScore is how soon the kernel kills its processes when the machine has no memory left
	// (proc_pid_oom_score_adj(5)).
	OOMScore int32 `json:"oomScore,omitempty"`
	// StopSignal ends it; 0 is SIGTERM.
	StopSignal int  `json:"stopSignal,omitempty"`
	HostPID    bool `json:"hostPID,omitempty"`
	// Target is the container whose PID namespace this one shares, where it is to see another's processes.
	Target string `json:"target,omitempty"`

	TTY       bool `json:"tty,omitempty"`
	Stdin     bool `json:"stdin,omitempty"`
	StdinOnce bool `json:"stdinOnce,omitempty"`

	Mounts []Mount `json:"mounts,omitempty"`
	// Hide are files and folders of the host that it must not see, by no path and in no mount but those that are Own.
	Hide []string `json:"hide,omitempty"`
	// Cgroup is its name below the root of each hierarchy.
	Cgroup string `json:"cgroup"`
	Limits Limits `json:"limits"`
}

// Mount binds a file or folder of the host into a container.
type Mount struct {
	Source   string `json:"source"`
	SubPath  string `json:"subPath,omitempty"` // within Source; it cannot lead out of it
	Target   string `json:"target"`
	ReadOnly bool   `json:"readOnly,omitempty"`
	// Recursive has ReadOnly hold for all that is mounted within Source.
	Recursive bool `json:"recursive,omitempty"`
	// Flags are more attributes of the mount, and of all that is mounted within Source: MOUNT_ATTR_… of
	// mount_setattr(2).
	Flags uint64 `json:"flags,omitempty"`
	// Own marks a Source of the agent's, which may be below a hidden path. Where it is not set, users chose the path.
	Own bool `json:"own,omitempty"`
}

// Limits bound what a container takes. Zero is no limit.
type Limits struct {
	CPUShares   int64 `json:"cpuShares,omitempty"` // of v1: 1024 for each core requested
	CPUQuota    int64 `json:"cpuQuota,omitempty"`  // microseconds in each 100 ms
	MemoryBytes int64 `json:"memoryBytes,omitempty"`
	MemoryMin   int64 `json:"memoryMin,omitempty"` // v2: what is not taken from it while others have more than theirs
	PodPIDs     int64 `json:"podPIDs,omitempty"`   // processes and threads of all containers of the pod
}

// bind reports that there is something that a container must not exceed. Where there is not, it runs on a
// machine without cgroups as well.
func (l Limits) bind() bool { return l.CPUQuota > 0 || l.MemoryBytes > 0 || l.PodPIDs > 0 }

// Loosest is what neither of two limits keeps anything from; where only one of them has a limit, that one's.
func (l Limits) Loosest(other Limits) Limits {
	return Limits{CPUShares: max(l.CPUShares, other.CPUShares), CPUQuota: max(l.CPUQuota, other.CPUQuota),
		MemoryBytes: max(l.MemoryBytes, other.MemoryBytes), MemoryMin: max(l.MemoryMin, other.MemoryMin)}
}

// Exit is how a run ended.
type Exit struct {
	Code      int32     `json:"code"` // 128 and the signal's number where one ended it
	Signal    int32     `json:"signal,omitempty"`
	OOMKilled bool      `json:"oomKilled,omitempty"`
	Started   time.Time `json:"started"`
	At        time.Time `json:"at"`
}

// DefaultCapabilities are those of a container that asks for none and drops none, as container runtimes
// have them, but MKNOD: no cgroup keeps it from the host's disks here.
var DefaultCapabilities = []string{
	"CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP", "NET_BIND_SERVICE", "NET_RAW",
	"SYS_CHROOT", "AUDIT_WRITE", "SETFCAP",
}

// CapabilityNumbers are Linux' (capability.h).
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

// ErrGone is the error of asking a shim that has ended.
var ErrGone = errors.New("the pod's shim has ended")

// StartError is why a container's command could not be run, which is the container's own fault.
type StartError struct{ Message string }

func (e *StartError) Error() string { return e.Message }
