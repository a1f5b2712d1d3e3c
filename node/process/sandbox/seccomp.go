//go:build linux

package sandbox

import (
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The profile RuntimeDefault allows all system calls except those that administer the machine, make or enter
// namespaces, or have been used to escape from containers. As in other runtimes, a capability allows the calls that
// need it. Calls that are newer than this program fail with ENOSYS.

// deniedCalls fail with EPERM unless the container has the capability. Calls without a capability always fail.
var deniedCalls = []struct {
	capability string
	calls      []uintptr
}{
	{"", []uintptr{unix.SYS_ADD_KEY, unix.SYS_KEYCTL, unix.SYS_REQUEST_KEY, unix.SYS_KEXEC_LOAD,
		unix.SYS_KEXEC_FILE_LOAD, unix.SYS_LOOKUP_DCOOKIE, unix.SYS_MOVE_PAGES, unix.SYS_NFSSERVCTL,
		unix.SYS_PIVOT_ROOT, unix.SYS_SWAPON, unix.SYS_SWAPOFF, unix.SYS_USERFAULTFD, unix.SYS_IO_URING_SETUP,
		unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER}},
	{"SYS_ADMIN", []uintptr{unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_UNSHARE, unix.SYS_SETNS, unix.SYS_QUOTACTL,
		unix.SYS_FSOPEN, unix.SYS_FSMOUNT, unix.SYS_FSCONFIG, unix.SYS_FSPICK, unix.SYS_MOVE_MOUNT, unix.SYS_OPEN_TREE,
		unix.SYS_MOUNT_SETATTR, unix.SYS_FANOTIFY_INIT, unix.SYS_SETHOSTNAME, unix.SYS_SETDOMAINNAME,
		unix.SYS_QUOTACTL_FD}},
	{"SYS_BOOT", []uintptr{unix.SYS_REBOOT}},
	{"SYS_MODULE", []uintptr{unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE}},
	{"SYS_PACCT", []uintptr{unix.SYS_ACCT}},
	{"SYS_PTRACE", []uintptr{unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_KCMP,
		unix.SYS_PIDFD_GETFD}},
	{"SYS_TIME", []uintptr{unix.SYS_SETTIMEOFDAY, unix.SYS_CLOCK_SETTIME, unix.SYS_CLOCK_ADJTIME}},
	{"SYS_TTY_CONFIG", []uintptr{unix.SYS_VHANGUP}},
	{"SYS_NICE", []uintptr{unix.SYS_GET_MEMPOLICY, unix.SYS_MBIND, unix.SYS_SET_MEMPOLICY, unix.SYS_MIGRATE_PAGES}},
	{"SYSLOG", []uintptr{unix.SYS_SYSLOG}},
	{"BPF", []uintptr{unix.SYS_BPF}},
	{"PERFMON", []uintptr{unix.SYS_PERF_EVENT_OPEN}},
	{"DAC_READ_SEARCH", []uintptr{unix.SYS_OPEN_BY_HANDLE_AT}},
}

// newNamespaces are the flags of clone(2) that make namespaces.
const newNamespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
	unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET

// lastKnownCall is the newest call that the profile covers.
const lastKnownCall = unix.SYS_MSEAL

// personalities are the arguments of personality(2) that do not weaken a process's protection: Linux, with other names
// or an older release, and the query of the present one.
var personalities = []uint32{0, 0x0008, 0x20000, 0x20008, 0xffffffff}

// filter is a seccomp(2) program. Each rule is complete in itself: calls that it does not decide fall through to the
// next.
type filter []unix.SockFilter

// Offsets in struct seccomp_data.
const (
	dataCall     = 0
	dataArch     = 4
	dataArgument = 16 // the lower half of the first argument: all supported architectures are little-endian
)

func (f *filter) add(code uint16, value uint32, yes, no uint8) {
	*f = append(*f, unix.SockFilter{Code: code, K: value, Jt: yes, Jf: no})
}

func (f *filter) load(offset uint32) { f.add(unix.BPF_LD|unix.BPF_W|unix.BPF_ABS, offset, 0, 0) }

func (f *filter) fail(err unix.Errno) {
	f.add(unix.BPF_RET|unix.BPF_K, unix.SECCOMP_RET_ERRNO|uint32(err), 0, 0)
}

func (f *filter) allow() { f.add(unix.BPF_RET|unix.BPF_K, unix.SECCOMP_RET_ALLOW, 0, 0) }

// on adds a rule for a call, which rule must decide.
func (f *filter) on(call uintptr, rule filter) {
	f.add(unix.BPF_JMP|unix.BPF_JEQ|unix.BPF_K, uint32(call), 0, uint8(len(rule)))
	*f = append(*f, rule...)
}

// runtimeDefault returns the program for a container with these capabilities.
func runtimeDefault(capabilities []int) (filter, error) {
	if nativeArch == 0 {
		return nil, errors.New("seccompProfile RuntimeDefault: there is none for this architecture")
	}
	has := func(name string) bool { return slices.Contains(capabilities, CapabilityNumbers[name]) }
	var f filter
	f.load(dataArch)
	f.add(unix.BPF_JMP|unix.BPF_JEQ|unix.BPF_K, nativeArch, 1, 0)
	f.fail(unix.ENOSYS) // other architectures number their calls differently
	f.load(dataCall)
	f.add(unix.BPF_JMP|unix.BPF_JGT|unix.BPF_K, lastKnownCall, 0, 1)
	f.fail(unix.ENOSYS) // includes the calls of x32, whose numbers have an additional bit
	for _, denied := range deniedCalls {
		if denied.capability == "" || !has(denied.capability) {
			f.denyAll(denied.calls)
		}
	}
	f.denyAll(nativeDenied)
	if !has("SYS_ADMIN") {
		var flags, none filter
		flags.load(dataArgument)
		flags.add(unix.BPF_JMP|unix.BPF_JSET|unix.BPF_K, newNamespaces, 0, 1)
		flags.fail(unix.EPERM)
		flags.allow()
		f.on(unix.SYS_CLONE, flags)
		none.fail(unix.ENOSYS) // the filter cannot read its flags; programs fall back to clone
		f.on(unix.SYS_CLONE3, none)
	}
	f.on(unix.SYS_PERSONALITY, personalityRule())
	var vsock filter // denies sockets to the machine's hypervisor
	vsock.load(dataArgument)
	vsock.add(unix.BPF_JMP|unix.BPF_JEQ|unix.BPF_K, unix.AF_VSOCK, 0, 1)
	vsock.fail(unix.EPERM)
	vsock.allow()
	f.on(unix.SYS_SOCKET, vsock)
	f.allow()
	return f, nil
}

func (f *filter) denyAll(calls []uintptr) {
	for _, call := range calls {
		var rule filter
		rule.fail(unix.EPERM)
		f.on(call, rule)
	}
}

func personalityRule() filter {
	var rule filter
	rule.load(dataArgument)
	for _, p := range personalities {
		rule.add(unix.BPF_JMP|unix.BPF_JEQ|unix.BPF_K, p, 0, 1)
		rule.allow()
	}
	rule.fail(unix.EPERM)
	return rule
}

// confine applies the profile RuntimeDefault to this thread and the processes that it starts. The thread must still
// have CAP_SYS_ADMIN: otherwise the kernel would require no_new_privs, which disables set-user-ID programs.
func confine(capabilities []int) error {
	f, err := runtimeDefault(capabilities)
	if err != nil {
		return err
	}
	program := unix.SockFprog{Len: uint16(len(f)), Filter: &f[0]}
	if _, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0,
		uintptr(unsafe.Pointer(&program))); errno != 0 {
		return fmt.Errorf("seccompProfile RuntimeDefault: %w", errno)
	}
	return nil
}
