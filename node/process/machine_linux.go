package process

import (
	"os"
	goruntime "runtime"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Capacity returns the resources of this machine.
func Capacity() corev1.ResourceList {
	list := corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewQuantity(int64(goruntime.NumCPU()), resource.DecimalSI),
		corev1.ResourceMemory: *resource.NewQuantity(memInfo("MemTotal"), resource.BinarySI),
	}
	var disk unix.Statfs_t
	if unix.Statfs("/", &disk) == nil {
		list[corev1.ResourceEphemeralStorage] = *resource.NewQuantity(int64(disk.Blocks)*disk.Bsize, resource.BinarySI)
	}
	return list
}

// Describe fills in the machine and its operating system.
func (r *Runtime) Describe(info *corev1.NodeSystemInfo) {
	read := func(path, fallback string) string {
		if text, err := os.ReadFile(path); err == nil {
			return strings.TrimSpace(string(text))
		}
		return fallback
	}
	info.BootID = read("/proc/sys/kernel/random/boot_id", info.BootID)
	info.KernelVersion = read("/proc/sys/kernel/osrelease", "unknown")
	info.OSImage = "Linux"
	for line := range strings.Lines(read("/etc/os-release", "")) {
		if name, ok := strings.CutPrefix(line, "PRETTY_NAME="); ok {
			info.OSImage = strings.Trim(strings.TrimSpace(name), `"`)
		}
	}
}
