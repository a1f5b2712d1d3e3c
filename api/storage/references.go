package storage

import (
	"reflect"

	storagev1 "k8s.io/api/storage/v1"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/core"
)

// references lists the fields of the group's types that contain names of other objects.
var references = api.NewReferences(map[reflect.Type][]string{
	reflect.TypeFor[storagev1.VolumeAttachmentSpec]():   {"NodeName"},
	reflect.TypeFor[storagev1.VolumeAttachmentSource](): {"PersistentVolumeName"},
	reflect.TypeFor[storagev1.CSIStorageCapacity]():     {"StorageClassName"},
}, core.References)
