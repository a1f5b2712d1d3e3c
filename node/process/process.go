// Package process is the runtime whose containers are processes of this machine, apart from each other by what the
// kernel gives, and without images: a container's files are the machine's.
//
// It stands between the API's words and package sandbox, which has the machinery and knows no API:
//
//	runtime_linux.go    pods: set up, torn down, taken up again by a later agent
//	container_linux.go  one run of a container, with its probes, hooks, streams and termination message
//	cgroups_linux.go    what pods, classes of pods and all pods may take of the machine
//	fields.go           which fields of a spec are honoured, and the refusal of the others
//	hidden_linux.go     what this and other agents of the machine hide from containers
//	users.go            what the machine says of a user
//	config_linux.go     a container's spec as a sandbox.Container: rights, limits, mounts
//	network_linux.go    nodes and pods on the router of this machine, and the Node's condition
//	observe_linux.go    what is left of the machine, and what pods take of its disk
//	machine_linux.go    what machine this is
//	cleanup_linux.go    nothing of an agent is left on the machine, and one agent for each folder
//	sandbox/            namespaces, cgroups, the shim
//
// What pods have is on disk, so that an agent that comes later, however this one ended, finds them as they are.
package process

import (
	"log/slog"
	"os"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/node/runtime"
)

// Options say what the containers of the process runtime may take of this machine, and see of it.
type Options struct {
	// DataDir is where the runtime keeps what it has on disk.
	DataDir string
	// Hide are files and folders that no container may see, besides DataDir.
	Hide []string
	// Agents is a folder in which the agents of this machine tell each other what to hide, besides; none where empty.
	Agents string
	// VolumeRoots are the folders right below which the folders of claimed volumes are.
	VolumeRoots []string
	// MaxPodPIDs is how many processes and threads a pod may have; as many as it likes where zero.
	MaxPodPIDs int64
	// Address is that of pods in the machine's network.
	Address string
	// OpenRouter opens the network of the process runtime's pods: the router in a network namespace that an earlier
	// agent has left, or a new one where that is nil. The router calls changed when its Problem has changed. A nil
	// function opens one with a network of this machine alone, without NetworkPolicies.
	OpenRouter func(namespace *os.File, changed func()) (runtime.Router, error)
	// ClusterDNS are the DNS servers of pods with the policy ClusterFirst, which without any have the machine's.
	ClusterDNS []string
	// ClusterDomain is the domain of the cluster's names.
	ClusterDomain string
	// Capacity is what a node has. Allocatable is what of it pods may have, which is the limit of containers that have
	// none; Reserved is kept for the machine and the agent.
	Capacity, Allocatable, Reserved corev1.ResourceList
	Clock                           clock.WithTicker
	Log                             *slog.Logger
}
