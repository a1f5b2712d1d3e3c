package core_test

import (
	"testing"

	"github.com/coxswain-dev/coxswain/api/kindtest"
)

func TestPersistentVolume_ErrorsMatchKubernetes(t *testing.T) {
	t.Parallel()
	const sound = `
metadata: {name: v}
spec:
  accessModes: [ReadWriteOnce]
  capacity: {storage: 1Gi}
  csi: {driver: a.io, volumeHandle: h}
`
	csi := func(yaml string) []string { return []string{"csi: {driver: a.io, volumeHandle: h}", yaml} }
	kindtest.Create(t, "PersistentVolume", sound, []kindtest.Case{
		{"modes", []string{"[ReadWriteOnce]", "[ReadWriteOnce, ReadWriteOncePod, Odd]"},
			[]string{"NotSupported spec.accessModes", "Forbidden spec.accessModes"}},
		{"capacity", []string{"storage: 1Gi", "storage: 0, cpu: 1"},
			[]string{"NotSupported spec.capacity", "Invalid spec.capacity[storage]"}},
		{"csi", csi("csi: {driver: '', controllerExpandSecretRef: {name: A}}"),
			[]string{"Required spec.csi.driver", "Invalid spec.csi.driver", "Required spec.csi.volumeHandle",
				"Required spec.csi.controllerExpandSecretRef.namespace",
				"Invalid spec.csi.controllerExpandSecretRef.name"}},
		{"two", csi("csi: {driver: a.io, volumeHandle: h}\n  hostPath: {path: /a}"), []string{"Forbidden spec.csi"}},
		{"none", csi(""), []string{"Required spec"}},
		{"local anywhere", csi("local: {path: /a}"), []string{"Required spec.nodeAffinity"}},
		{"root recycled", csi("hostPath: {path: //}\n  persistentVolumeReclaimPolicy: Recycle"),
			[]string{"Forbidden spec.persistentVolumeReclaimPolicy"}},
		{"attributes of no driver", csi("nfs: {server: a, path: /b}\n  volumeAttributesClassName: ''"),
			[]string{"Required spec.volumeAttributesClassName", "Required spec.csi"}},
	})
	kindtest.Update(t, "PersistentVolume", sound, []kindtest.Case{
		{"source", []string{"volumeHandle: h", "volumeHandle: i"}, []string{"Forbidden spec.persistentvolumesource"}},
		{"secret once", []string{"volumeHandle: h",
			"volumeHandle: h, controllerExpandSecretRef: {name: a, namespace: b}"}, nil},
		{"mode", []string{"capacity:", "volumeMode: Block\n  capacity:"}, []string{"Invalid volumeMode"}},
	})
}

func TestPersistentVolumeClaim_ErrorsMatchKubernetes(t *testing.T) {
	t.Parallel()
	const sound = `
metadata: {name: c, namespace: default}
spec:
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: 2Gi}}
  dataSource: {kind: PersistentVolumeClaim, name: a}
status: {phase: Bound, capacity: {storage: 1Gi}}
`
	kindtest.Create(t, "PersistentVolumeClaim", sound, []kindtest.Case{
		{"nothing asked", []string{"{storage: 2Gi}", "{}"}, []string{"Required spec.resources[storage]"}},
		{"source of a foreign kind", []string{"kind: PersistentVolumeClaim", "kind: Odd"},
			[]string{"Invalid spec.dataSource", "Invalid spec.dataSourceRef"}},
		{"sources that differ", []string{"dataSource:", "dataSourceRef: {kind: PersistentVolumeClaim, name: b}\n  " +
			"dataSource:"}, []string{"Invalid spec"}},
		{"class", []string{"accessModes:", "storageClassName: A\n  accessModes:"},
			[]string{"Invalid spec.storageClassName"}},
	})
	kindtest.Update(t, "PersistentVolumeClaim", sound, []kindtest.Case{
		{"grows", []string{"storage: 2Gi", "storage: 3Gi"}, nil},
		{"shrinks to more than there is", []string{"storage: 2Gi", "storage: 1500Mi"}, nil},
		{"shrinks to what there is", []string{"storage: 2Gi", "storage: 1Gi"},
			[]string{"Forbidden spec.resources.requests.storage"}},
		{"mode of access", []string{"[ReadWriteOnce]", "[ReadWriteMany]"}, []string{"Forbidden spec"}},
		{"bound", []string{"accessModes:", "volumeName: v\n  accessModes:"}, nil},
		{"class once", []string{"accessModes:", "storageClassName: a\n  accessModes:"}, nil},
	})
}

func TestPersistentVolumeClaim_ValidateRejects(t *testing.T) {
	t.Parallel()
	kindtest.Create(t, "PersistentVolumeClaim",
		"spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}", []kindtest.Case{
			{"mode", []string{"[ReadWriteOnce]", "[Some]"}, []string{"NotSupported spec.accessModes"}},
			{"no mode", []string{"[ReadWriteOnce]", "[]"}, []string{"Required spec.accessModes"}},
			{"size", []string{"1Gi", "'0'"}, []string{"Invalid spec.resources[storage]"}},
		})
}
