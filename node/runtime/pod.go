package runtime

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coxswain-dev/coxswain/node/amount"
)

// PodKey identifies one pod. A later pod of the same name has another UID, and so another key.
type PodKey struct {
	Node, Namespace, Name string
	UID                   types.UID
}

// String implements fmt.Stringer.
func (k PodKey) String() string { return "pod " + k.Namespace + "/" + k.Name }

func KeyOf(pod *corev1.Pod) PodKey {
	return PodKey{pod.Spec.NodeName, pod.Namespace, pod.Name, pod.UID}
}

// GracePeriod returns a pod's terminationGracePeriodSeconds, or the default.
func GracePeriod(pod *corev1.Pod) time.Duration {
	if s := pod.Spec.TerminationGracePeriodSeconds; s != nil {
		return amount.Seconds(*s)
	}
	return corev1.DefaultTerminationGracePeriodSeconds * time.Second
}

// Containers returns all containers of a pod: init, regular and ephemeral ones.
func Containers(pod *corev1.Pod) []*corev1.Container {
	var all []*corev1.Container
	for i := range pod.Spec.InitContainers {
		all = append(all, &pod.Spec.InitContainers[i])
	}
	for i := range pod.Spec.Containers {
		all = append(all, &pod.Spec.Containers[i])
	}
	for i := range pod.Spec.EphemeralContainers {
		all = append(all, (*corev1.Container)(&pod.Spec.EphemeralContainers[i].EphemeralContainerCommon))
	}
	return all
}

// InitKind reports whether c is one of the pod's init containers, and if so whether it is a sidecar.
func InitKind(pod *corev1.Pod, c *corev1.Container) (isInit, sidecar bool) {
	for i := range pod.Spec.InitContainers {
		if pod.Spec.InitContainers[i].Name == c.Name {
			return true, IsSidecar(c)
		}
	}
	return false, false
}

// IsSidecar reports whether an init container is a sidecar: it runs beside the regular containers.
func IsSidecar(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// ContainerID returns the ID of one run of a container, in the form of ContainerStatus: "runtime://...".
func ContainerID(runtime string, pod types.UID, container string, run int32) string {
	return runtime + "://" + Digest(string(pod), container, strconv.Itoa(int(run)))
}

// Digest returns the SHA-256 of its parts, in hexadecimal.
func Digest(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:])
}
