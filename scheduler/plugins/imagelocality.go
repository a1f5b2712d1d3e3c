package plugins

import (
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/coxswain-dev/coxswain/scheduler/framework"
)

// ImageLocality prefers nodes that have the pod's images already, and large images count more. An image that few
// nodes have counts less, so that a cluster's pods do not all go to the first node that pulled one.
type ImageLocality struct{}

const (
	// Images with a smaller total size make no difference.
	fewImageBytes int64 = 23 * 1024 * 1024
	// This much per container gives the highest score.
	manyImageBytes int64 = 1000 * 1024 * 1024

	imagesKey = "ImageLocality/images"
)

// wantedImage is an image of the pod and the share of the nodes that have it.
type wantedImage struct {
	name  string
	share float64
}

// Name implements framework.Plugin.
func (*ImageLocality) Name() string { return "ImageLocality" }

// PreScore implements framework.PreScorePlugin.
func (*ImageLocality) PreScore(state *framework.CycleState, pod *framework.PodInfo, _ []*framework.NodeInfo,
	nodes framework.Snapshot) *framework.Status {
	var images []wantedImage
	want := func(reference string) {
		name := normalizedImage(reference)
		if n := nodes.ImageNodes(name); n > 0 {
			images = append(images, wantedImage{name, float64(n) / float64(len(nodes.Nodes()))})
		}
	}
	for i := range pod.Pod.Spec.InitContainers {
		want(pod.Pod.Spec.InitContainers[i].Image)
	}
	for i := range pod.Pod.Spec.Containers {
		want(pod.Pod.Spec.Containers[i].Image)
	}
	for i := range pod.Pod.Spec.Volumes {
		if image := pod.Pod.Spec.Volumes[i].Image; image != nil {
			want(image.Reference)
		}
	}
	if len(images) == 0 {
		return skip
	}
	state.Write(imagesKey, images)
	return nil
}

// Score implements framework.ScorePlugin.
func (*ImageLocality) Score(state *framework.CycleState, pod *framework.PodInfo, node *framework.NodeInfo) int64 {
	images, _ := state.Read(imagesKey).([]wantedImage)
	var sum int64
	for _, image := range images {
		sum += int64(float64(node.Images[image.name]) * image.share)
	}
	maximum := manyImageBytes * int64(imageCount(pod.Pod))
	return framework.MaxNodeScore * (min(max(sum, fewImageBytes), maximum) - fewImageBytes) / (maximum - fewImageBytes)
}

func imageCount(pod *corev1.Pod) int {
	n := len(pod.Spec.InitContainers) + len(pod.Spec.Containers)
	for i := range pod.Spec.Volumes {
		if pod.Spec.Volumes[i].Image != nil {
			n++
		}
	}
	return n
}

// normalizedImage adds the default tag to a reference that has neither tag nor digest. The colon of a tag comes
// after the last slash, and the colon of a registry's port before it.
func normalizedImage(reference string) string {
	if strings.LastIndex(reference, ":") <= strings.LastIndex(reference, "/") {
		return reference + ":latest"
	}
	return reference
}
