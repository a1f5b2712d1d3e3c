// Package process implements a runtime whose containers are processes of this machine. The kernel's namespaces and
// cgroups isolate them from each other. There are no images: a container sees the machine's files.
//
// The package translates the API's objects for package sandbox, which has the mechanisms and does not know the API:
//
//	runtime_linux.go    pods: set-up, tear-down, and adoption by a later agent
//	container_linux.go  one run of a container, with its probes, hooks, streams and termination message
//	cgroups_linux.go    limits of pods, of QoS classes, and of all pods together
//	fields.go           the fields of a spec that are honoured, and the rejection of all others
//	memory_linux.go     the folders of volumes in memory
//	masked_linux.go     paths that this and other agents of the machine hide from containers
//	users.go            the machine's user database
//	config_linux.go     a container's spec as a sandbox.Container: rights, limits, mounts
//	network_linux.go    nodes and pods on the router of this machine, and the Node's condition
//	observe_linux.go    free resources of the machine, and disk usage of pods
//	machine_linux.go    capacity and description of the machine
//	cleanup_linux.go    removal of everything that an agent has left, and the lock on its folder
//	sandbox/            namespaces, cgroups, the shim
//
// The state of pods is on disk and in their shims, so that a later agent finds them, however the earlier one ended.
package process

import (
	"log/slog"
	"os"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/node/runtime"
)

// Options configure the runtime, and limit the resources and files of the machine that its containers have.
type Options struct {
	// DataDir is the folder of the runtime's files.
	DataDir string
	// Hide are files and folders that no container may see, besides DataDir.
	Hide []string
	// Agents is a folder in which the agents of this machine exchange the paths that they hide; "" for none.
	Agents string
	// VolumeRoots are the folders that contain claimed volumes as direct subfolders.
	VolumeRoots []string
	// MaxPodPIDs limits the processes and threads of a pod; 0 is no limit.
	MaxPodPIDs int64
	// Address is the address of pods in the machine's network.
	Address string
	// OpenRouter opens the network of the runtime's pods: the router in a network namespace that an earlier agent has
	// left, or a new one if that is nil. The router must call changed after its Problem has changed. A nil OpenRouter
	// opens a network for this machine only, without NetworkPolicies.
	OpenRouter func(namespace *os.File, changed func()) (runtime.Router, error)
	// ClusterDNS are the DNS servers of pods with the policy ClusterFirst. Without any, these pods use the machine's.
	ClusterDNS []string
	// ClusterDomain is the cluster's DNS domain.
	ClusterDomain string
	// Capacity is a node's capacity. Allocatable is the part for pods, and the limit that the downward API shows for
	// containers without limits. Reserved is the part for the machine and the agent.
	Capacity, Allocatable, Reserved corev1.ResourceList
	Clock                           clock.WithTicker
	Log                             *slog.Logger
}
