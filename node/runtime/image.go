package runtime

import (
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Imageless marks a runtime that has no images to pull. Its Pull never waits: the agent calls it in place, so that a
// pod starts in one step, and records no Events about images.
type Imageless interface{ Imageless() }

// PullRequest asks for the image of a container.
type PullRequest struct {
	// Pod needs the image. Its imagePullSecrets name the credentials.
	Pod    *corev1.Pod
	Image  string
	Policy corev1.PullPolicy
	// Progress reports that the image has to be downloaded, once, before the download begins.
	Progress func()
}

// Image is an image that a container can be started from.
type Image struct {
	// ID is the imageID of the container's status.
	ID string
	// Download describes how the image was fetched; nil where it was present.
	Download *Download
}

// Download describes how an image was fetched. Took excludes the time spent waiting for other downloads.
type Download struct {
	Took  time.Duration
	Bytes int64 // size of the image
}

// PullReason is the class of a failed pull, in the kubelet's words (pkg/kubelet/images/types.go and cri-api's errors).
// It is the reason of the waiting container.
type PullReason string

const (
	ErrImagePull              PullReason = "ErrImagePull"
	ErrImageNeverPull         PullReason = "ErrImageNeverPull"
	InvalidImageName          PullReason = "InvalidImageName"
	ImageInspectError         PullReason = "ImageInspectError"
	RegistryUnavailable       PullReason = "RegistryUnavailable"
	SignatureValidationFailed PullReason = "SignatureValidationFailed"
)

// PullError explains why an image is not available.
type PullError struct {
	Reason PullReason
	Err    error
}

func (e *PullError) Error() string { return e.Err.Error() }
func (e *PullError) Unwrap() error { return e.Err }

// ReasonOf returns the class of an error of Pull.
func ReasonOf(err error) PullReason {
	var classified *PullError
	if errors.As(err, &classified) {
		return classified.Reason
	}
	return ErrImagePull
}
