// Package storage is the group storage.k8s.io/v1: classes of volumes, CSI drivers and their reports, and attachments
// of volumes to nodes.
package storage

import (
	"github.com/coxswain-dev/coxswain/api"
)

// Kinds returns the kinds of storage.k8s.io, in the order of discovery. Each call makes new registrations.
func Kinds() []*api.Resource {
	return references.In(
		csiDrivers(),
		csiNodes(),
		csiStorageCapacities(),
		storageClasses(),
		volumeAttachments(),
		volumeAttributesClasses(),
	)
}
